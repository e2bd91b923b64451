//! Keyspace events of locks: the server publishes each event on the keyspace channel and on the keyevent
//! channel, in order. A change of a hold's count or of the queue has no event.

use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, each_server, until};

/// Runs a command and returns its events as `key event`. Both channels must agree.
#[track_caller]
fn events_of(command: &str, events: &mut Events, conn: &mut Conn) -> Vec<String> {
    let _ = conn.say(command);
    let published = events.so_far();
    let pairs = published.chunks(2).map(|pair| {
        let [(keyspace, event), (keyevent, key)] = pair else { panic!("no pair: {published:?}") };
        assert_eq!(keyspace, &format!("__keyspace@0__:{key}"));
        assert_eq!(keyevent, &format!("__keyevent@0__:{event}"));
        format!("{key} {event}")
    });
    pairs.collect()
}

#[each_server]
fn keyspace_events_follow_the_changes_in_order(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__key*@0__:*");
    let mut conn = server.connect();
    let cases: [(&str, &[&str]); 27] = [
        ("DLOCK.ACQUIRE k t 600000", &["k dlock.acquire"]),
        ("DLOCK.ACQUIRE k other 600000", &[]),
        // A repeated ACQUIRE does not shorten the lease.
        ("DLOCK.ACQUIRE k t 1000", &[]),
        ("DLOCK.ACQUIRE k t 700000", &["k dlock.extend"]),
        ("DLOCK.ACQUIRE k t 1000 DEPTH 3", &[]),
        ("DLOCK.EXTEND k t 800000", &["k dlock.extend"]),
        ("DLOCK.EXTEND k other 800000", &[]),
        // A CONFIRM with a lower fence than the hold's changes nothing.
        ("DLOCK.CONFIRM k t 1 800000", &[]),
        ("DLOCK.RELEASE k t DEPTH 1", &[]),
        ("DLOCK.RELEASE k other", &[]),
        ("DLOCK.HOLDS k t", &[]),
        ("DLOCK.INSPECT k", &[]),
        ("DLOCK.ACQUIRE k s 600000 SHARED QUEUE 600000", &[]),
        ("DLOCK.ACQUIRE k t 600000 SHARED", &["k dlock.downgrade", "k dlock.acquire"]),
        ("DLOCK.BREAK k", &["k dlock.break", "k dlock.break", "k dlock.free", "k del"]),
        ("DLOCK.RELEASE k t ALL", &[]),
        ("DLOCK.ACQUIRE s a 600000 SHARED", &["s dlock.acquire"]),
        ("DLOCK.ACQUIRE s b 600000 SHARED", &["s dlock.acquire"]),
        ("DLOCK.RELEASE s a", &["s dlock.release"]),
        ("DLOCK.RELEASE s b", &["s dlock.release", "s dlock.free", "s del"]),
        ("DLOCK.BREAK s", &[]),
        ("DLOCK.ACQUIRE p a 600000 PERMITS 2", &["p dlock.acquire"]),
        ("DLOCK.ACQUIRE p b 600000 PERMITS 2", &["p dlock.acquire"]),
        ("DLOCK.ACQUIRE p c 600000 PERMITS 2", &[]),
        ("DLOCK.BREAK p", &["p dlock.break", "p dlock.break", "p dlock.free", "p del"]),
        // The server refuses a lease of 0. It accepts _SET, the command of replication, from no client.
        ("DLOCK.ACQUIRE k t 0", &[]),
        ("DLOCK._SET k x", &[]),
    ];
    for (command, expected) in cases {
        assert_eq!(events_of(command, &mut events, &mut conn), expected, "{command}");
    }
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    events.discard();
    let confirm = format!("DLOCK.CONFIRM k t {fence} 600000");
    assert_eq!(events_of(&confirm, &mut events, &mut conn), ["k dlock.extend"]);
}

/// The next hold replaces the expired one. A `dlock.free` event would wake listeners for a lock that is held.
#[each_server]
fn a_handoff_from_an_expired_hold_publishes_no_free_event(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyspace@0__:*");
    let mut conn = server.connect();
    let replies =
        conn.say_together(&["DLOCK.ACQUIRE k t 20", "DEBUG SLEEP 0.05", "DLOCK.ACQUIRE k u 600000"]);
    assert!(replies[2].int() > replies[0].int());
    assert_eq!(events.messages(), ["dlock.acquire", "dlock.expired", "dlock.acquire"]);
    // With DELAY, the lock has no holder for 30 ms after the lease has expired. Then the waiter is granted
    // the lock. No `dlock.free` event is published in between.
    conn.ok("DLOCK.ACQUIRE delayed t 600000 DELAY 30");
    let mut waiter = waiter(&server, "DLOCK.ACQUIRE delayed u 600000 BLOCK 0");
    conn.ok("DLOCK.EXTEND delayed t 20");
    granted(&mut waiter);
    assert_eq!(events.messages(), ["dlock.acquire", "dlock.extend", "dlock.expired", "dlock.acquire"]);
    // Without a waiter, the lock is free when the delay has ended.
    conn.ok("DLOCK.ACQUIRE alone t 20 DELAY 30");
    until("the delay has ended", || conn.ok("EXISTS alone") == 0);
    assert_eq!(events.messages(), ["dlock.acquire", "dlock.expired", "dlock.free", "del"]);
}

#[each_server]
fn notify_keyspace_events_selects_the_events(kind: &ServerKind) {
    for (configured, wanted) in [
        ("Kd", &["dlock.acquire", "dlock.release", "dlock.free"][..]),
        ("Kg", &["del"]),
        ("KA", &["dlock.acquire", "dlock.release", "dlock.free", "del"]),
    ] {
        let server = Server::options(kind).conf(&format!("notify-keyspace-events {configured}")).start();
        let mut events = Events::subscribe(&server, "__key*@0__:*");
        let mut conn = server.connect();
        conn.ok("DLOCK.ACQUIRE k t 600000");
        conn.ok("DLOCK.RELEASE k t");
        assert_eq!(events.messages(), wanted, "{configured}");
    }
}

#[each_server]
fn a_listener_can_acquire_the_lock_at_the_event(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyevent@0__:dlock.free");
    let (mut holder, mut other) = (server.connect(), server.connect());
    for _ in 0..20 {
        assert!(holder.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
        holder.send(&["DLOCK.RELEASE", "k", "t"]);
        assert_eq!(events.read(), ("__keyevent@0__:dlock.free".into(), "k".into()));
        assert!(other.ok("DLOCK.ACQUIRE k u 600000").int() > 0);
        assert_eq!(holder.read(), 1);
        assert_eq!(other.ok("DLOCK.RELEASE k u"), 1);
        assert_eq!(events.read().1, "k");
    }
}
