//! The wait queue: first come first served, a handoff in the step that frees the lock, one outcome for each
//! waiter.

use dlock_testkit::queue::{granted, holders, nobody_waits, tokens, waiter};
use dlock_testkit::{Events, Server, ServerKind, Stream, Value, each_server, until};

#[each_server]
fn release_grants_to_the_head_of_the_queue(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    let first = a.ok("DLOCK.ACQUIRE k a 30000").int();
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 10000");
    assert_eq!(tokens(&mut a, "k"), ["b", "c"]);
    assert_eq!(a.say("DLOCK.RELEASE k a"), 1);
    let second = granted(&mut b);
    assert_eq!(holders(&mut a, "k"), ["b"]);
    assert_eq!(tokens(&mut a, "k"), ["c"]);
    assert_eq!(b.say("DLOCK.RELEASE k b"), 1);
    let third = granted(&mut c);
    assert!(first < second && second < third);
    assert_eq!(c.say("DLOCK.RELEASE k c"), 1);
    assert_eq!(a.say("EXISTS k"), 0);
    nobody_waits(&server);
    assert_eq!(server.info("dlock_handoffs"), "2");
}

#[each_server]
fn a_newcomer_never_overtakes_the_queue(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    // A sharer would fit next to a, but b waits.
    assert_eq!(a.say("DLOCK.ACQUIRE k c 30000 SHARED"), Value::Nil);
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
    let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 SHARED BLOCK 0");
    // In one batch with the release: the lock is b's before the newcomer is read.
    let mut e = server.connect();
    e.send_batch(&[&["DLOCK.RELEASE", "k", "a"], &["DLOCK.ACQUIRE", "k", "e", "30000"]]);
    assert_eq!((e.read(), e.read()), (1.into(), Value::Nil));
    granted(&mut b);
    assert_eq!(b.say("DLOCK.RELEASE k b"), 1);
    // Sharers in a row are let in together.
    assert!(granted(&mut c) < granted(&mut d));
    assert_eq!(holders(&mut a, "k"), ["c", "d"]);
}

#[each_server]
fn expiry_grants_to_the_head_of_the_queue(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut a = server.connect();
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    let first = a.ok("DLOCK.ACQUIRE k a 150").int();
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    assert!(granted(&mut b) > first);
    assert_eq!(a.say("DLOCK.RELEASE k a"), 0);
    let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
    assert_eq!(told, ["dlock.acquire", "dlock.expired", "dlock.acquire"], "never free in between");
}

#[each_server]
fn waiters_and_inspect_show_the_queue(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let _b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0 LABEL nightly");
    let _c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 20000");
    let _d = waiter(&server, "DLOCK.ACQUIRE k d 30000 PERMITS 2 BLOCK 20000");
    let queue = a.ok("DLOCK.WAITERS k COUNT 2");
    let [b, c] = queue.items() else { panic!("two were asked for: {queue:?}") };
    assert_eq!((b.field("token"), b.field("mode")), (&"b".into(), &"exclusive".into()));
    assert_eq!((b.field("left"), b.field("label")), (&(-1).into(), &"nightly".into()));
    assert!(b.field("waited").int() >= 0 && b.field("client").int() > 0);
    assert_eq!((c.field("token"), c.field("mode")), (&"c".into(), &"shared".into()));
    assert!((1..=20000).contains(&c.field("left").int()));
    assert_eq!(a.ok("DLOCK.WAITERS k").items().len(), 3);
    assert_eq!(a.ok("DLOCK.INSPECT k").field("waiters"), &3);
    assert_eq!(server.info("dlock_waiting"), "3");
    assert_eq!(a.ok("DLOCK.WAITERS free").items().len(), 0);
    a.hello3();
    assert_eq!(a.ok("DLOCK.WAITERS k").items()[2].field("mode"), &"permits");
}

#[each_server]
fn a_grant_answers_every_acquire_of_its_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b1 = waiter(&server, "DLOCK.ACQUIRE k b 10000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
    let mut b2 = waiter(&server, "DLOCK.ACQUIRE k b 20000 BLOCK 0");
    a.ok("DLOCK.RELEASE k a");
    assert_eq!(granted(&mut b1), granted(&mut b2));
    assert_eq!(a.say("DLOCK.HOLDS k b"), 1);
    assert!(a.ok("DLOCK.PTTL k b").int() > 10000, "the longer lease counts");
    assert_eq!(tokens(&mut a, "k"), ["c"]);
    a.ok("DLOCK.RELEASE k b");
    granted(&mut c);
}

#[each_server]
fn release_in_a_transaction_or_a_script_grants_to_the_head(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
    a.ok("MULTI");
    a.ok("DLOCK.RELEASE k a");
    a.ok("DLOCK.HOLDS k b");
    assert_eq!(a.ok("EXEC").items(), [Value::Int(1), Value::Int(1)]);
    granted(&mut b);
    let script = "return redis.call('DLOCK.RELEASE', KEYS[1], 'b')";
    assert_eq!(a.call(&["EVAL", script, "1", "k"]), 1);
    granted(&mut c);
}

#[each_server]
fn commands_behind_a_blocked_acquire_run_after_it(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
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
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut stream = Stream::of(&server);
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 40");
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

/// More than a turn of the event loop lets in: the others follow, ahead of whoever comes meanwhile.
#[each_server]
fn a_large_row_of_sharers_is_granted_together_and_not_overtaken(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
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

#[each_server]
fn a_wait_for_another_permit_limit_is_kept_until_its_turn(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    let fence = a.ok("DLOCK.ACQUIRE k holder 600000 PERMITS 1").int();
    assert_eq!(a.ok("DLOCK.ACQUIRE k sharer 600000 SHARED QUEUE 600000"), Value::Nil);
    let other = "DLOCK.ACQUIRE k other 600000 PERMITS 1 QUEUE 600000";
    assert_eq!(a.ok(other), Value::Nil);
    a.ok("DLOCK.RELEASE k holder");
    a.ok("DLOCK.RELEASE k sharer");
    assert!(a.ok(other).int() > fence);
    let two = "DLOCK.ACQUIRE k two 600000 PERMITS 2 QUEUE 600000";
    assert!(a.say(two).error().contains("PERMITS 1"), "a newcomer");
    // It came while nobody held permits, and comes again while somebody does.
    a.ok("DLOCK.RELEASE k other");
    a.ok("DLOCK.ACQUIRE k holder 600000");
    a.ok("DLOCK.ACQUIRE k one 600000 PERMITS 1 QUEUE 600000");
    a.ok("DLOCK.ACQUIRE k sharer 600000 SHARED QUEUE 600000");
    assert_eq!(a.ok(two), Value::Nil);
    a.ok("DLOCK.RELEASE k holder");
    assert_eq!(a.ok(two), Value::Nil, "the position is kept");
    a.ok("DLOCK.RELEASE k one");
    a.ok("DLOCK.RELEASE k sharer");
    assert!(a.ok(two).int() > fence);
}
