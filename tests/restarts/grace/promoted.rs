//! Grace periods after a promotion and after DEBUG RELOAD. A promoted replica may lack the last grants of its
//! former master. A replica has no grace period.

use super::{assert_grace, end_grace, grace_left, logged_grace, with_grace};
use dlock_testkit::{Server, ServerKind, each_server};

#[each_server]
fn a_promotion_begins_a_grace_period(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), with_grace(kind).start());
    let mut conn = master.connect();
    conn.ok("DLOCK.ACQUIRE before t 600000");
    replica.replicate(&master);
    let begun = logged_grace(&replica).begun;
    assert_eq!(grace_left(&replica), 0, "a replica has no grace period");
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    replica.wait_in_sync(&master);
    master.kill9();
    replica.promote();
    let mut conn = replica.connect();
    assert!(grace_left(&replica) > 500_000);
    let logged = logged_grace(&replica);
    assert_eq!(logged.begun, begun + 1);
    assert!(logged.last_reason.contains("became a master"), "{}", logged.last_reason);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(conn.ok("DLOCK.RELEASE before t"), 1);
    assert_grace(&mut conn, "DLOCK.ACQUIRE before t 1000");
    assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000 BLOCK 0");
    end_grace(&replica);
    assert!(conn.ok("DLOCK.ACQUIRE before t 1000").int() > fence);
}

#[each_server]
fn a_server_that_syncs_or_restarts_as_a_replica_has_no_grace(kind: &ServerKind) {
    let master = Server::start(kind);
    master.connect().ok("DLOCK.ACQUIRE k t 600000");
    let mut replica = with_grace(kind).synced().start();
    end_grace(&replica);
    replica.replicate(&master);
    let begun = logged_grace(&replica).begun;
    replica.kill9();
    replica.restart_with(|options| options.conf(&format!("replicaof 127.0.0.1 {}", master.port())));
    replica.wait_in_sync(&master);
    assert_eq!(replica.connect().ok("DLOCK.HOLDS k t"), 1);
    assert_eq!((grace_left(&replica), logged_grace(&replica).begun), (0, begun), "{}", replica.log());
}

#[each_server]
fn grace_begins_anew_at_the_next_promotion_after_a_demotion(kind: &ServerKind) {
    let (master, server) = (Server::start(kind), with_grace(kind).start());
    assert!(grace_left(&server) > 0);
    server.replicate(&master);
    assert_eq!(grace_left(&server), 0);
    server.promote();
    assert!(grace_left(&server) > 500_000);
    assert_grace(&mut server.connect(), "DLOCK.ACQUIRE k t 1000");
}

#[each_server]
fn after_a_failover_the_new_master_has_grace_and_the_old_one_none(kind: &ServerKind) {
    let (master, replica) = (with_grace(kind).start(), with_grace(kind).start());
    end_grace(&master);
    let fence = master.connect().ok("DLOCK.ACQUIRE k t 600000").int();
    replica.replicate(&master);
    master.fail_over(&replica);
    let mut conn = replica.connect();
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_grace(&mut conn, "DLOCK.ACQUIRE free t 1000");
    assert_eq!(grace_left(&master), 0);
}

#[each_server]
fn a_reload_keeps_every_hold_and_begins_a_grace_period(kind: &ServerKind) {
    let server = with_grace(kind).start();
    end_grace(&server);
    let mut conn = server.connect();
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    assert_eq!(conn.ok("DEBUG RELOAD"), "OK");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    // The reload first empties the keyspace. The module cannot distinguish this from FLUSHALL, which begins a
    // grace period.
    assert_grace(&mut conn, "DLOCK.ACQUIRE free t 1000");
}

/// The replica stops before its master grants the last lock. The replica's append only file is intact, but
/// lacks this grant.
#[each_server]
fn a_replica_that_restarts_as_a_master_begins_a_grace_period(kind: &ServerKind) {
    let master = Server::start(kind);
    let mut replica = with_grace(kind).synced().start();
    end_grace(&replica);
    replica.replicate(&master);
    let fence = master.connect().ok("DLOCK.ACQUIRE received t 600000").int();
    replica.wait_in_sync(&master);
    replica.wait_rewritten();
    replica.kill9();
    master.connect().ok("DLOCK.ACQUIRE missed t 600000");
    master.kill9();
    replica.restart();
    let mut conn = replica.connect();
    assert_eq!(conn.ok("DLOCK.ACQUIRE received t 600000"), fence);
    assert_grace(&mut conn, "DLOCK.ACQUIRE missed other 1000");
}
