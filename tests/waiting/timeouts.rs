//! BLOCK: waits that end without a grant, the next command of a blocked client, and waits of subscribed
//! clients.

use dlock_testkit::queue::{granted, holders, until_no_waiters, waiter};
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

/// The first wait of b ends by a disconnect, the second by a timeout. The wait of e ends by CANCEL.
#[each_server]
fn the_end_of_a_wait_serves_the_waiters_behind_it(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000 SHARED");
    let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 30000 SHARED BLOCK 0");
    drop(b);
    granted(&mut c);
    let b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 3000");
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
    assert_eq!(server.numbers(["dlock_waiters_gone", "dlock_cancels"]), [1, 1]);
}

#[each_server]
fn commands_behind_a_blocked_acquire_run_after_it(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = server.connect();
    let acquire = ["DLOCK.ACQUIRE", "k", "b", "30000", "BLOCK", "0"];
    b.send_batch(&[&acquire[..], &["DLOCK.RELEASE", "k", "b"], &["PING"]]);
    until("b waits", || server.number("dlock_waiting") == 1);
    a.ok("DLOCK.RELEASE k a");
    granted(&mut b);
    assert_eq!((b.read(), b.read()), (1.into(), Value::Simple("PONG".into())));
}

/// Valkey 8.1 and later do not block a subscribed client for a module, but return a null pointer. This used
/// to crash the server.
#[each_server]
fn a_subscribed_client_may_wait_where_its_server_allows_it(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut b = server.subscriber("channel");
    b.send(&["DLOCK.ACQUIRE", "k", "b", "30000", "BLOCK", "0"]);
    if kind.is_valkey && kind.is_at_least(8, 1) {
        let refused = b.read();
        assert!(refused.error().contains("subscribed"), "{refused:?}");
        a.ok("DLOCK.RELEASE k a");
    } else {
        until("b waits", || server.number("dlock_waiting") == 1);
        a.ok("DLOCK.RELEASE k a");
        granted(&mut b);
    }
    assert_eq!(b.say("PING"), "PONG", "exactly one reply");
    until_no_waiters(&server);
}
