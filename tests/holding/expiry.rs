//! Expiry of leases: deadlines, their events, and commands that must not see an expired hold.

use std::fs;

use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

#[each_server]
fn an_expired_hold_is_removed_in_the_background(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__key*__:*");
    let mut conn = server.connect();
    // The events name the database of the lock.
    conn.ok("SELECT 11");
    conn.ok("DLOCK.ACQUIRE k t 30");
    let published: Vec<(String, String)> = (0..8).map(|_| events.read()).collect();
    let wanted = ["dlock.acquire", "dlock.expired", "dlock.free", "del"].into_iter().flat_map(|event| {
        [
            ("__keyspace@11__:k".to_string(), event.to_string()),
            (format!("__keyevent@11__:{event}"), "k".into()),
        ]
    });
    assert_eq!(published, wanted.collect::<Vec<_>>());
    events.assert_none();
    assert_eq!(conn.ok("EXISTS k"), 0);
    assert_eq!(server.numbers(["dlock_expiries", "dlock_held"]), [1, 0]);
}

#[each_server]
fn the_key_has_no_native_ttl(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    for command in
        ["DLOCK.ACQUIRE k t 600000", "DLOCK.EXTEND k t 700000", "DLOCK.ACQUIRE k t 800000 REENTRANT"]
    {
        conn.ok(command);
        for read in ["TTL k", "PTTL k", "EXPIRETIME k"] {
            assert_eq!(conn.ok(read), -1, "{read} after {command}");
        }
    }
    assert!(conn.ok("INFO keyspace").text().contains("keys=1,expires=0"));

    // Without native expiry, the lease ends all the same.
    conn.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    conn.ok("DLOCK.EXTEND k t 1");
    until("the lease ends", || conn.ok("DBSIZE") == 0);
    assert_eq!(server.numbers(["dlock_expiries", "expired_keys"]), [1, 0]);
}

/// Redis 7.0 computes the time of a module's next timer as an int of us, which ends at 35 minutes.
#[each_server]
fn the_server_sleeps_until_a_distant_deadline(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE far t 7200000");
    conn.ok("DLOCK.ACQUIRE k t 20");
    until("the timer has fired", || conn.ok("EXISTS k") == 0);
    let status = format!("/proc/{0}/task/{0}/status", server.pid());
    // How often the main thread has waited for something.
    let waits = || -> u64 {
        let status = fs::read_to_string(&status).expect("the server runs");
        let line = status.lines().find_map(|line| line.strip_prefix("voluntary_ctxt_switches:"));
        line.and_then(|count| count.trim().parse().ok()).expect("a number")
    };
    let before = waits();
    until("the server waits for events", || waits() > before + 1);
}

#[each_server]
fn a_changed_lease_ends_at_its_new_deadline(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    // The timer is set for the lease of `far`. The shortened lease of `k`, in another database, ends earlier.
    conn.ok("DLOCK.ACQUIRE far t 600000");
    conn.ok("SELECT 5");
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!(conn.ok("DLOCK.EXTEND k t 20"), 1);
    until("the shortened lease ends", || conn.ok("EXISTS k") == 0);

    // The first three changes replace a lease of 50 ms by a longer one. After the RELEASE, the next ACQUIRE
    // begins a new hold. In each case, the deadline of the replaced lease has no effect. The key `mark` shows
    // that this deadline has passed: the lease of `mark` ends later.
    for change in [
        "DLOCK.EXTEND k t 600000",
        "DLOCK.ACQUIRE k t 600000",
        "DLOCK.CONFIRM k t FENCE 600000",
        "DLOCK.RELEASE k t",
    ] {
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        let change = change.replace("FENCE", &fence.to_string());
        let replies = conn.say_together(&[
            "DLOCK.EXTEND k t 50",
            &change,
            "DLOCK.ACQUIRE k t 600000",
            "DLOCK.ACQUIRE mark t 60",
        ]);
        assert!(replies.iter().all(|reply| reply.int() > 0), "{replies:?}");
        until("the old deadline has passed", || conn.ok("EXISTS mark") == 0);
        assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &replies[2], "{change}");
        conn.ok("DLOCK.BREAK k");
    }
    conn.ok("SELECT 0");
    assert_eq!(conn.ok("DLOCK.HOLDS far t"), 1);
}

#[each_server]
fn a_thousand_leases_due_together_all_end(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyevent@0__:dlock.expired");
    let mut conn = server.connect();
    let keys: Vec<String> = (0..1_000).map(|n| format!("k{n:03}")).collect();
    let mut commands: Vec<String> = keys.iter().map(|key| format!("DLOCK.ACQUIRE {key} t 500")).collect();
    commands.push("DEBUG SLEEP 0.6".into());
    let replies = conn.say_together(&commands);
    assert!(replies[..1_000].iter().all(|reply| reply.int() > 0));
    until("all leases have ended", || server.number("dlock_held") == 0);
    assert_eq!(conn.ok("DBSIZE"), 0);
    assert_eq!(server.numbers(["dlock_expiries", "dlock_holders"]), [1_000, 0]);
    let mut expired = events.messages();
    expired.sort();
    assert!(expired == keys, "{} events", expired.len());
}

#[each_server]
fn leases_end_in_the_order_of_their_deadlines(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut events = Events::subscribe(&server, "__keyevent@*__:dlock.expired");
    let mut conn = server.connect();
    // The deadlines are 100 ms apart, so their order is certain. All have passed when the background job
    // runs.
    let replies = conn.say_together(&[
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
    assert_eq!(replies.iter().filter(|reply| matches!(reply, Value::Int(_))).count(), 5);
    let expired: Vec<String> = (0..5).map(|_| events.read().1).collect();
    assert_eq!(expired, ["a", "b", "c", "d", "e"]);
}

#[each_server]
fn watch_reports_the_end_of_a_lease(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let mut watcher = server.connect();
    // In one write, so that the lease cannot end before the WATCH.
    let replies = watcher.say_together(&["DLOCK.ACQUIRE k t 20", "WATCH k"]);
    assert_eq!(replies[1], "OK");
    until("the lease ends", || conn.ok("EXISTS k") == 0);
    watcher.ok("MULTI");
    watcher.ok("PING");
    assert_eq!(watcher.ok("EXEC"), Value::Nil);
}

/// Acquires a lock and lets its lease expire. The key still exists, because commands in one write run in one
/// event-loop turn, in which the timer cannot fire.
const EXPIRED: [&str; 3] = ["DLOCK.ACQUIRE k t 20 DEPTH 2 LABEL host", "DEBUG SLEEP 0.05", "EXISTS k"];

#[each_server]
fn no_command_sees_an_expired_hold(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    for (command, reply) in [
        ("DLOCK.HOLDS k t", Value::Int(0)),
        ("DLOCK.PTTL k", Value::Int(-2)),
        ("DLOCK.PTTL k t", Value::Int(-2)),
        ("DLOCK.INSPECT k", Value::Nil),
        ("DLOCK.EXTEND k t 600000", Value::Int(0)),
        ("DLOCK.CONFIRM k t 1 600000", Value::Nil),
        ("DLOCK.RELEASE k t", Value::Int(0)),
        ("DLOCK.RELEASE k t ALL", Value::Int(0)),
        ("DLOCK.BREAK k", Value::Int(0)),
    ] {
        let replies = conn.say_together(&[&EXPIRED[..], &[command]].concat());
        assert!(replies[0].int() > 0);
        assert_eq!(replies[2], 1, "the expired hold is not removed before {command}");
        assert_eq!(replies[3], reply, "{command}");
        until("the background job ends the hold", || conn.ok("EXISTS k") == 0);
    }
    assert_eq!(server.numbers(["dlock_expiries", "dlock_releases", "dlock_breaks"]), [9, 0, 0]);
}

#[each_server]
fn acquire_grants_an_expired_lock_to_any_token(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    for token in ["other", "t"] {
        let acquire = format!("DLOCK.ACQUIRE k {token} 600000");
        let replies = conn.say_together(&[&EXPIRED[..], &[&acquire, "DLOCK.INSPECT k"]].concat());
        assert_eq!(replies[2], 1);
        let (first, second, lock) = (replies[0].int(), replies[3].int(), &replies[4]);
        assert!(second > first, "the new hold has a greater fence: {second} after {first}");
        let [hold] = lock.field("holders").items() else { panic!("{lock:?}") };
        assert_eq!((hold.field("token"), hold.field("fence")), (&token.into(), &second.into()));
        // The new hold has neither the count nor the label of the old one.
        assert_eq!((hold.field("count"), hold.field("label")), (&1.into(), &"".into()));
        conn.ok("DLOCK.BREAK k");
    }
}

#[each_server]
fn an_expired_hold_is_hidden_during_a_pause_of_writes_and_ended_after_it(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let replies = conn.say_together(&["DLOCK.ACQUIRE k t 50", "CLIENT PAUSE 60000 WRITE"]);
    assert!(replies[0].int() > 0);
    until("the lease has expired", || conn.ok("DLOCK.HOLDS k t") == 0);
    assert_eq!((conn.ok("DLOCK.PTTL k"), conn.ok("DLOCK.INSPECT k")), (Value::Int(-2), Value::Nil));
    assert_eq!(conn.ok("EXISTS k"), 1, "nothing is written in a pause");
    assert_eq!(server.number("dlock_expiries"), 0);

    let mut other = server.connect();
    other.send(&["DLOCK.ACQUIRE", "k", "other", "600000"]);
    // The PING gives the server time to read the ACQUIRE, which the pause postpones.
    conn.ok("PING");
    assert_eq!(conn.ok("CLIENT UNPAUSE"), "OK");
    assert!(other.read().int() > 0);
    assert_eq!(server.number("dlock_expiries"), 1);
}
