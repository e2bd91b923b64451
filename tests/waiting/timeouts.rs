//! BLOCK: who may wait, for how long, and what ends a wait without a grant.

use dlock_testkit::queue::{clients, granted, holders, nobody_waits, tokens, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

#[each_server]
fn a_wait_ends_with_its_timeout(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 60");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
    assert_eq!(b.read(), Value::Nil);
    assert_eq!(tokens(&mut a, "k"), ["c"]);
    assert_eq!(server.info("dlock_timeouts"), "1");
    assert_eq!(b.say("PING"), "PONG");
    a.ok("DLOCK.RELEASE k a");
    granted(&mut c);
}

/// Deterministic: the server sleeps past the limit in the same batch as the release, so both are due at once.
#[each_server]
fn a_timed_out_waiter_is_never_granted(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 300");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
    a.send_batch(&[&["DEBUG", "SLEEP", "0.4"][..], &["DLOCK.RELEASE", "k", "a"]]);
    assert_eq!(a.read(), "OK");
    assert_eq!(a.read(), 1);
    assert_eq!(b.read(), Value::Nil);
    granted(&mut c);
    assert_eq!(b.say("PING"), "PONG");
}

#[each_server]
fn cancel_ends_a_wait_by_token_or_by_client(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut b2 = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
    let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 BLOCK 0");
    let last = clients(&mut a, "k")[3];
    assert_eq!(a.say("DLOCK.CANCEL k nobody"), 0);
    assert_eq!(a.say(&format!("DLOCK.CANCEL other CLIENT {last}")), 0);
    assert_eq!(a.say(&format!("DLOCK.CANCEL k CLIENT {last}")), 1);
    assert_eq!(d.read(), Value::Nil);
    assert_eq!(a.say("DLOCK.CANCEL k b"), 2);
    assert_eq!((b.read(), b2.read()), (Value::Nil, Value::Nil));
    // What stood in c's way is gone.
    granted(&mut c);
    assert_eq!(holders(&mut a, "k"), ["a", "c"]);
    assert_eq!(server.info("dlock_cancels"), "3");
}

#[each_server]
fn release_removes_the_waiter_of_its_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    assert_eq!(a.say("DLOCK.RELEASE k b"), 0);
    assert_eq!(b.read(), Value::Nil);
    assert_eq!(a.say("DLOCK.RELEASE k b"), 0);
    nobody_waits(&server);
    assert_eq!(holders(&mut a, "k"), ["a"]);
}

/// Whoever leaves may have been what kept those behind waiting.
#[each_server]
fn a_disconnected_waiter_makes_way(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
    let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
    drop(b);
    granted(&mut c);
    let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 50");
    let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 SHARED BLOCK 0");
    granted(&mut d);
    assert_eq!(holders(&mut a, "k"), ["a", "c", "d"]);
    drop(b);
    nobody_waits(&server);
    assert_eq!(server.info("dlock_waiters_gone"), "1");
}

#[each_server]
fn block_tries_once_in_transactions_and_scripts(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    a.ok("MULTI");
    a.ok("DLOCK.ACQUIRE k b 30000 BLOCK 0");
    a.ok("DLOCK.ACQUIRE free b 30000 BLOCK 0");
    let done = a.ok("EXEC");
    assert_eq!(done.items()[0], Value::Nil);
    assert!(done.items()[1].int() > 0);
    let script = "return redis.call('DLOCK.ACQUIRE', KEYS[1], 'b', '30000', 'BLOCK', '0')";
    assert_eq!(a.call(&["EVAL", script, "1", "k"]), Value::Nil);
    assert!(a.call(&["EVAL", script, "1", "other"]).int() > 0);
    nobody_waits(&server);
}

#[each_server]
fn a_full_queue_refuses_at_once(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.max-waiters-per-key 1").start();
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    a.ok("DLOCK.ACQUIRE l a 30000");
    let _b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    assert!(a.say("DLOCK.ACQUIRE k c 30000 BLOCK 0").error().starts_with("QUEUEFULL "));
    assert_eq!(a.say("DLOCK.ACQUIRE k c 30000"), Value::Nil, "one try needs no room in the queue");
    a.ok("CONFIG SET dlock.max-waiters 2");
    let _d = waiter(&server, "DLOCK.ACQUIRE l d 30000 BLOCK 0");
    a.ok("CONFIG SET dlock.max-waiters-per-key 10");
    assert!(a.say("DLOCK.ACQUIRE l c 30000 BLOCK 0").error().starts_with("QUEUEFULL "));
    assert_eq!(server.info("dlock_queue_refusals"), "2");
    assert_eq!(server.info("dlock_waiting"), "2");
}

#[each_server]
fn a_cycle_is_refused_and_named(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE x a 30000");
    conn.ok("DLOCK.ACQUIRE y b 30000");
    conn.ok("DLOCK.ACQUIRE z c 30000");
    let mut a = waiter(&server, "DLOCK.ACQUIRE y a 30000 BLOCK 0");
    let _b = waiter(&server, "DLOCK.ACQUIRE z b 30000 BLOCK 0");
    assert_eq!(conn.say("DLOCK.ACQUIRE x c 30000 BLOCK 0").error(), "DEADLOCK c -> a -> b -> c");
    assert_eq!(server.info("dlock_waiting"), "2", "nothing was queued");
    assert_eq!(conn.say("DLOCK.ACQUIRE x c 30000"), Value::Nil, "one try does not wait");
    assert_eq!(server.info("dlock_deadlocks"), "1");
    conn.ok("DLOCK.RELEASE y b");
    granted(&mut a);
}

/// Valkey 8.1 and later let no subscribed client wait for a module, and say so by a null pointer. It crashed
/// the server.
#[each_server]
fn a_subscribed_client_may_wait_where_its_server_allows_it(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = server.connect();
    b.hello3();
    b.send(&["SUBSCRIBE", "channel"]);
    assert!(matches!(b.read(), Value::Push(_)));
    b.send(&["DLOCK.ACQUIRE", "k", "b", "30000", "BLOCK", "0"]);
    if kind.is_valkey && kind.is_at_least(8, 1) {
        let refused = b.read();
        assert!(refused.error().contains("subscribed"), "{refused:?}");
        a.ok("DLOCK.RELEASE k a");
    } else {
        until("it waits", || server.info("dlock_waiting") == "1");
        a.ok("DLOCK.RELEASE k a");
        granted(&mut b);
    }
    assert_eq!(b.say("PING"), "PONG", "one reply, no more");
    nobody_waits(&server);
}
