//! Starts: after which grace begins, what it lets be, and when it is left out.

#![allow(clippy::disallowed_methods, reason = "what a client sees of time")]

use std::fs::{self, OpenOptions};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::{ALWAYS, assert_grace, end, left, logged, until_granted, until_proven, with_grace};
use dlock_testkit::{Conn, Server, each_server, until};

#[test]
fn a_server_that_has_loaded_nothing_grants_nothing_for_a_while() {
    each_server(|kind| {
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
        assert!((500_000..=600_000).contains(&left(&server)));
        assert_eq!(server.info("dlock_grace_refusals"), "4");
        let (begun, over, why) = logged(&server);
        assert_eq!((begun, over), (1, 0), "{}", server.log());
        assert!(why.contains("nothing to load") && why.contains("600000 ms"), "{why}");
        end(&server);
        assert!(conn.ok("DLOCK.ACQUIRE k t 1000").int() > 0);
        assert_eq!(logged(&server).1, 1);
    });
}

#[test]
fn it_is_off_unless_asked_for() {
    each_server(|kind| {
        let server = Server::start(kind);
        assert!(server.connect().ok("DLOCK.ACQUIRE k t 1000").int() > 0);
        assert!(!server.log().contains("restart-grace"), "{}", server.log());
    });
}

#[test]
fn a_lock_that_was_forgotten_is_not_granted_before_its_lease_is_over() {
    each_server(|kind| {
        let mut server = Server::options(kind).conf("dlock.restart-grace 1500").start();
        let mut conn = server.connect();
        until_granted(&mut conn, "DLOCK.ACQUIRE probe t 1");
        // Granted by the clock, whether the background has looked at it or not.
        let told = |server: &Server| until("its end is logged", || logged(server).1 == logged(server).0);
        told(&server);
        for ttl in [1500, 700] {
            let asked = Instant::now();
            let fence = conn.ok(&format!("DLOCK.ACQUIRE k t {ttl}")).int();
            server.kill9();
            server.restart();
            conn = server.connect();
            assert_eq!(conn.ok("EXISTS k"), 0, "it is forgotten");
            let next = until_granted(&mut conn, "DLOCK.ACQUIRE k other 1500");
            assert!(asked.elapsed() >= Duration::from_millis(ttl), "two holders");
            assert!(next > fence);
            assert_eq!(conn.ok("DLOCK.RELEASE k other"), 1);
            told(&server);
        }
        assert_eq!(logged(&server).0, 3);
    });
}

/// One hold of each mode, then a crash that may have lost more.
fn crashed(server: &mut Server) -> [i64; 3] {
    end(server);
    let mut conn = server.connect();
    let fences = [
        "DLOCK.ACQUIRE alone t 600000",
        "DLOCK.ACQUIRE shared t 600000 SHARED",
        "DLOCK.ACQUIRE permits t 600000 PERMITS 2",
    ]
    .map(|command| conn.ok(command).int());
    server.wait_written();
    server.kill9();
    server.restart();
    fences
}

#[test]
fn what_was_loaded_stays_with_its_token_and_goes_to_no_other() {
    each_server(|kind| {
        let mut server = with_grace(kind).conf("appendonly yes").start();
        let [alone, shared, permits] = crashed(&mut server);
        let mut conn = server.connect();
        // It goes on as ever.
        assert_eq!(conn.ok("DLOCK.ACQUIRE alone t 600000 REENTRANT"), alone);
        assert_eq!(conn.ok("DLOCK.ACQUIRE alone t 600000 DEPTH 4 BLOCK 0"), alone);
        assert_eq!(conn.ok("DLOCK.ACQUIRE shared t 600000 SHARED"), shared);
        assert_eq!(conn.ok("DLOCK.ACQUIRE permits t 600000 PERMITS 2"), permits);
        assert_eq!(conn.ok("DLOCK.EXTEND permits t 5000"), 1);
        assert_eq!(conn.ok(&format!("DLOCK.CONFIRM permits t {permits} 600000")), permits);
        assert_eq!(conn.ok("DLOCK.RELEASE alone t"), 1);
        assert_eq!(conn.ok("DLOCK.HOLDS alone t"), 3);
        // Not even what would fit is granted to others: somebody else's hold may have been forgotten.
        for command in [
            "DLOCK.ACQUIRE alone other 1000",
            "DLOCK.ACQUIRE shared other 1000 SHARED",
            "DLOCK.ACQUIRE shared other 1000 BLOCK 0",
            "DLOCK.ACQUIRE permits other 1000 PERMITS 2",
            "DLOCK.ACQUIRE free t 1000",
            // To be alone is more than to share, and another sharer may have been forgotten.
            "DLOCK.ACQUIRE shared t 1000",
            "DLOCK.ACQUIRE shared t 1000 BLOCK 0",
        ] {
            assert_grace(&mut conn, command);
        }
        // To share is less than to be alone.
        assert_eq!(conn.ok("DLOCK.RELEASE alone t DEPTH 1"), 2);
        assert_eq!(conn.ok("DLOCK.ACQUIRE alone t 1000 SHARED"), alone);
        // What is given up is not taken back.
        assert_eq!(conn.ok("DLOCK.RELEASE shared t ALL"), 1);
        assert_grace(&mut conn, "DLOCK.ACQUIRE shared t 1000 SHARED");
        assert_eq!(conn.ok("DLOCK.BREAK permits"), 1);
        assert_grace(&mut conn, "DLOCK.ACQUIRE permits other 1000 PERMITS 2");
        end(&server);
        for command in ["DLOCK.ACQUIRE shared t 1000", "DLOCK.ACQUIRE alone other 1000 SHARED"] {
            assert!(conn.ok(command).int() > permits, "{command}");
        }
    });
}

#[test]
fn leases_run_out_in_grace_as_ever() {
    each_server(|kind| {
        let mut server = with_grace(kind).conf("appendonly yes").start();
        end(&server);
        let mut conn = server.connect();
        conn.ok("DLOCK.ACQUIRE k t 300");
        server.wait_written();
        server.kill9();
        server.restart();
        let mut conn = server.connect();
        until("the lease has expired", || conn.ok("EXISTS k") == 0);
        assert!(left(&server) > 0);
        assert_grace(&mut conn, "DLOCK.ACQUIRE k t 300");
    });
}

/// The file that commands are appended to.
fn appended(server: &Server) -> PathBuf {
    let files = fs::read_dir(server.dir().join("appendonlydir")).expect("the folder of the append only file");
    let mut files = files.map(|file| file.expect("a file").path());
    files.find(|file| file.to_string_lossy().ends_with(".incr.aof")).expect("an incremental file")
}

/// A server with nothing to forget by, after a crash: what `crash` does meanwhile, and the configuration.
#[track_caller]
fn after_a_crash(
    kind: &dlock_testkit::ServerKind,
    conf: &[&str],
    run: impl FnOnce(&mut Conn),
    crash: impl FnOnce(&Server),
) -> Server {
    let options = conf.iter().fold(with_grace(kind), |options, line| options.conf(line));
    let mut server = options.start();
    end(&server);
    let mut conn = server.connect();
    if conf == ALWAYS {
        until_proven(&server);
    }
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    run(&mut conn);
    server.kill9();
    crash(&server);
    server.restart();
    server
}

#[test]
fn a_start_that_has_loaded_all_that_was_granted_begins_no_grace() {
    each_server(|kind| {
        let server = after_a_crash(kind, &ALWAYS, |_| (), |_| ());
        let mut conn = server.connect();
        assert!(conn.ok("DLOCK.ACQUIRE free t 1000").int() > 0);
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1);
        assert_eq!(logged(&server).0, 1, "only at the first start: {}", server.log());
        assert!(server.log().contains("no dlock.restart-grace at this start"), "{}", server.log());
    });
}

#[test]
fn a_start_that_may_have_forgotten_something_begins_grace_and_says_what() {
    let nothing = |_: &Server| ();
    let cut_off = |server: &Server| {
        let file = OpenOptions::new().write(true).open(appended(server)).expect("the file");
        let length = file.metadata().expect("its length").len();
        file.set_len(length - 3).expect("it can be cut");
    };
    let gone = |server: &Server| {
        fs::remove_dir_all(server.dir().join("appendonlydir")).expect("it can be removed");
    };
    each_server(|kind| {
        for (conf, crash, why) in [
            (&["appendonly yes"][..], &nothing as &dyn Fn(&Server), "does not keep every grant"),
            (
                &["appendonly yes", "appendfsync always", "no-appendfsync-on-rewrite yes"],
                &nothing,
                "does not keep every grant",
            ),
            (&ALWAYS, &cut_off, "the end of the append only file was missing"),
            (&ALWAYS, &gone, "nothing to load"),
        ] {
            let server = after_a_crash(kind, conf, |_| (), crash);
            let (begun, _, told) = logged(&server);
            assert_eq!(begun, 2, "{why}: {}", server.log());
            assert!(told.contains(why), "{why}: {told}");
            assert_grace(&mut server.connect(), "DLOCK.ACQUIRE free t 1000");
        }
        let saved = |conn: &mut Conn| assert_eq!(conn.ok("SAVE"), "OK");
        let server = after_a_crash(kind, &[], saved, nothing);
        assert!(logged(&server).2.contains("keeps no append only file"), "{}", server.log());
        let mut conn = server.connect();
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), 1);
        assert_grace(&mut conn, "DLOCK.ACQUIRE free t 1000");
    });
}

#[test]
fn holds_that_were_flushed_are_waited_for_after_a_restart_too() {
    each_server(|kind| {
        let flush = |conn: &mut Conn| assert_eq!(conn.ok("FLUSHALL"), "OK");
        let server = after_a_crash(kind, &ALWAYS, flush, |_| ());
        let mut conn = server.connect();
        assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000");
        let (begun, _, why) = logged(&server);
        assert_eq!(begun, 3, "at the start, the flush and the second start");
        assert!(why.contains("the server started"), "{why}");
    });
}

/// Whoever repairs a file so that the server starts again cuts off what was granted.
#[test]
fn a_file_that_was_repaired_after_a_start_that_failed() {
    each_server(|kind| {
        let crash = |server: &Server| {
            let bytes = fs::read(appended(server)).expect("the file");
            let last = bytes.windows(10).rposition(|word| word == b"DLOCK._SET").expect("the grant");
            let file = OpenOptions::new().write(true).open(appended(server)).expect("the file");
            file.set_len(last as u64 + 4).expect("it can be cut");
        };
        let conf = [ALWAYS[0], ALWAYS[1], "aof-load-truncated no"];
        let options = conf.iter().fold(with_grace(kind), |options, line| options.conf(line));
        let mut server = options.start();
        end(&server);
        until_proven(&server);
        let mut conn = server.connect();
        // The label makes sure that it is written as an effect.
        for grant in ["early t 600000", "k t 600000 LABEL host"] {
            assert!(conn.ok(&format!("DLOCK.ACQUIRE {grant}")).int() > 0);
        }
        server.kill9();
        crash(&server);
        assert!(server.try_restart().is_err(), "{}", server.log());
        let bytes = fs::read(appended(&server)).expect("the file");
        let whole = bytes.windows(4).rposition(|start| start == b"*3\r\n").expect("the command");
        fs::write(appended(&server), &bytes[..whole]).expect("it can be repaired");
        server.restart();
        let mut conn = server.connect();
        assert_eq!(conn.ok("DLOCK.HOLDS early t"), 1);
        assert_grace(&mut conn, "DLOCK.ACQUIRE k other 1000");
    });
}
