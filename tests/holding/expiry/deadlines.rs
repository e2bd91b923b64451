//! Deadlines of leases and the events of their end.

use std::time::{Duration, Instant};

use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

#[each_server]
#[allow(clippy::disallowed_methods, reason = "the promise is about time as the holder sees it")]
fn a_lease_lasts_at_least_its_ttl(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    for ttl in [1, 30, 200] {
        // A lower bound: a slow machine only makes it longer.
        let sent = Instant::now();
        assert!(conn.ok(&format!("DLOCK.ACQUIRE k t {ttl}")).int() > 0);
        let taken = loop {
            let before = Instant::now();
            if conn.ok("DLOCK.HOLDS k t") == 0 {
                break Instant::now() - sent;
            }
            assert!(before - sent < Duration::from_secs(10), "it never ends");
        };
        assert!(taken >= Duration::from_millis(ttl), "over after {taken:?} instead of {ttl} ms");
    }
}

#[each_server]
fn an_expired_hold_is_removed_in_the_background(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__key*__:*");
    let mut conn = server.connect();
    let answer = conn.ok("DLOCK.ACQUIRE k t 30");
    assert!(answer.int() > 0);
    let told: Vec<(String, String)> = (0..8).map(|_| events.read()).collect();
    let wanted = ["dlock.acquire", "dlock.expired", "dlock.free", "del"].into_iter().flat_map(|event| {
        [("__keyspace@0__:k".to_string(), event.to_string()), (format!("__keyevent@0__:{event}"), "k".into())]
    });
    assert_eq!(told, wanted.collect::<Vec<_>>());
    events.none();
    assert_eq!(conn.ok("EXISTS k"), 0);
    assert_eq!((server.info("dlock_expiries"), server.info("dlock_held")), ("1".into(), "0".into()));
}

#[each_server]
fn the_key_has_no_native_ttl(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    let nothing = |conn: &mut dlock_testkit::Conn| {
        for read in ["TTL k", "PTTL k", "EXPIRETIME k"] {
            assert_eq!(conn.ok(read), -1, "{read}");
        }
    };
    nothing(&mut conn);
    conn.ok("DLOCK.EXTEND k t 700000");
    conn.ok("DLOCK.ACQUIRE k t 800000 REENTRANT");
    nothing(&mut conn);
    assert!(conn.ok("INFO keyspace").text().contains("keys=1,expires=0"));

    // Switches off native expiry, which must play no part.
    conn.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    conn.ok("DLOCK.EXTEND k t 1");
    until("the lease ends", || conn.ok("DBSIZE") == 0);
    assert_eq!((server.info("dlock_expiries"), server.info("expired_keys")), ("1".into(), "0".into()));
}

#[each_server]
fn a_changed_lease_ends_at_its_new_deadline(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    // The new lease is shorter than the one that set the timer, and in another database.
    conn.ok("DLOCK.ACQUIRE far t 600000");
    conn.ok("SELECT 5");
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!(conn.ok("DLOCK.EXTEND k t 20"), 1);
    until("the shortened lease ends", || conn.ok("EXISTS k") == 0);

    // The lease is longer now: the old deadline passes without an effect.
    for longer in ["DLOCK.EXTEND k t 600000", "DLOCK.ACQUIRE k t 600000", "DLOCK.CONFIRM k t 1 600000"] {
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        let longer = longer.replace(" 1 ", &format!(" {fence} "));
        let answers = conn.say_together(&["DLOCK.EXTEND k t 50", &longer, "DLOCK.ACQUIRE mark t 60"]);
        assert!(answers.iter().all(|answer| answer.int() > 0), "{answers:?}");
        until("the old deadline is past", || conn.ok("EXISTS mark") == 0);
        assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &fence, "{longer}");
        conn.ok("DLOCK.BREAK k");
    }
    conn.ok("SELECT 0");
    assert_eq!(conn.ok("DLOCK.HOLDS far t"), 1);
}

#[each_server]
fn the_deadline_of_a_released_hold_does_not_end_the_next(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t 40");
    conn.ok("DLOCK.RELEASE k t");
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    conn.ok("DLOCK.ACQUIRE mark t 60");
    until("the old deadline is past", || conn.ok("EXISTS mark") == 0);
    assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &fence);
}

#[each_server]
fn a_thousand_leases_due_together_all_end(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyevent@0__:dlock.expired");
    let mut conn = server.connect();
    let keys: Vec<String> = (0..1_000).map(|n| format!("k{n:03}")).collect();
    let grants: Vec<String> = keys.iter().map(|key| format!("DLOCK.ACQUIRE {key} t 500")).collect();
    let commands: Vec<&str> = grants.iter().map(String::as_str).chain(["DEBUG SLEEP 0.6"]).collect();
    let answers = conn.say_together(&commands);
    assert!(answers[..1_000].iter().all(|answer| answer.int() > 0));
    until("all of them have ended", || server.info("dlock_held") == "0");
    assert_eq!(conn.ok("DBSIZE"), 0);
    assert_eq!((server.info("dlock_expiries"), server.info("dlock_holders")), ("1000".into(), "0".into()));
    let mut told: Vec<String> = events.so_far().into_iter().map(|(_, key)| key).collect();
    told.sort();
    assert!(told == keys, "{} events", told.len());
}

#[each_server]
fn leases_end_in_the_order_of_their_deadlines(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyevent@*__:dlock.expired");
    let mut conn = server.connect();
    // The deadlines differ enough to fix the order, and all are due when the background job runs.
    let answers = conn.say_together(&[
        "SELECT 3",
        "DLOCK.ACQUIRE b t 200",
        "SELECT 0",
        "DLOCK.ACQUIRE d t 400",
        "DLOCK.ACQUIRE c t 300",
        "SELECT 1",
        "DLOCK.ACQUIRE a t 100",
        "SELECT 9",
        "DLOCK.ACQUIRE e t 500",
        "DEBUG SLEEP 0.6",
    ]);
    assert_eq!(answers.iter().filter(|answer| matches!(answer, Value::Int(_))).count(), 5);
    let told: Vec<String> = (0..5).map(|_| events.read().1).collect();
    assert_eq!(told, ["a", "b", "c", "d", "e"]);
}

#[each_server]
fn watch_and_client_side_caching_see_the_end_of_a_lease(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut watcher, mut cache, mut conn) = (server.connect(), server.connect(), server.connect());
    cache.hello3();
    cache.ok("CLIENT TRACKING ON");
    conn.ok("DLOCK.ACQUIRE k t 2000");
    assert_eq!(cache.ok("DLOCK.HOLDS k t"), 1);
    watcher.ok("WATCH k");
    until("the lease ends", || conn.ok("EXISTS k") == 0);
    watcher.ok("MULTI");
    watcher.ok("PING");
    assert_eq!(watcher.ok("EXEC"), Value::Nil);
    assert_eq!(cache.read(), Value::Push(vec!["invalidate".into(), vec!["k"].into()]));
}
