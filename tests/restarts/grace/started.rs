//! Grace periods after a start: every start has one, and loaded holds stay valid in it.

#![allow(clippy::disallowed_methods, reason = "measures the time as a client does")]

use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

use super::{LoggedGrace, assert_grace, end_grace, grace_left, logged_grace, until_granted, with_grace};
use dlock_testkit::{Options, Server, ServerKind, Value, aof, each_server, module_path, until};

#[each_server]
fn a_start_without_data_begins_a_grace_period(kind: &ServerKind) {
    let server = with_grace(kind).start();
    let mut conn = server.connect();
    for command in [
        "DLOCK.ACQUIRE k t 1000",
        "DLOCK.ACQUIRE k t 1000 BLOCK 0",
        "DLOCK.ACQUIRE k t 1000 SHARED REENTRANT",
        "DLOCK.ACQUIRE k t 1000 PERMITS 5 BLOCK 1000",
    ] {
        assert_grace(&mut conn, command);
    }
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 0);
    assert_eq!(conn.ok("DLOCK.EXTEND k t 1000"), 0);
    assert!(conn.ok("DLOCK.CONFIRM k t 1 1000").is_nil());
    assert!((500_000..=600_000).contains(&grace_left(&server)));
    assert_eq!(server.number("dlock_grace_refusals"), 4);
    let LoggedGrace { begun, ended, last_reason } = logged_grace(&server);
    assert_eq!((begun, ended), (1, 0), "{}", server.log());
    assert!(last_reason.contains("nothing to load") && last_reason.contains("600000 ms"), "{last_reason}");
    end_grace(&server);
    assert!(conn.ok("DLOCK.ACQUIRE k t 1000").int() > 0);
    assert_eq!(logged_grace(&server).ended, 1);
}

#[each_server]
fn a_lost_lock_is_not_granted_before_its_lease_ends(kind: &ServerKind) {
    let mut server = Server::options(kind).conf("dlock.restart-grace 1500").start();
    let mut conn = server.connect();
    until_granted(&mut conn, "DLOCK.ACQUIRE probe t 1");
    // The server grants again as soon as the grace period is over; the background job logs its end later.
    let until_logged = |server: &Server| {
        let is_logged = |LoggedGrace { begun, ended, .. }| begun == ended;
        until("the end of the grace period is logged", || is_logged(logged_grace(server)))
    };
    until_logged(&server);
    // A lease as long as the grace period, and a shorter one.
    for ttl in [1500, 700] {
        let asked = Instant::now();
        let fence = conn.ok(&format!("DLOCK.ACQUIRE k t {ttl}")).int();
        server.kill_and_restart();
        conn = server.connect();
        assert_eq!(conn.ok("EXISTS k"), 0, "the hold is lost");
        let next = until_granted(&mut conn, "DLOCK.ACQUIRE k other 1500");
        assert!(asked.elapsed() >= Duration::from_millis(ttl), "granted during the lease of the lost hold");
        assert!(next > fence);
        assert_eq!(conn.ok("DLOCK.RELEASE k other"), 1);
        until_logged(&server);
    }
    assert_eq!(logged_grace(&server).begun, 3);
}

/// Acquires one lock in each mode, and restarts the server after a crash. Returns the fences.
fn acquire_and_crash(server: &mut Server) -> [i64; 3] {
    end_grace(server);
    let mut conn = server.connect();
    let fences = [
        "DLOCK.ACQUIRE alone t 600000",
        "DLOCK.ACQUIRE shared t 600000 SHARED",
        "DLOCK.ACQUIRE permits t 600000 PERMITS 2",
    ]
    .map(|command| conn.ok(command).int());
    server.wait_written();
    server.kill_and_restart();
    fences
}

#[each_server]
fn a_loaded_hold_stays_valid_in_grace_and_other_requests_are_refused(kind: &ServerKind) {
    let mut server = with_grace(kind).conf("appendonly yes").start();
    let [alone, shared, permits] = acquire_and_crash(&mut server);
    let mut conn = server.connect();
    // The loaded holds work as before.
    assert_eq!(conn.ok("DLOCK.ACQUIRE alone t 600000 REENTRANT"), alone);
    assert_eq!(conn.ok("DLOCK.ACQUIRE alone t 600000 DEPTH 4 BLOCK 0"), alone);
    assert_eq!(conn.ok("DLOCK.ACQUIRE shared t 600000 SHARED"), shared);
    assert_eq!(conn.ok("DLOCK.ACQUIRE permits t 600000 PERMITS 2"), permits);
    assert_eq!(conn.ok("DLOCK.EXTEND permits t 5000"), 1);
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM permits t {permits} 600000")), permits);
    assert_eq!(conn.ok("DLOCK.RELEASE alone t"), 1);
    assert_eq!(conn.ok("DLOCK.HOLDS alone t"), 3);
    // Every request for a new hold is refused, even if the loaded holds allow it: another client's hold may
    // have been lost.
    for command in [
        "DLOCK.ACQUIRE alone other 1000",
        "DLOCK.ACQUIRE shared other 1000 SHARED",
        "DLOCK.ACQUIRE shared other 1000 BLOCK 0",
        "DLOCK.ACQUIRE permits other 1000 PERMITS 2",
        "DLOCK.ACQUIRE free t 1000",
        // An upgrade is refused: the hold of another sharer may have been lost.
        "DLOCK.ACQUIRE shared t 1000",
        "DLOCK.ACQUIRE shared t 1000 BLOCK 0",
    ] {
        assert_grace(&mut conn, command);
    }
    // RELEASE lowers the hold count by 2, to 1. The downgrade to SHARED is accepted.
    assert_eq!(conn.ok("DLOCK.RELEASE alone t DEPTH 1"), 2);
    assert_eq!(conn.ok("DLOCK.ACQUIRE alone t 1000 SHARED"), alone);
    // A released hold is not granted again.
    assert_eq!(conn.ok("DLOCK.RELEASE shared t ALL"), 1);
    assert_grace(&mut conn, "DLOCK.ACQUIRE shared t 1000 SHARED");
    assert_eq!(conn.ok("DLOCK.BREAK permits"), 1);
    assert_grace(&mut conn, "DLOCK.ACQUIRE permits other 1000 PERMITS 2");
    end_grace(&server);
    for command in ["DLOCK.ACQUIRE shared t 1000", "DLOCK.ACQUIRE alone other 1000 SHARED"] {
        assert!(conn.ok(command).int() > permits, "{command}");
    }
}

#[each_server]
fn leases_expire_in_grace(kind: &ServerKind) {
    let mut server = with_grace(kind).conf("appendonly yes").start();
    end_grace(&server);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k t 300");
    server.wait_written();
    let mut conn = server.kill_and_restart();
    until("the lease has expired", || conn.ok("EXISTS k") == 0);
    assert!(grace_left(&server) > 0);
    assert_grace(&mut conn, "DLOCK.ACQUIRE k t 300");
}

/// Starts a server, ends the grace period of its start, and acquires `k`.
#[track_caller]
fn start_and_acquire(options: Options) -> Server {
    let server = options.start();
    end_grace(&server);
    assert!(server.connect().ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    server
}

#[each_server]
fn a_restart_begins_a_grace_period_although_every_grant_was_kept(kind: &ServerKind) {
    let mut server = start_and_acquire(with_grace(kind).synced());
    server.kill9();
    for starts in 2..=3 {
        server.restart();
        let mut conn = server.connect();
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1, "the hold was loaded");
        assert_grace(&mut conn, "DLOCK.ACQUIRE free t 1000");
        let LoggedGrace { begun, last_reason, .. } = logged_grace(&server);
        assert_eq!(begun, starts, "{}", server.log());
        assert!(last_reason.starts_with("the server started;"), "{last_reason}");
        // A clean shutdown is followed by a grace period too.
        assert!(server.terminate().success());
    }
    let mut server = start_and_acquire(with_grace(kind));
    server.connect().ok("SAVE");
    let mut conn = server.kill_and_restart();
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1, "the snapshot contains the hold");
    assert_grace(&mut conn, "DLOCK.ACQUIRE free t 1000");
}

#[each_server]
fn a_restart_begins_a_grace_period_when_grants_were_lost(kind: &ServerKind) {
    for is_aof_removed in [false, true] {
        let mut server = start_and_acquire(with_grace(kind).synced());
        server.kill9();
        if is_aof_removed {
            fs::remove_dir_all(server.dir().join("appendonlydir")).expect("the folder can be removed");
        } else {
            let file = OpenOptions::new().write(true).open(aof::incremental(server.dir())).expect("the file");
            let length = file.metadata().expect("the file exists").len();
            file.set_len(length - 3).expect("the file can be truncated");
        }
        server.restart();
        let mut conn = server.connect();
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0, "the grant was lost");
        assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000");
        assert_eq!(logged_grace(&server).begun, 2, "{}", server.log());
    }
}

#[each_server]
fn a_module_that_is_loaded_into_a_running_server_begins_a_grace_period(kind: &ServerKind) {
    let server = Server::options(kind).without_module().start();
    let mut conn = server.connect();
    let module = module_path().to_str().expect("the path is UTF-8");
    let load = ["MODULE", "LOADEX", module, "CONFIG", "dlock.restart-grace", "600000"];
    assert_eq!(conn.call(&load), Value::Simple("OK".into()));
    assert_grace(&mut conn, "DLOCK.ACQUIRE k t 1000");
    until("the grace period has begun", || logged_grace(&server).begun == 1);
}
