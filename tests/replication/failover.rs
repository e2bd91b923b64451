//! Promotions under load: REPLICAOF, FAILOVER, Sentinel.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use crate::load::{Load, assert_equal};
use crate::rounds;
use dlock_testkit::queue::waiter;
use dlock_testkit::sentinels::{SENTINEL_TIMEOUT, sentinels};
use dlock_testkit::workers::Plan;
use dlock_testkit::{
    Options, Random, Server, ServerKind, TIMEOUT, Wire, each_server, encode, until, until_within,
};

fn until_more_grants(granted: &AtomicUsize) {
    let before = granted.load(Ordering::Relaxed);
    until("30 more locks are granted", || granted.load(Ordering::Relaxed) > before + 30);
}

/// Runs clients, exchanges the roles with `switch`, which must lose no hold, and lets the clients continue on
/// the new master.
fn swap_roles_under_load(kind: &ServerKind, switch: impl Fn(&Server, &Server)) {
    let mut random = Random::fresh();
    let servers: [Server; 2] = Server::with_replica(kind).into();
    let mut load = Load::new(&mut random);
    for round in 0..rounds() {
        let [master, replica] =
            if round % 2 == 0 { [&servers[0], &servers[1]] } else { [&servers[1], &servers[0]] };
        load.during_switch(master, |granted, port| {
            until_more_grants(granted);
            switch(master, replica);
            port.store(replica.port(), Ordering::Relaxed);
            until_more_grants(granted);
        });
        load.drain(replica);
        load.assert_kept(replica);
        assert_equal(replica, master);
        // No client is left to release the locks.
        assert_eq!(replica.connect().ok("FLUSHALL"), "OK");
        load.forget();
    }
}

#[each_server]
fn replicaof_with_paused_writes_loses_no_hold(kind: &ServerKind) {
    swap_roles_under_load(kind, |master, replica| {
        let mut conn = master.connect();
        assert_eq!(conn.ok("CLIENT PAUSE 600000 WRITE"), "OK");
        replica.wait_in_sync(master);
        replica.promote();
        assert_eq!(conn.ok(&format!("REPLICAOF 127.0.0.1 {}", replica.port())), "OK");
        assert_eq!(conn.ok("CLIENT UNPAUSE"), "OK");
    });
}

#[each_server]
fn failover_loses_no_hold(kind: &ServerKind) {
    swap_roles_under_load(kind, Server::fail_over);
}

/// Options with a grace period, because the last grants of a master may not have reached its replica.
fn with_grace(kind: &ServerKind) -> Options {
    // A server that restarts continues above its fence mark, a number on its disk that no fence exceeds. So a
    // restarted old master would have a greater last fence than the new master, and `assert_equal` compares
    // the last fences.
    Server::options(kind).conf("dlock.restart-grace 3000").conf("dlock.fence-mark no")
}

fn with_short_leases(random: &mut Random) -> Load {
    Load::with(random, Plan::new(&[20, 100, 300]))
}

#[each_server]
fn a_promoted_replica_grants_no_lock_whose_hold_it_missed(kind: &ServerKind) {
    let mut random = Random::fresh();
    let mut servers = [with_grace(kind).start(), with_grace(kind).start()];
    servers[1].replicate(&servers[0]);
    let mut load = with_short_leases(&mut random);
    for _ in 0..rounds() {
        let [master, replica] = &servers;
        load.during_switch(master, |granted, port| {
            until_more_grants(granted);
            // The replica does not receive the last grants.
            replica.pause();
            assert!(master.connect().ok("CLIENT KILL TYPE replica").int() > 0);
            until_more_grants(granted);
            assert!(master.connect().ok("DLOCK.ACQUIRE missed t 300").int() > 0);
            master.kill9();
            replica.resume();
            replica.promote();
            let mut conn = replica.connect();
            assert_eq!(conn.ok("DLOCK.HOLDS missed t"), 0);
            assert!(conn.say("DLOCK.ACQUIRE missed u 300").error().starts_with("GRACE"));
            port.store(replica.port(), Ordering::Relaxed);
            until_more_grants(granted);
        });
        load.assert_sound();
        servers[0].restart();
        servers[0].replicate(&servers[1]);
        acquire_long_leases(&servers[1]);
        load.drain(&servers[1]);
        assert_equal(&servers[1], &servers[0]);
        assert_eq!(servers[1].connect().ok("FLUSHALL"), "OK");
        load.forget();
        servers.reverse();
    }
}

/// In the configuration of docs/choosing.md, an old master that is cut off from its promoted replica refuses
/// writes. It must not grant its waiters locks that the new master may grant.
#[each_server]
fn an_isolated_old_master_grants_no_lock_to_its_waiters(kind: &ServerKind) {
    let mut random = Random::fresh();
    // A grace period of 1 s is enough, because no lease of this test is longer than 900 ms.
    let options = || with_grace(kind).conf("dlock.restart-grace 1000");
    let mut servers = [options().start(), options().start()];
    servers[1].replicate(&servers[0]);
    let mut load = with_short_leases(&mut random).with_waits(vec!["", "BLOCK 3000"]);
    let mut left_waiting = 0;
    for _ in 0..rounds() {
        let [master, replica] = &servers;
        assert_eq!(master.connect().ok("CONFIG SET min-replicas-to-write 1"), "OK");
        load.during_switch(master, |granted, port| {
            until_more_grants(granted);
            // At least this client waits at the old master.
            let mut conn = master.connect();
            conn.ok("DLOCK.ACQUIRE own holder 900");
            let _waiter = waiter(master, "DLOCK.ACQUIRE own waiter 900 BLOCK 0");
            replica.promote();
            port.store(replica.port(), Ordering::Relaxed);
            conn.until_error("DLOCK.ACQUIRE other x 1", "NOREPLICAS");
            left_waiting += master.number("dlock_waiting");
            let before = master.number("dlock_grants");
            // Once the new master grants locks, its grace period and the leases on the old master are over.
            until_more_grants(granted);
            assert_eq!(master.number("dlock_grants"), before);
        });
        load.assert_sound();
        assert_eq!(master.connect().ok("CONFIG SET min-replicas-to-write 0"), "OK");
        master.replicate(replica);
        load.drain(replica);
        load.forget();
        servers.reverse();
    }
    assert!(left_waiting > 0, "no client was left waiting");
}

/// Ends the grace period, and acquires locks of every kind with long leases.
fn acquire_long_leases(master: &Server) {
    let mut conn = master.connect();
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    for n in 0..20 {
        let mode = ["", "SHARED", "PERMITS 3", "EPHEMERAL", "LABEL host"][n % 5];
        assert!(conn.ok(&format!("DLOCK.ACQUIRE long{n} t 600000 {mode}")).int() > 0);
    }
}

/// Returns the role of the server. `None` if the connection breaks, as at a role change by a sentinel.
fn role(server: &Server) -> Option<String> {
    let mut wire = Wire::connect(server.port()).ok()?;
    wire.send(&encode(&["ROLE"])).ok()?;
    let answer = wire.value(Instant::now() + TIMEOUT).ok()??;
    Some(answer.items()[0].text())
}

#[each_server]
fn a_sentinel_failover_grants_no_lock_that_is_still_held_and_demotes_the_old_master(kind: &ServerKind) {
    let mut random = Random::fresh();
    let (mut master, replica) = (with_grace(kind).start(), with_grace(kind).start());
    replica.replicate(&master);
    let sentinels = sentinels(kind, &master, 3000);
    let mut load = with_short_leases(&mut random);
    load.during_switch(&master, |granted, port| {
        until_more_grants(granted);
        master.kill9();
        // Asks a sentinel for the master, as clients do.
        until_within(SENTINEL_TIMEOUT, "a sentinel names the new master", || {
            let named = sentinels[0].connect().ok("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
            let named: u16 = named.items()[1].text().parse().expect("a port");
            port.store(named, Ordering::Relaxed);
            named == replica.port()
        });
        until_more_grants(granted);
    });
    load.assert_sound();
    master.restart();
    // On a very slow machine the sentinels swap the roles once more.
    let mut roles = [&replica, &master];
    until_within(SENTINEL_TIMEOUT, "the sentinels have made the old master a replica", || {
        roles.reverse();
        roles.map(role) == ["master", "slave"].map(|role| Some(role.into()))
    });
    let [master, replica] = roles;
    replica.wait_in_sync(master);
    acquire_long_leases(master);
    load.drain(master);
    assert_equal(master, replica);
    drop(sentinels);
}
