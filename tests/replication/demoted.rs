//! A master that becomes a replica ends every wait, also of connections that have sent CLIENT CAPA redirect.

use dlock_testkit::queue::{until_no_waiters, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Sends a command over a connection that the server redirects, if it can, instead of closing it.
fn redirected_waiter(server: &Server, command: &[&str]) -> Conn {
    let mut conn = server.connect();
    // Only Valkey supports it.
    let _ = conn.say("CLIENT CAPA redirect");
    conn.send(command);
    conn
}

#[each_server]
fn a_demotion_ends_every_wait(kind: &ServerKind) {
    let (old, new) = (Server::start(kind), Server::start(kind));
    let mut conn = old.connect();
    let mut subscriber = old.connect();
    subscriber.send(&["SUBSCRIBE", "c"]);
    subscriber.read();
    conn.ok("DLOCK.ACQUIRE k a 600000");
    let mut first = redirected_waiter(&old, &["DLOCK.ACQUIRE", "k", "b", "600000", "BLOCK", "0"]);
    let mut second = waiter(&old, "DLOCK.ACQUIRE k c 600000 BLOCK 0");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k d 600000 QUEUE 600000 NOTIFY c d"), Value::Nil);
    until("both wait", || old.info("dlock_waiting") == "2");
    conn.ok(&format!("REPLICAOF 127.0.0.1 {}", new.port()));
    for conn in [&mut first, &mut second] {
        let reply = conn.read();
        let word = reply.error().split(' ').next().unwrap_or_default();
        assert!(["UNBLOCKED", "REDIRECT"].contains(&word), "{reply:?}");
    }
    assert_eq!(subscriber.read().items()[2], "d refused");
    until_no_waiters(&old);
    assert_eq!(old.info("dlock_queued"), "0");
}

/// A demotion drops the tasks of the background job, so the queues cannot be kept.
#[each_server]
fn a_demotion_ends_every_wait_when_the_server_is_promoted_again_at_once(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.honour-strings yes").start();
    let mut conn = server.connect();
    let mut subscriber = server.connect();
    subscriber.send(&["SUBSCRIBE", "c"]);
    subscriber.read();
    conn.ok("SET k stranger");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k a 600000 QUEUE 600000 NOTIFY c a"), Value::Nil);
    let replies = conn.say_together(&["REPLICAOF 127.0.0.1 1", "REPLICAOF NO ONE", "DEL k"]);
    assert_eq!(replies[2], 1, "{replies:?}");
    assert_eq!(subscriber.read().items()[2], "a refused");
    assert_eq!(server.info("dlock_queued"), "0");
}
