//! Clients that wait, and the queue they wait in.

use crate::{Conn, Server, Value, until};

/// A client that is blocked by this command: it is in the queue when this returns.
#[track_caller]
pub fn waiter(server: &Server, command: &str) -> Conn {
    let key = command.split(' ').nth(1).expect("a key").to_owned();
    let mut conn = server.connect();
    let id = conn.client_id();
    conn.send(&command.split(' ').collect::<Vec<_>>());
    let mut look = server.connect();
    until(&format!("{command:?} waits"), || clients(&mut look, &key).contains(&id));
    conn
}

/// The ids of the clients that wait, the head of the queue first.
#[track_caller]
pub fn clients(conn: &mut Conn, key: &str) -> Vec<i64> {
    let queue = conn.ok(&format!("DLOCK.WAITERS {key}"));
    queue.items().iter().map(|waiter| waiter.field("client").int()).collect()
}

/// The tokens of those who wait, the head of the queue first.
#[track_caller]
pub fn tokens(conn: &mut Conn, key: &str) -> Vec<String> {
    let queue = conn.ok(&format!("DLOCK.WAITERS {key}"));
    queue.items().iter().map(|waiter| waiter.field("token").text()).collect()
}

/// The tokens of the holders, in the order of their grants.
#[track_caller]
pub fn holders(conn: &mut Conn, key: &str) -> Vec<String> {
    match conn.ok(&format!("DLOCK.INSPECT {key}")) {
        Value::Nil => Vec::new(),
        found => found.field("holders").items().iter().map(|hold| hold.field("token").text()).collect(),
    }
}

/// The fence this waiter was granted.
#[track_caller]
pub fn granted(waiter: &mut Conn) -> i64 {
    let fence = waiter.read().int();
    assert!(fence > 0);
    fence
}

/// The server's books are balanced: nobody waits, nobody is blocked.
#[track_caller]
pub fn nobody_waits(server: &Server) {
    until("nobody waits", || server.info("dlock_waiting") == "0" && server.info("blocked_clients") == "0");
}
