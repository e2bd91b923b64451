//! QUEUE: positions that belong to their tokens: kept, granted, claimed and announced.

use dlock_testkit::queue::{clients, holders, tokens};
use dlock_testkit::{Conn, Server, ServerKind, Stream, Value, each_server, until};

/// Starts a server where `a` holds `k`, with a connection that is subscribed to `channel`.
fn scene(kind: &dlock_testkit::ServerKind) -> (Server, Conn, Conn) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 600000");
    let hears = subscriber(&server);
    (server, a, hears)
}

fn subscriber(server: &Server) -> Conn {
    let mut hears = server.connect();
    hears.send(&["SUBSCRIBE", "channel"]);
    hears.read();
    hears
}

/// Returns the next message on the channel.
#[track_caller]
fn heard(hears: &mut Conn) -> String {
    hears.read().items()[2].text()
}

/// Adds a position for `token` to the queue of `k`.
#[track_caller]
fn queue(conn: &mut Conn, token: &str, options: &str) {
    let call = format!("DLOCK.ACQUIRE k {token} 600000 QUEUE 600000 NOTIFY channel {token} {options}");
    assert_eq!(conn.ok(&call), Value::Nil, "{token} is in the queue");
}

#[each_server]
fn every_end_of_a_wait_is_published_except_its_own_release(kind: &ServerKind) {
    let (server, mut a, mut hears) = scene(kind);
    queue(&mut a, "released", "");
    assert_eq!(a.ok("DLOCK.RELEASE k released"), 0);
    queue(&mut a, "cancelled", "");
    assert_eq!(a.ok("DLOCK.CANCEL k cancelled"), 1);
    assert_eq!(heard(&mut hears), "cancelled cancelled");
    assert_eq!(a.ok("DLOCK.ACQUIRE k late 1 QUEUE 20 NOTIFY channel late"), Value::Nil);
    assert_eq!(heard(&mut hears), "late timeout");
    let mut gone = server.connect();
    queue(&mut gone, "bound", "EPHEMERAL");
    drop(gone);
    assert_eq!(heard(&mut hears), "bound cancelled");
    let mut beside = waiter_beside(&server, "b", &mut a);
    assert_eq!(a.ok("DLOCK.CANCEL k b"), 1);
    assert_eq!(beside.read(), Value::Nil);
    queue(&mut a, "refused", "");
    assert_eq!(a.ok("SET k data"), "OK");
    assert_eq!(heard(&mut hears), "refused refused");
    assert_eq!(server.info("dlock_queued"), "0");
}

/// Blocks a connection on a position of its token.
fn waiter_beside(server: &Server, token: &str, look: &mut Conn) -> Conn {
    let mut conn = server.connect();
    conn.send(&["DLOCK.ACQUIRE", "k", token, "600000", "QUEUE", "600000", "BLOCK", "0"]);
    until("the client waits", || server.info("dlock_waiting") == "1");
    assert_eq!(clients(look, "k"), [-1]);
    conn
}

#[each_server]
fn positions_have_the_limits_deadlocks_and_grace_of_block(kind: &ServerKind) {
    let (server, mut a, _) = scene(kind);
    a.ok("CONFIG SET dlock.max-queued 1");
    queue(&mut a, "b", "");
    let full = a.say("DLOCK.ACQUIRE k c 1000 QUEUE 1000");
    assert!(full.error().starts_with("QUEUEFULL"), "{full:?}");
    queue(&mut a, "b", "");
    a.ok("CONFIG SET dlock.max-queued 9");
    a.ok("CONFIG SET dlock.max-waiters-per-key 1");
    assert!(a.say("DLOCK.ACQUIRE k c 1000 QUEUE 1000").error().starts_with("QUEUEFULL"));
    a.ok("DLOCK.ACQUIRE l b 600000");
    let cycle = a.say("DLOCK.ACQUIRE l a 1000 QUEUE 1000");
    assert_eq!(cycle, Value::Error("DEADLOCK a -> b -> a".into()));
    let long = a.say("DLOCK.ACQUIRE k c 1000 QUEUE 86400001");
    assert!(long.error().starts_with("ERR QUEUE ms"), "{long:?}");
    // Existing positions survive a grace period; new ones are refused.
    a.ok("CONFIG SET dlock.restart-grace 600000");
    a.ok("FLUSHALL");
    queue(&mut a, "b", "");
    assert!(a.say("DLOCK.ACQUIRE m c 1000 QUEUE 1000").error().starts_with("GRACE"));
    a.ok("CONFIG SET dlock.restart-grace 0");
    until("b is granted the lock", || holders(&mut a, "k") == ["b"]);
    assert_eq!(server.info("dlock_queued"), "0");
}

#[each_server]
fn the_rights_of_a_position_are_checked_at_request_and_at_grant(kind: &ServerKind) {
    let (server, mut a, mut hears) = scene(kind);
    let rules = "ACL SETUSER u on >secret ~k +dlock.acquire resetchannels &channel";
    a.ok(rules);
    let mut b = server.connect();
    b.ok("AUTH u secret");
    let other = b.say("DLOCK.ACQUIRE k b 600000 QUEUE 600000 NOTIFY other b");
    assert!(other.error().starts_with("NOPERM"), "{other:?}");
    assert_eq!(a.ok("ACL LOG").items()[0].field("reason"), &Value::Bulk("channel".into()));
    for (taken, told) in [("-dlock.acquire", true), ("resetkeys", true), ("resetchannels", false)] {
        queue(&mut b, "b", "");
        queue(&mut a, "c", "");
        a.ok(&format!("ACL SETUSER u {taken}"));
        a.ok("DLOCK.RELEASE k a");
        if told {
            assert_eq!(heard(&mut hears), "b refused");
        }
        assert_eq!(heard(&mut hears), "c granted");
        assert_eq!(holders(&mut a, "k"), ["c"]);
        a.ok("DLOCK.RELEASE k c");
        a.ok("DLOCK.ACQUIRE k a 600000");
        a.ok(rules);
    }
}

#[each_server]
fn positions_are_refused_by_replicas_and_at_a_demotion(kind: &ServerKind) {
    let (server, mut a, mut hears) = scene(kind);
    let master = Server::start(kind);
    queue(&mut a, "b", "");
    server.replicate(&master);
    assert_eq!(heard(&mut hears), "b refused");
    assert_eq!(server.info("dlock_queued"), "0");
    a.ok("CONFIG SET replica-read-only no");
    let refused = a.say("DLOCK.ACQUIRE other b 1000 QUEUE 1000");
    assert!(refused.error().contains("QUEUE"), "{refused:?}");
}

#[each_server]
fn the_queue_is_served_at_del_and_stays_at_swapdb(kind: &ServerKind) {
    let (_server, mut a, mut hears) = scene(kind);
    queue(&mut a, "b", "");
    a.ok("DEL k");
    assert_eq!(heard(&mut hears), "b granted");
    queue(&mut a, "c", "");
    a.ok("FLUSHALL");
    assert_eq!(heard(&mut hears), "c granted");
    assert!(a.ok("DLOCK.ACQUIRE k c 600000").int() > 0);
    a.ok("DLOCK.RELEASE k c");
    a.ok("DLOCK.ACQUIRE k b 600000");
    queue(&mut a, "c", "");
    a.ok("SWAPDB 0 1");
    assert_eq!(heard(&mut hears), "c granted");
    assert_eq!(holders(&mut a, "k"), ["c"]);
    // The unclaimed grant moved with its database; the token claims it there.
    a.ok("SELECT 1");
    assert_eq!(a.ok("DLOCK.EXTEND k b 1000"), 1);
}

#[each_server]
fn only_the_grant_of_a_position_is_replicated(kind: &ServerKind) {
    let (server, mut a, mut hears) = scene(kind);
    let mut stream = Stream::of(&server);
    queue(&mut a, "b", "");
    queue(&mut a, "b", "");
    a.ok("DLOCK.RELEASE k a");
    assert_eq!(heard(&mut hears), "b granted");
    let sent: Vec<String> =
        stream.drain().iter().map(|c| String::from_utf8_lossy(&c[0]).to_string()).collect();
    assert_eq!(sent, ["SELECT", "DLOCK._SET"]);
}

#[each_server]
fn a_position_and_its_grant_survive_a_lost_connection(kind: &ServerKind) {
    let (server, mut a, _) = scene(kind);
    let ask = ["DLOCK.ACQUIRE", "k", "b", "600000", "QUEUE", "500000", "BLOCK", "0"];
    let mut b = server.connect();
    b.send(&ask);
    until("b waits", || server.info("dlock_waiting") == "1");
    drop(b);
    until("the connection is closed", || server.info("dlock_waiting") == "0");
    assert_eq!(tokens(&mut a, "k"), ["b"]);
    // The connection closes in the turn of the grant: the grant stays, and can be claimed.
    let mut b = server.connect();
    let kill = format!("CLIENT KILL ID {}", b.client_id());
    b.send(&ask);
    until("b waits", || server.info("dlock_waiting") == "1");
    assert_eq!(a.say_together(&["DLOCK.RELEASE k a", &kill]), [Value::Int(1), Value::Int(1)]);
    until("the lease is that of the position", || (1..=500_000).contains(&a.ok("DLOCK.PTTL k b").int()));
    assert_eq!(holders(&mut a, "k"), ["b"]);
    assert!(a.ok("DLOCK.ACQUIRE k b 600000").int() > 0);
    assert!(a.ok("DLOCK.PTTL k b").int() > 500_000);
}
