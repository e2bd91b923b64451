//! The wait queue: first come, first served; a handoff in the step that frees the lock.

use dlock_testkit::queue::{granted, holders, waiter};
use dlock_testkit::{Events, Server, ServerKind, Stream, Value, each_server, until};

#[each_server]
fn a_newcomer_never_overtakes_the_queue(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    // A sharer would fit next to a, but b waits.
    assert_eq!(a.say("DLOCK.ACQUIRE k c 30000 SHARED"), Value::Nil);
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
    let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 SHARED BLOCK 0");
    // Sent in one batch with the release: b has the lock before the server reads the newcomer.
    let mut e = server.connect();
    e.send_batch(&[&["DLOCK.RELEASE", "k", "a"], &["DLOCK.ACQUIRE", "k", "e", "30000"]]);
    assert_eq!((e.read(), e.read()), (1.into(), Value::Nil));
    granted(&mut b);
    assert_eq!(b.say("DLOCK.RELEASE k b"), 1);
    // Consecutive sharers are granted together.
    assert!(granted(&mut c) < granted(&mut d));
    assert_eq!(holders(&mut a, "k"), ["c", "d"]);
}

#[each_server]
fn expiry_grants_to_the_head_of_the_queue(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut a = server.connect();
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    let first = a.ok("DLOCK.ACQUIRE k a 2000").int();
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    assert!(granted(&mut b) > first);
    assert_eq!(a.say("DLOCK.RELEASE k a"), 0);
    let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
    assert_eq!(told, ["dlock.acquire", "dlock.expired", "dlock.acquire"], "never free in between");
}

#[each_server]
fn commands_behind_a_blocked_acquire_run_after_it(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = server.connect();
    b.send_batch(&[
        &["DLOCK.ACQUIRE", "k", "b", "30000", "BLOCK", "0"][..],
        &["DLOCK.RELEASE", "k", "b"],
        &["PING"],
    ]);
    until("b waits", || server.info("dlock_waiting") == "1");
    a.ok("DLOCK.RELEASE k a");
    granted(&mut b);
    assert_eq!(b.read(), 1);
    assert_eq!(b.read(), "PONG");
}

#[each_server]
fn the_handoff_is_replicated_and_the_queue_is_not(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut stream = Stream::of(&server);
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 1000");
    assert_eq!(c.read(), Value::Nil);
    a.ok("DLOCK.RELEASE k a");
    granted(&mut b);
    let sent: Vec<String> =
        stream.drain().iter().map(|c| String::from_utf8_lossy(&c[0]).to_string()).collect();
    assert_eq!(sent, ["SELECT", "DLOCK._SET"], "one effect for the release and the grant");
    let replica = Server::start(kind);
    replica.replicate(&server);
    assert_eq!(holders(&mut replica.connect(), "k"), ["b"]);
}

/// More waiters than one event-loop turn grants: the others follow, ahead of new requests.
#[each_server]
fn a_large_row_of_sharers_is_granted_together_and_not_overtaken(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 600000");
    for n in 0..600 {
        assert_eq!(a.ok(&format!("DLOCK.ACQUIRE k t{n} 600000 SHARED QUEUE 600000")), Value::Nil);
    }
    let newcomer = "DLOCK.ACQUIRE k new 600000 SHARED";
    assert_eq!(a.say_together(&["DLOCK.RELEASE k a", newcomer]), [Value::Int(1), Value::Nil]);
    until("all are let in", || server.info("dlock_queued") == "0");
    assert_eq!(server.info("dlock_holders"), "600");
    assert!(a.ok(newcomer).int() > 0);
}
