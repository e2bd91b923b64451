//! Waiting clients, the queue, and the holders of a lock.

use crate::{Conn, Server, Value, until};

/// Sends a command that blocks, on a new connection. Returns the connection once its client is in the queue.
#[track_caller]
pub fn waiter(server: &Server, command: &str) -> Conn {
    let key = command.split(' ').nth(1).expect("a key").to_owned();
    let mut conn = server.connect();
    let id = conn.client_id();
    conn.send(&command.split(' ').collect::<Vec<_>>());
    let mut observer = server.connect();
    until(&format!("{command:?} waits"), || clients(&mut observer, &key).contains(&id));
    conn
}

/// Returns the ids of the waiting clients, the head of the queue first.
#[track_caller]
pub fn clients(conn: &mut Conn, key: &str) -> Vec<i64> {
    let queue = conn.ok(&format!("DLOCK.WAITERS {key}"));
    queue.items().iter().map(|waiter| waiter.field("client").int()).collect()
}

/// Returns the tokens of the waiters, the head of the queue first.
#[track_caller]
pub fn tokens(conn: &mut Conn, key: &str) -> Vec<String> {
    let queue = conn.ok(&format!("DLOCK.WAITERS {key}"));
    queue.items().iter().map(|waiter| waiter.field("token").text()).collect()
}

/// Returns the tokens of the holders, in the order of their grants.
#[track_caller]
pub fn holders(conn: &mut Conn, key: &str) -> Vec<String> {
    match conn.ok(&format!("DLOCK.INSPECT {key}")) {
        Value::Nil => Vec::new(),
        found => found.field("holders").items().iter().map(|hold| hold.field("token").text()).collect(),
    }
}

/// Returns the first hold that INSPECT shows. Panics if the lock is free.
#[track_caller]
pub fn first_hold(conn: &mut Conn, key: &str) -> Value {
    conn.ok(&format!("DLOCK.INSPECT {key}")).field("holders").items()[0].clone()
}

/// Reads the grant of a waiter and returns its fence.
#[track_caller]
pub fn granted(waiter: &mut Conn) -> i64 {
    let fence = waiter.read().int();
    assert!(fence > 0);
    fence
}

/// Reads the message that the position with this NOTIFY message was granted the lock. Returns the fence.
#[track_caller]
pub fn granted_message(subscriber: &mut Conn, message: &str) -> i64 {
    let text = subscriber.message();
    let fence = text.strip_prefix(message).and_then(|words| words.strip_prefix(" granted "));
    fence.unwrap_or_else(|| panic!("{text:?} grants nothing to {message:?}")).parse().expect("a fence")
}

/// Waits until the server reports no waiter and no blocked client.
#[track_caller]
pub fn until_no_waiters(server: &Server) {
    until("no client waits", || server.info("dlock_waiting") == "0" && server.info("blocked_clients") == "0");
}
