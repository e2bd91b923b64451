//! BLOCK: which clients may wait, and the ends of a wait without a grant.

use dlock_testkit::queue::{granted, holders, until_no_waiters, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

/// Deterministic: the server sleeps past the limit in the same batch as the release, so both are due at once.
#[each_server]
fn a_timed_out_waiter_is_never_granted(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 1000");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 BLOCK 0");
    a.send_batch(&[&["DEBUG", "SLEEP", "1.1"][..], &["DLOCK.RELEASE", "k", "a"]]);
    assert_eq!(a.read(), "OK");
    assert_eq!(a.read(), 1);
    assert_eq!(b.read(), Value::Nil);
    granted(&mut c);
    assert_eq!(b.say("PING"), "PONG");
}

/// A disconnect, a timeout and CANCEL serve the waiters behind the ended wait.
#[each_server]
fn a_waiter_that_leaves_makes_way(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
    let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
    drop(b);
    granted(&mut c);
    let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 1000");
    let mut d = waiter(&server, "DLOCK.ACQUIRE k d 30000 SHARED BLOCK 0");
    granted(&mut d);
    assert_eq!(holders(&mut a, "k"), ["a", "c", "d"]);
    drop(b);
    let mut e = waiter(&server, "DLOCK.ACQUIRE k e 30000 BLOCK 0");
    let mut f = waiter(&server, "DLOCK.ACQUIRE k f 30000 SHARED BLOCK 0");
    assert_eq!(a.say("DLOCK.CANCEL k e"), 1);
    assert_eq!(e.read(), Value::Nil);
    granted(&mut f);
    until_no_waiters(&server);
    assert_eq!((server.info("dlock_waiters_gone"), server.info("dlock_cancels")), ("1".into(), "1".into()));
}

#[each_server]
fn a_full_queue_refuses_at_once(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.max-waiters-per-key 1").start();
    let mut a = server.connect();
    a.ok("DLOCK.ACQUIRE k a 30000");
    a.ok("DLOCK.ACQUIRE l a 30000");
    let _b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    assert!(a.say("DLOCK.ACQUIRE k c 30000 BLOCK 0").error().starts_with("QUEUEFULL "));
    assert_eq!(
        a.say("DLOCK.ACQUIRE k c 30000"),
        Value::Nil,
        "an ACQUIRE without a wait needs no room in the queue"
    );
    a.ok("CONFIG SET dlock.max-waiters 2");
    let _d = waiter(&server, "DLOCK.ACQUIRE l d 30000 BLOCK 0");
    a.ok("CONFIG SET dlock.max-waiters-per-key 10");
    assert!(a.say("DLOCK.ACQUIRE l c 30000 BLOCK 0").error().starts_with("QUEUEFULL "));
    assert_eq!(server.info("dlock_queue_refusals"), "2");
    assert_eq!(server.info("dlock_waiting"), "2");
}

/// Valkey 8.1 and later refuse to block a subscribed client for a module, and return a null pointer, which
/// crashed the server.
#[each_server]
fn a_subscribed_client_may_wait_where_its_server_allows_it(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
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
        until("the client waits", || server.info("dlock_waiting") == "1");
        a.ok("DLOCK.RELEASE k a");
        granted(&mut b);
    }
    assert_eq!(b.say("PING"), "PONG", "exactly one reply");
    until_no_waiters(&server);
}
