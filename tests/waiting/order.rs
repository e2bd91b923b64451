//! The wait queue: first come, first served. The release that frees the lock grants it to the head of the
//! queue in the same step (a handoff).

use dlock_testkit::queue::{granted, holders, waiter};
use dlock_testkit::{Server, ServerKind, Stream, Value, each_server, line, until};

#[each_server]
fn the_handoff_is_replicated_and_the_queue_is_not(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 30000");
    let mut stream = Stream::of(&server);
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 30000 BLOCK 0");
    let mut c = server.connect();
    c.send(&["DLOCK.ACQUIRE", "k", "c", "30000", "BLOCK", "300"]);
    // The second request keeps the position of the first one, so `d` waits once.
    for _ in 0..2 {
        assert_eq!(a.ok("DLOCK.ACQUIRE k d 30000 QUEUE 30000"), Value::Nil);
    }
    assert_eq!((c.read(), server.number("dlock_timeouts")), (Value::Nil, 1));
    a.ok("DLOCK.RELEASE k a");
    granted(&mut b);
    b.ok("DLOCK.RELEASE k b");
    assert_eq!(holders(&mut a, "k"), ["d"]);
    // A release and the grant that follows it are one command in the stream.
    let sent = stream.drain();
    let [select, first, second] = &sent[..] else { panic!("{sent:?}") };
    assert_eq!(line(select), "SELECT 0");
    assert_eq!([&first[0], &second[0]], [b"DLOCK._SET"; 2]);
    let replica = Server::start(kind);
    replica.replicate(&server);
    assert_eq!(holders(&mut replica.connect(), "k"), ["d"]);
}

/// The release grants the lock to at most 256 waiters. The other waiters get the lock later, but ahead of new
/// requests.
#[each_server]
fn many_waiting_sharers_are_all_granted_before_a_newcomer(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 600000");
    for n in 0..600 {
        assert_eq!(a.ok(&format!("DLOCK.ACQUIRE k t{n} 600000 SHARED QUEUE 600000")), Value::Nil);
    }
    let newcomer = "DLOCK.ACQUIRE k new 600000 SHARED";
    assert_eq!(a.say_together(&["DLOCK.RELEASE k a", newcomer]), [Value::Int(1), Value::Nil]);
    until("all sharers are granted the lock", || server.number("dlock_queued") == 0);
    assert_eq!(server.number("dlock_holders"), 600);
    assert!(a.ok(newcomer).int() > 0);
}
