//! Replicas answer reads and change nothing by themselves.

use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

#[each_server]
fn a_replica_refuses_writes_and_answers_reads(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    let fence = master.connect().ok("DLOCK.ACQUIRE k t 600000 DEPTH 2 LABEL host").int();
    replica.wait_in_sync(&master);
    let mut conn = replica.connect();
    for write in [
        "DLOCK.ACQUIRE k t 600000",
        "DLOCK.ACQUIRE free t 600000 BLOCK 0",
        "DLOCK.RELEASE k t",
        "DLOCK.EXTEND k t 600000",
        "DLOCK.CONFIRM k t 1 600000",
        "DLOCK.CANCEL k t",
        "DLOCK.BREAK k",
        "DLOCK._SET k x",
    ] {
        assert!(conn.say(write).error().starts_with("READONLY"), "{write}");
    }
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 2);
    assert!((540_000..=600_000).contains(&conn.ok("DLOCK.PTTL k").int()));
    let lock = conn.ok("DLOCK.INSPECT k");
    assert_eq!((lock.field("fence"), lock.field("mode")), (&fence.into(), &"exclusive".into()));
    assert_eq!(conn.ok("DLOCK.INSPECT free"), Value::Nil);
    assert_eq!(conn.ok("DLOCK.WAITERS k"), Value::Array(vec![]));
    assert_eq!(conn.ok("DLOCK.TOKEN").text().len(), 27);
    assert_eq!((replica.info("dlock_held"), replica.info("dlock_fence")), ("1".into(), fence.to_string()));
}

#[each_server]
fn a_replica_ends_leases_only_after_its_promotion(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    // The master's background job cannot run before the demotion, so no end is sent.
    let answers = master.connect().say_together(&[
        "DLOCK.ACQUIRE k t 50",
        "DLOCK.ACQUIRE long t 600000",
        "CLIENT PAUSE 600000 WRITE",
    ]);
    assert!(answers[1].int() > 0);
    replica.wait_in_sync(&master);
    master.pause();
    let mut conn = replica.connect();
    until("the lease has expired, to readers", || conn.ok("DLOCK.HOLDS k t") == 0);
    // Many event-loop turns and several of its ten ticks a second.
    for _ in 0..200 {
        assert_eq!(conn.ok("EXISTS k"), 1);
    }
    assert_eq!((replica.info("dlock_expiries"), replica.info("dlock_held")), ("0".into(), "2".into()));

    let mut events = Events::subscribe(&replica, "__keyevent@0__:*");
    assert_eq!(conn.ok("REPLICAOF NO ONE"), "OK");
    until("it ends the lease now", || conn.ok("EXISTS k") == 0);
    let told: Vec<String> = (0..3).map(|_| events.read().0).collect();
    assert_eq!(told, ["dlock.expired", "dlock.free", "del"].map(|event| format!("__keyevent@0__:{event}")));
    assert_eq!((replica.info("dlock_expiries"), replica.info("dlock_held")), ("1".into(), "1".into()));
    assert_eq!(conn.ok("DLOCK.HOLDS long t"), 1);
    master.resume();
}

#[each_server]
fn a_promoted_replica_issues_fences_above_those_of_its_master(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    let mut conn = master.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    // The fence is ahead of the clock and the lock released: no key of the replica holds the fence.
    let raised = fence + 9_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 600000")), raised);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    replica.wait_in_sync(&master);
    master.kill9();
    let mut conn = replica.connect();
    assert_eq!(conn.ok("REPLICAOF NO ONE"), "OK");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k u 600000"), raised + 1);
}

#[each_server]
fn a_late_replica_has_the_fence_of_released_locks(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    let mut conn = master.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    let raised = fence + 9_000_000;
    conn.ok(&format!("DLOCK.CONFIRM k t {raised} 600000"));
    conn.ok("DLOCK.RELEASE k t");
    replica.replicate(&master);
    assert_eq!(replica.info("dlock_fence"), raised.to_string());
    assert_eq!(replica.connect().ok("DBSIZE"), 0);
}

#[each_server]
fn a_replicas_own_append_only_file_holds_its_masters_locks(kind: &ServerKind) {
    let master = Server::start(kind);
    let mut replica = Server::options(kind).conf("appendonly yes").conf("appendfsync always").start();
    replica.replicate(&master);
    until("the replica has begun its file anew", || {
        ["aof_rewrite_in_progress", "aof_rewrite_scheduled"].iter().all(|field| replica.info(field) == "0")
    });
    let mut conn = master.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000 DEPTH 2").int();
    conn.ok("DLOCK.ACQUIRE gone t 600000");
    conn.ok("DLOCK.RELEASE gone t");
    replica.wait_in_sync(&master);
    replica.kill9();
    // Its configuration names no master, so it starts as one.
    replica.restart();
    let mut conn = replica.connect();
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 2);
    assert_eq!((conn.ok("DLOCK.ACQUIRE k t 600000"), conn.ok("EXISTS gone")), (fence.into(), 0.into()));
}

/// A replica recorded each lock that its master's clients deleted, for a background job that never ran there:
/// the records grew without end, and a promotion published them all.
#[each_server]
fn a_promoted_replica_publishes_no_events_of_its_masters_past(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    let mut conn = master.connect();
    for key in ["a", "b", "c"] {
        conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000"));
        assert_eq!(conn.ok(&format!("DEL {key}")), 1);
    }
    replica.wait_in_sync(&master);
    let mut events = Events::subscribe(&replica, "__keyevent@0__:dlock.*");
    let mut conn = replica.connect();
    conn.ok("REPLICAOF NO ONE");
    conn.ok("DLOCK.ACQUIRE mark t 1");
    until("the background has looked", || conn.ok("EXISTS mark") == 0);
    let told: Vec<String> = events.so_far().into_iter().map(|(_, key)| key).collect();
    assert_eq!(told, ["mark"; 3], "acquire, expired, free");
}
