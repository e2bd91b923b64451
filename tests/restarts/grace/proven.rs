//! The proof that nothing was forgotten: when it comes, and that a start believes it.

use std::fs;
use std::path::PathBuf;

use super::{
    ALWAYS, LONG, assert_grace, assert_unproven, end, logged, until_granted, until_proven, with_grace,
};
use dlock_testkit::{Server, ServerKind, each_server, until};

/// A server that keeps every grant, and has proven it.
#[track_caller]
pub fn proven(kind: &ServerKind) -> Server {
    let server = ALWAYS.iter().fold(with_grace(kind), |options, line| options.conf(line)).start();
    end(&server);
    until_proven(&server);
    server
}

pub fn path(server: &Server) -> PathBuf {
    server.dir().join(format!("dlock-{}.proof", server.port()))
}

#[test]
fn after_the_first_grace_no_restart_has_any_while_every_grant_is_kept() {
    each_server(|kind| {
        let options = ALWAYS.iter().fold(Server::options(kind), |options, line| options.conf(line));
        let mut server = options.conf("dlock.restart-grace 300").start();
        let mut conn = server.connect();
        // Ended by its time.
        until_granted(&mut conn, "DLOCK.ACQUIRE probe t 1");
        until_proven(&server);
        let file = fs::read_to_string(path(&server)).expect("the proof");
        assert!(file.starts_with("dlock-proof 1 ") && file.contains(" appendonly.aof "), "{file}");
        assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 600000"), "OK");
        server.restart_with(|options| options.conf(LONG));
        for round in 0..3 {
            let fence = server.connect().ok(&format!("DLOCK.ACQUIRE k{round} t 600000")).int();
            if round == 1 {
                assert!(server.terminate().success());
            } else {
                server.kill9();
            }
            server.restart();
            let mut conn = server.connect();
            assert_eq!(conn.ok(&format!("DLOCK.ACQUIRE k{round} t 600000")), fence);
            assert_eq!(logged(&server).0, 1, "only at the first start: {}", server.log());
            assert_eq!(server.info("dlock_restart_proof"), "ok", "at once");
        }
        assert_eq!(fs::read_to_string(path(&server)).expect("the proof"), file, "it is the same one");
    });
}

#[test]
fn there_is_none_before_a_grace_has_ended_nor_where_it_is_off() {
    each_server(|kind| {
        let server = ALWAYS.iter().fold(with_grace(kind), |options, line| options.conf(line)).start();
        assert_unproven(&server, "no grace period has ended");
        assert!(!path(&server).exists());
        let server = ALWAYS.iter().fold(Server::options(kind), |options, line| options.conf(line)).start();
        assert_unproven(&server, "dlock.restart-grace is off");
        let options = ALWAYS.iter().fold(with_grace(kind), |options, line| options.conf(line));
        let unmarked = options.conf("dlock.fence-mark no").start();
        end(&unmarked);
        assert_unproven(&unmarked, "dlock.fence-mark is off");
        // Nothing was ever waited for.
        assert_eq!(server.connect().ok(&format!("CONFIG SET {}", LONG)), "OK");
        assert_unproven(&server, "no grace period has ended");
        assert!(!path(&server).exists());
    });
}

#[test]
fn it_comes_when_the_file_holds_what_was_granted_before_it_was_switched_on() {
    each_server(|kind| {
        let mut server = with_grace(kind).start();
        end(&server);
        let mut conn = server.connect();
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        assert_unproven(&server, "no append only file");
        assert_eq!(conn.ok("CONFIG SET appendonly yes"), "OK");
        assert_unproven(&server, "appendfsync is not always");
        assert_eq!(conn.ok("CONFIG SET appendfsync always"), "OK");
        until_proven(&server);
        server.kill9();
        server.restart_with(|options| ALWAYS.iter().fold(options, |options, line| options.conf(line)));
        let mut conn = server.connect();
        assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
        assert!(conn.ok("DLOCK.ACQUIRE free t 1000").int() > fence);
        assert_eq!(logged(&server).0, 1);
    });
}

#[test]
fn a_rewrite_voids_nothing() {
    each_server(|kind| {
        let mut server = proven(kind);
        let mut conn = server.connect();
        for preamble in ["yes", "no"] {
            conn.ok(&format!("DLOCK.ACQUIRE {preamble} t 600000"));
            assert_eq!(conn.ok(&format!("CONFIG SET aof-use-rdb-preamble {preamble}")), "OK");
            conn.ok("BGREWRITEAOF");
            assert_eq!(server.info("dlock_restart_proof"), "ok");
            let done = || {
                server.info("aof_rewrite_in_progress") == "0" && server.info("aof_rewrite_scheduled") == "0"
            };
            until("the rewrite is done", done);
            assert_eq!(server.info("dlock_restart_proof"), "ok");
        }
        server.kill9();
        server.restart();
        assert!(server.connect().ok("DLOCK.ACQUIRE free t 1000").int() > 0);
        assert_eq!(logged(&server).0, 1);
    });
}

/// What is in the file is known, whatever the options are today.
#[test]
fn a_start_with_weaker_options_believes_it_once() {
    each_server(|kind| {
        let mut server = proven(kind);
        let fence = server.connect().ok("DLOCK.ACQUIRE k t 600000").int();
        server.kill9();
        server.restart_with(|options| options.conf("appendfsync everysec"));
        assert!(!path(&server).exists(), "it is withdrawn before anybody is served");
        let mut conn = server.connect();
        assert!(conn.ok("DLOCK.ACQUIRE free t 1000").int() > fence);
        assert_eq!(logged(&server).0, 1);
        server.wait_written();
        server.kill9();
        server.restart_with(|options| options.conf("appendfsync always"));
        assert_grace(&mut server.connect(), "DLOCK.ACQUIRE other t 1000");
    });
}

#[test]
fn a_flush_voids_it_until_the_grace_after_it_is_over() {
    each_server(|kind| {
        let mut server = proven(kind);
        let mut conn = server.connect();
        conn.ok("DLOCK.ACQUIRE k t 600000");
        assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 300"), "OK");
        let answers = conn.say_together(&["FLUSHALL", "INFO dlock"]);
        assert!(answers[1].text().contains("dlock_restart_proof:none"), "{answers:?}");
        until_proven(&server);
        server.kill9();
        // The FLUSHALL still stands in the file.
        server.restart();
        assert!(server.connect().ok("DLOCK.ACQUIRE k other 1000").int() > 0);
        assert_eq!(logged(&server).0, 2, "{}", server.log());
    });
}

/// A mark that a fence from outside has carried far ahead need not be written for its number's sake.
#[test]
fn a_fence_far_ahead_leaves_the_server_its_sign_of_life() {
    each_server(|kind| {
        let server = proven(kind);
        let mut conn = server.connect();
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int() + 200_000_000;
        assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {fence} 600000")), fence);
        let mark = path(&server).with_extension("fence");
        let written = || fs::metadata(&mark).and_then(|found| found.modified()).expect("the mark");
        until("the mark covers it", || server.info("dlock_fence_mark") > fence.to_string());
        for _ in 0..2 {
            let before = written();
            until("it is written again", || written() > before);
        }
        assert!(server.info("dlock_fence_mark") > fence.to_string());
    });
}
