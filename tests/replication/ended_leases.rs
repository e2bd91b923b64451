//! Leases that end while the server is paused, fails over or shuts down. A background write at such a time
//! would crash the server.

use dlock_testkit::queue::{holders, waiter};
use dlock_testkit::{Server, ServerKind, each_server, locks, until};

/// Acquires `count` locks, and sends the commands `then` in the same socket write, before the leases can end.
#[track_caller]
fn acquire_many(server: &Server, count: usize, ttl: u32, then: &[&str]) {
    let mut conn = server.connect();
    let grants = (0..count).map(|n| format!("DLOCK.ACQUIRE k{n} t {ttl}"));
    let commands: Vec<String> = grants.chain(then.iter().map(|command| command.to_string())).collect();
    let replies = conn.say_together(&commands);
    assert!(replies[..count].iter().all(|reply| reply.int() > 0));
    assert!(replies[count..].iter().all(|reply| reply == "OK"), "{:?}", &replies[count..]);
}

/// Waits until the leases of `acquire_many` have expired. Then checks that the server has ended no hold.
#[track_caller]
fn until_all_expired(server: &Server, count: usize) {
    let mut conn = server.connect();
    let mut has_expired = |n| conn.ok(&format!("DLOCK.HOLDS k{n} t")) == 0;
    until("all leases have expired", || (0..count).all(&mut has_expired));
    assert_eq!((conn.ok("DBSIZE"), server.number("dlock_expiries")), ((count as i64).into(), 0));
}

#[each_server]
fn leases_that_end_during_a_pause_are_removed_after_it_on_both_servers(kind: &ServerKind) {
    let (master, replica) = (Server::options(kind).conf("appendonly yes").start(), Server::start(kind));
    replica.replicate(&master);
    acquire_many(&master, 100, 50, &["CLIENT PAUSE 600000 WRITE"]);
    until_all_expired(&master, 100);
    let mut conn = master.connect();
    conn.ok("CLIENT UNPAUSE");
    until("the holds have ended", || conn.ok("DBSIZE") == 0);
    replica.wait_in_sync(&master);
    assert_eq!(replica.connect().ok("DBSIZE"), 0);
    assert_eq!((master.number("dlock_expiries"), replica.number("dlock_held")), (100, 0));
}

#[each_server]
fn leases_that_end_during_a_failover_are_removed_by_the_new_master(kind: &ServerKind) {
    let (master, replica) = (Server::options(kind).conf("appendonly yes").start(), Server::start(kind));
    replica.replicate(&master);
    // A failover pauses the master until the replica is in sync. The replica is stopped, so all leases end
    // meanwhile.
    replica.pause();
    acquire_many(&master, 100, 50, &["FAILOVER"]);
    until_all_expired(&master, 100);
    assert_eq!(master.info("master_failover_state"), "waiting-for-sync");
    replica.resume();
    master.wait_failed_over(&replica);
    let mut new = replica.connect();
    until("the new master ends the leases", || new.ok("DBSIZE") == 0);
    assert_eq!([&replica, &master].map(|server| server.number("dlock_expiries")), [100, 0]);
    let fence = new.ok("DLOCK.ACQUIRE after t 600000").int();
    master.wait_in_sync(&replica);
    let mut old = master.connect();
    assert_eq!((old.ok("DBSIZE"), old.ok("DLOCK.HOLDS after t")), (1.into(), 1.into()));
    assert_eq!(master.number("dlock_fence"), fence);
}

#[each_server]
fn a_shutdown_that_waits_for_a_replica_is_clean_while_leases_expire(kind: &ServerKind) {
    let options = Server::options(kind).conf("appendonly yes").conf("shutdown-timeout 1");
    let (mut master, replica) = (options.start(), Server::start(kind));
    replica.replicate(&master);
    let fence = master.connect().ok("DLOCK.ACQUIRE long t 600000").int();
    replica.pause();
    // Some leases end within the second for which the server waits.
    acquire_many(&master, 100, 300, &[]);
    assert!(master.terminate().success());
    let log = master.log();
    assert!(log.contains("Waiting for replicas before shutting down"), "{log}");
    replica.resume();
    master.restart();
    let mut conn = master.connect();
    assert_eq!(conn.ok("DLOCK.ACQUIRE long t 600000"), fence);
    until("the other leases have ended", || conn.ok("DBSIZE") == 1);
    replica.wait_in_sync(&master);
    assert_eq!(locks(&replica), locks(&master));
}

#[each_server]
fn a_demoted_master_ends_no_lease(kind: &ServerKind) {
    let (server, master) = (Server::start(kind), Server::start(kind));
    master.connect().ok("DLOCK.ACQUIRE theirs t 600000");
    // At its demotion, the server has a timer for these leases, but a replica must end no lease.
    acquire_many(&server, 10, 50, &[]);
    server.replicate(&master);
    let mut conn = server.connect();
    assert_eq!((conn.ok("DBSIZE"), conn.ok("DLOCK.HOLDS theirs t")), (1.into(), 1.into()));
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [1, 1]);
    assert!(server.number("dlock_fence") >= master.number("dlock_fence"));
}

/// A master withdraws a grant that it could not deliver. Here the demotion ends the wait before the grant is
/// delivered, and the waiter then claims the grant at the new master. The old master is not notified of the
/// claim, and must not withdraw the grant when it is master again.
#[each_server]
fn an_undelivered_grant_passes_to_the_new_master_at_a_demotion(kind: &ServerKind) {
    let (first, second) = Server::with_replica(kind);
    let (mut conn, mut new) = (first.connect(), second.connect());
    conn.ok("DLOCK.ACQUIRE k a 600000");
    second.wait_in_sync(&first);
    let mut b = waiter(&first, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    let replicaof = format!("REPLICAOF 127.0.0.1 {}", second.port());
    assert_eq!(conn.say_together(&["DLOCK.RELEASE k a", &replicaof])[0], 1);
    assert!(b.read().error().starts_with("UNBLOCKED "));
    until("the new master has the hold", || holders(&mut new, "k") == ["b"]);
    second.promote();
    first.wait_in_sync(&second);
    let fence = new.ok("DLOCK.ACQUIRE k b 1000").int();
    second.fail_over(&first);
    // The background job ends this lease after all other pending work.
    conn.ok("DLOCK.ACQUIRE short t 1");
    until("the background job has run", || conn.ok("EXISTS short") == 0);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k b 1000"), fence);
}
