//! Keyspace events: both channels, in order, and only for real changes.

use dlock_testkit::{Conn, Events, Server, ServerKind, each_server};

/// Runs a command and returns its events as `key event`. Both channels must agree.
#[track_caller]
fn told(events: &mut Events, conn: &mut Conn, command: &str) -> Vec<String> {
    let _ = conn.say(command);
    let told = events.so_far();
    let pairs = told.chunks(2).map(|pair| {
        let [(keyspace, event), (keyevent, key)] = pair else { panic!("half an event: {told:?}") };
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
    let cases: [(&str, &[&str]); 25] = [
        ("DLOCK.ACQUIRE k t 600000", &["k dlock.acquire"]),
        ("DLOCK.ACQUIRE k other 600000", &[]),
        ("DLOCK.ACQUIRE k t 1000", &[]),
        ("DLOCK.ACQUIRE k t 700000", &["k dlock.extend"]),
        ("DLOCK.ACQUIRE k t 1000 DEPTH 3", &[]),
        ("DLOCK.EXTEND k t 800000", &["k dlock.extend"]),
        ("DLOCK.EXTEND k other 800000", &[]),
        ("DLOCK.CONFIRM k t 1 800000", &[]),
        ("DLOCK.RELEASE k t", &[]),
        ("DLOCK.RELEASE k other", &[]),
        ("DLOCK.HOLDS k t", &[]),
        ("DLOCK.INSPECT k", &[]),
        ("DLOCK.RELEASE k t ALL", &["k dlock.release", "k dlock.free", "k del"]),
        ("DLOCK.RELEASE k t ALL", &[]),
        ("DLOCK.ACQUIRE s a 600000 SHARED", &["s dlock.acquire"]),
        ("DLOCK.ACQUIRE s b 600000 SHARED", &["s dlock.acquire"]),
        ("DLOCK.RELEASE s a", &["s dlock.release"]),
        ("DLOCK.BREAK s", &["s dlock.break", "s dlock.free", "s del"]),
        ("DLOCK.BREAK s", &[]),
        ("DLOCK.ACQUIRE p a 600000 PERMITS 2", &["p dlock.acquire"]),
        ("DLOCK.ACQUIRE p b 600000 PERMITS 2", &["p dlock.acquire"]),
        ("DLOCK.ACQUIRE p c 600000 PERMITS 2", &[]),
        ("DLOCK.BREAK p", &["p dlock.break", "p dlock.break", "p dlock.free", "p del"]),
        ("DLOCK.ACQUIRE k t 0", &[]),
        ("DLOCK._SET k x", &[]),
    ];
    for (command, wanted) in cases {
        assert_eq!(told(&mut events, &mut conn, command), wanted, "{command}");
    }
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    events.so_far();
    let confirm = format!("DLOCK.CONFIRM k t {fence} 600000");
    assert_eq!(told(&mut events, &mut conn, &confirm), ["k dlock.extend"]);
}

#[each_server]
fn the_event_of_a_grant_follows_that_of_the_expired_hold(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    let mut conn = server.connect();
    let answers =
        conn.say_together(&["DLOCK.ACQUIRE k t 20", "DEBUG SLEEP 0.05", "DLOCK.ACQUIRE k u 600000"]);
    assert!(answers[2].int() > answers[0].int());
    let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
    // The lock is never free in between, so no listener is woken for nothing.
    assert_eq!(told, ["dlock.acquire", "dlock.expired", "dlock.acquire"]);
}

#[each_server]
fn events_are_published_in_the_channels_of_their_database(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyspace@*");
    let mut conn = server.connect();
    conn.ok("SELECT 11");
    conn.ok("DLOCK.ACQUIRE k t 20");
    let told: Vec<(String, String)> = (0..4).map(|_| events.read()).collect();
    let wanted = ["dlock.acquire", "dlock.expired", "dlock.free", "del"];
    assert_eq!(told, wanted.map(|event| ("__keyspace@11__:k".to_string(), event.to_string())));
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
        let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
        assert_eq!(told, wanted, "{configured}");
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
