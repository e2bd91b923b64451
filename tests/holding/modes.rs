//! Shared holds, permits, upgrade, downgrade and DELAY, where replicas, events or a crash take part.

use dlock_testkit::queue::{granted, holders, tokens, waiter};
use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

/// A shared request once downgraded the hold: the writer shared a lock that it believed to hold alone.
#[each_server]
fn a_shared_request_of_the_exclusive_holder_keeps_its_mode(kind: &ServerKind) {
    let (server, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&server);
    let mut c = server.connect();
    let fence = c.ok("DLOCK.ACQUIRE k w 30000 REENTRANT").int();
    let mut s = waiter(&server, "DLOCK.ACQUIRE k s 30000 SHARED BLOCK 0");
    assert_eq!(c.say("DLOCK.ACQUIRE k w 30000 SHARED REENTRANT"), fence);
    assert_eq!(c.say("DLOCK.ACQUIRE k w 30000 SHARED DEPTH 3"), fence);
    assert_eq!(c.say("DLOCK.HOLDS k w"), 3);
    assert_eq!(c.say("DLOCK.RELEASE k w DEPTH 1"), 2);
    assert_eq!(c.say("DLOCK.ACQUIRE k w 30000 SHARED REENTRANT BLOCK 0"), fence);
    assert_eq!(c.say("DLOCK.RELEASE k w"), 1);
    assert_eq!((holders(&mut c, "k"), tokens(&mut c, "k")), (vec!["w".into()], vec!["s".into()]));
    replica.wait_in_sync(&server);
    for at in [&server, &replica] {
        assert_eq!(at.connect().ok("DLOCK.INSPECT k").field("mode"), &"exclusive");
        assert_eq!(at.connect().say("DLOCK.HOLDS k w"), 1);
    }
    assert_eq!(c.say("DLOCK.RELEASE k w"), 1);
    granted(&mut s);
}

#[each_server]
fn a_downgrade_needs_a_count_of_one_and_is_announced(kind: &ServerKind) {
    let (server, mut c) = Server::connected(kind);
    let fence = c.ok("DLOCK.ACQUIRE k w 30000 DEPTH 2").int();
    let refused = c.say("DLOCK.ACQUIRE k w 30000 SHARED");
    assert!(refused.error().starts_with("ERR the token holds the lock exclusively with a count of 2"));
    assert_eq!((c.say("DLOCK.HOLDS k w"), c.say("DLOCK.ACQUIRE k s 30000 SHARED")), (2.into(), Value::Nil));
    assert_eq!(c.say("DLOCK.RELEASE k w"), 1);
    let mut events = Events::subscribe(&server, "__keyevent@0__:dlock.*");
    let mut s = waiter(&server, "DLOCK.ACQUIRE k s 30000 SHARED BLOCK 0");
    assert_eq!(c.say("DLOCK.ACQUIRE k w 30000 SHARED"), fence, "the same fence");
    assert!(granted(&mut s) > fence);
    let told: Vec<String> = events.so_far().into_iter().map(|(channel, _)| channel).collect();
    let told: Vec<&str> = told.iter().filter_map(|channel| channel.strip_prefix("__keyevent@0__:")).collect();
    assert_eq!(told.last_chunk(), Some(&["dlock.downgrade", "dlock.acquire"]));
}

#[each_server]
fn the_end_of_a_delay_serves_the_queue_or_frees_the_lock(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut c = server.connect();
    let mut events = Events::subscribe(&server, "__keyspace@0__:*");
    c.ok("DLOCK.ACQUIRE k a 20 DELAY 2000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    granted(&mut b);
    c.ok("DLOCK.ACQUIRE l a 20 DELAY 30");
    until("the key is gone", || c.ok("EXISTS l") == 0);
    let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
    let both = ["dlock.acquire", "dlock.expired", "dlock.acquire"];
    assert_eq!(told, [&both[..], &["dlock.acquire", "dlock.expired", "dlock.free"]].concat());
}

#[each_server]
fn shared_holds_and_delays_survive_a_crash(kind: &ServerKind) {
    let mut server = Server::options(kind).conf("appendonly yes").conf("appendfsync always").start();
    let mut c = server.connect();
    for token in ["a", "b", "c"] {
        c.ok(&format!("DLOCK.ACQUIRE k {token} 30000 SHARED"));
    }
    c.ok("DLOCK.RELEASE k b");
    c.ok("DLOCK.ACQUIRE s a 30000 PERMITS 2");
    c.ok("DLOCK.ACQUIRE d a 20 DELAY 60000");
    until("the lease has expired", || c.ok("DLOCK.HOLDS d a") == 0 && server.info("dlock_expiries") == "1");
    server.kill9();
    server.restart();
    let mut c = server.connect();
    assert_eq!(holders(&mut c, "k"), ["a", "c"]);
    assert_eq!(c.ok("DLOCK.INSPECT s").field("permits"), &2);
    assert_eq!(c.say("DLOCK.ACQUIRE d b 30000"), Value::Nil);
    assert!(c.ok("DLOCK.INSPECT d").field("delay").int() > 0);
}

/// Two sharers in one queue once counted as waiting for each other.
#[each_server]
fn waiters_that_are_granted_together_form_no_cycle(kind: &ServerKind) {
    let (server, mut c) = Server::connected(kind);
    for mode in ["SHARED", "PERMITS 2"] {
        c.ok("DLOCK.ACQUIRE k w 30000");
        c.ok("DLOCK.ACQUIRE k3 c 30000");
        let mut b = waiter(&server, &format!("DLOCK.ACQUIRE k b 30000 {mode} BLOCK 0"));
        let mut also = waiter(&server, &format!("DLOCK.ACQUIRE k c 30000 {mode} BLOCK 0"));
        let mut then = waiter(&server, "DLOCK.ACQUIRE k3 b 30000 BLOCK 0");
        c.ok("DLOCK.RELEASE k w");
        granted(&mut b);
        granted(&mut also);
        c.ok("DLOCK.RELEASE k3 c");
        granted(&mut then);
        for (key, token) in [("k", "b"), ("k", "c"), ("k3", "b")] {
            assert_eq!(c.say(&format!("DLOCK.RELEASE {key} {token}")), 1);
        }
    }
    assert_eq!(server.info("dlock_deadlocks"), "0");
}
