//! Replicas answer reads, and change no lock by themselves.

use dlock_testkit::queue::{holders, tokens};
use dlock_testkit::{Events, Server, ServerKind, Value, each_server, until};

#[each_server]
fn a_replica_refuses_writes_and_answers_reads(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
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
        "DLOCK.GUARD k t SET x 1",
        "DLOCK.GUARD k t GET x",
        "DLOCK.FENCED g 1 GET x",
    ] {
        assert!(conn.say(write).error().starts_with("READONLY"), "{write}");
    }
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 2);
    assert!((540_000..=600_000).contains(&conn.ok("DLOCK.PTTL k").int()));
    let lock = conn.ok("DLOCK.INSPECT k");
    assert_eq!((lock.field("fence"), lock.field("mode")), (&fence.into(), &"exclusive".into()));
    assert_eq!(conn.ok("DLOCK.INSPECT free"), Value::Nil);
    assert_eq!(conn.ok("DLOCK.WAITERS k"), Value::Array(vec![]));
    assert_eq!(conn.ok("DLOCK.LIST 0").items()[1].items()[0].field("key"), &"k");
    assert_eq!(conn.ok("DLOCK.TOKEN").text().len(), 27);
    assert_eq!(replica.numbers(["dlock_held", "dlock_fence"]), [1, fence]);
}

#[each_server]
fn a_replica_ends_leases_only_after_its_promotion(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    // The pause keeps the master from ending the lease, so the replica receives no command that ends the
    // hold.
    let answers = master.connect().say_together(&[
        "DLOCK.ACQUIRE k t 50",
        "DLOCK.ACQUIRE long t 600000",
        "CLIENT PAUSE 600000 WRITE",
    ]);
    assert!(answers[1].int() > 0);
    replica.wait_in_sync(&master);
    master.pause();
    let mut conn = replica.connect();
    until("readers no longer see the hold", || conn.ok("DLOCK.HOLDS k t") == 0);
    // Each request takes a turn of the event loop, in which the replica must not end the lease.
    for _ in 0..200 {
        assert_eq!(conn.ok("EXISTS k"), 1);
    }
    assert_eq!(replica.numbers(["dlock_expiries", "dlock_held"]), [0, 2]);

    let mut events = Events::subscribe(&replica, "__keyevent@0__:*");
    replica.promote();
    until("the promoted replica ends the lease", || conn.ok("EXISTS k") == 0);
    let published: Vec<String> = (0..3).map(|_| events.read().0).collect();
    assert_eq!(
        published,
        ["dlock.expired", "dlock.free", "del"].map(|event| format!("__keyevent@0__:{event}"))
    );
    assert_eq!(replica.numbers(["dlock_expiries", "dlock_held"]), [1, 1]);
    assert_eq!(conn.ok("DLOCK.HOLDS long t"), 1);
    master.resume();
}

/// A fence is at least the time in µs. The CONFIRM sets a fence 9 s ahead of the clock, and after the RELEASE
/// no key contains this fence. So a promoted replica knows it only from the replication stream or a snapshot.
#[each_server]
fn a_promoted_replica_issues_fences_above_those_of_its_master(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let mut conn = master.connect();
    let raised = conn.ok("DLOCK.ACQUIRE k t 600000").int() + 9_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 600000")), raised);
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    // One replica receives the replication stream, the other one a snapshot.
    replica.wait_in_sync(&master);
    let late = Server::start(kind);
    late.replicate(&master);
    master.kill9();
    for replica in [replica, late] {
        assert_eq!(replica.connect().ok("DBSIZE"), 0);
        replica.promote();
        assert_eq!(replica.connect().ok("DLOCK.ACQUIRE k u 600000"), raised + 1);
    }
}

#[each_server]
fn a_replicas_own_append_only_file_contains_its_masters_locks(kind: &ServerKind) {
    let master = Server::start(kind);
    let mut replica = Server::options(kind).synced().start();
    replica.replicate(&master);
    replica.wait_rewritten();
    let mut conn = master.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000 DEPTH 2").int();
    conn.ok("DLOCK.ACQUIRE gone t 600000");
    conn.ok("DLOCK.RELEASE gone t");
    replica.wait_in_sync(&master);
    // The configuration names no master, so the server starts as one.
    let mut conn = replica.kill_and_restart();
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 2);
    assert_eq!((conn.ok("DLOCK.ACQUIRE k t 600000"), conn.ok("EXISTS gone")), (fence.into(), 0.into()));
}

/// A replica used to record each lock that its master's clients deleted, for a background job that never ran
/// there: the records grew without end, and a promotion published them all.
#[each_server]
fn a_promoted_replica_publishes_no_events_of_locks_deleted_before(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
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
    until("the background job has run", || conn.ok("EXISTS mark") == 0);
    assert_eq!(events.messages(), ["mark"; 3], "only mark's own events: acquire, expired, free");
}

/// Positions exist in the memory of one master only.
#[each_server]
fn a_promoted_replica_has_the_unclaimed_grants_and_no_positions(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let mut conn = master.connect();
    let request = |token: &str| format!("DLOCK.ACQUIRE k {token} 600000 QUEUE 500000 DELAY 600000");
    conn.ok("DLOCK.ACQUIRE k a 600000");
    for token in ["b", "c", "d"] {
        assert_eq!(conn.ok(&request(token)), Value::Nil);
    }
    conn.ok("DLOCK.RELEASE k a");
    let fence = conn.ok("DLOCK.INSPECT k").field("fence").int();
    replica.wait_in_sync(&master);
    replica.promote();
    let mut promoted = replica.connect();
    assert_eq!((holders(&mut promoted, "k"), tokens(&mut promoted, "k")), (vec!["b".into()], vec![]));
    // The lease of an unclaimed grant ends when the position would have expired: after at most 500 s.
    assert!((1..=500_000).contains(&promoted.ok("DLOCK.PTTL k b").int()));
    // The waiters c and d join the queue again by repeating their requests. The request of b claims its
    // grant: the reply is the same fence, and the hold gets its full lease.
    for token in ["d", "c"] {
        assert_eq!(promoted.ok(&request(token)), Value::Nil);
    }
    assert_eq!(tokens(&mut promoted, "k"), ["d", "c"]);
    assert_eq!(promoted.ok(&request("b")).int(), fence);
    assert!(promoted.ok("DLOCK.PTTL k b").int() > 500_000);
    assert_eq!(promoted.ok("DLOCK.RELEASE k b"), 1);
    assert_eq!(holders(&mut promoted, "k"), ["d"]);
}
