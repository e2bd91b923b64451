//! SAVE, kill -9, rewrites and reloads keep holds and releases, and fences rise.

use std::time::{SystemTime, UNIX_EPOCH};

use super::{acquire_all_kinds, all_states, state};
use dlock_testkit::queue::first_hold;
use dlock_testkit::{Options, Server, ServerKind, Value, each_server, until};

/// Options without the fence mark, a file beside the data. A restarted server then knows only the fences in
/// its data files.
fn unmarked(kind: &ServerKind) -> Options {
    Server::options(kind).conf("dlock.fence-mark no")
}

/// Options with `appendfsync always`, which loses no acknowledged command.
fn lossless(kind: &ServerKind) -> Options {
    unmarked(kind).synced()
}

#[track_caller]
fn rewrite(server: &Server, preamble: &str) {
    assert_eq!(server.connect().ok(&format!("CONFIG SET aof-use-rdb-preamble {preamble}")), "OK");
    server.rewrite();
}

/// Asserts that the server has the locks of [`acquire_all_kinds`] in these states. INFO must count 10 locks
/// (held, or in a delay) and 10 holders.
#[track_caller]
fn assert_has(server: &Server, locks: &[String]) {
    assert_eq!(all_states(&mut server.connect()), locks);
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [10, 10]);
}

#[each_server]
fn every_kind_of_lock_survives_save_and_kill(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let mut conn = server.connect();
    acquire_all_kinds(&mut conn);
    let before = all_states(&mut conn);
    conn.ok("SAVE");
    server.kill_and_restart();
    assert_has(&server, &before);
}

#[each_server]
fn every_kind_of_lock_survives_kill_with_each_form_of_append_only_file(kind: &ServerKind) {
    for preamble in [None, Some("yes"), Some("no")] {
        let mut server = lossless(kind).start();
        let mut conn = server.connect();
        acquire_all_kinds(&mut conn);
        let before = all_states(&mut conn);
        if let Some(preamble) = preamble {
            rewrite(&server, preamble);
        }
        println!("preamble: {preamble:?}");
        server.kill_and_restart();
        assert_has(&server, &before);
    }
}

#[each_server]
fn every_kind_of_lock_survives_reloads_in_place(kind: &ServerKind) {
    let server = lossless(kind).start();
    let mut conn = server.connect();
    acquire_all_kinds(&mut conn);
    let before = all_states(&mut conn);
    for reload in ["DEBUG RELOAD", "DEBUG LOADAOF", "DEBUG RELOAD"] {
        println!("{reload}");
        assert_eq!(conn.ok(reload), "OK");
        assert_has(&server, &before);
    }
    // The connection of the ephemeral hold is no longer known.
    let hold = first_hold(&mut conn, "ephemeral");
    assert_eq!((hold.field("ephemeral"), hold.field("client")), (&1.into(), &0.into()));
}

#[each_server]
fn a_hold_that_expired_before_the_restart_is_not_shown_after_it(kind: &ServerKind) {
    let mut server = lossless(kind).start();
    let mut conn = server.connect();
    // While writes are paused, the module removes no expired lock, so the append only file retains this one.
    let answers = conn.say_together(&["DLOCK.ACQUIRE k t 30", "CLIENT PAUSE 60000 WRITE"]);
    assert!(answers[0].int() > 0);
    until("the lease has expired", || conn.ok("DLOCK.HOLDS k t") == 0);
    assert_eq!(conn.ok("EXISTS k"), 1);
    let mut conn = server.kill_and_restart();
    assert_eq!((conn.ok("DLOCK.HOLDS k t"), conn.ok("DLOCK.INSPECT k")), (0.into(), Value::Nil));
    until("the background job ends the hold", || conn.ok("EXISTS k") == 0);
    assert_eq!(server.number("dlock_expiries"), 1);
}

/// Arguments of [`restart_by`]. `reload` and `loadaof` load the data again without a restart.
const RESTARTS: [&str; 6] = ["save", "aof", "preamble", "no preamble", "reload", "loadaof"];

#[track_caller]
fn restart_by(server: &mut Server, how: &str) {
    match how {
        "save" => drop(server.connect().ok("SAVE")),
        "preamble" => rewrite(server, "yes"),
        "no preamble" => rewrite(server, "no"),
        "reload" => return drop(server.connect().ok("DEBUG RELOAD")),
        "loadaof" => return drop(server.connect().ok("DEBUG LOADAOF")),
        _ => {}
    }
    server.kill_and_restart();
}

/// Starts a server for this kind of restart. Returns the server, and the fence of its only hold. Fences
/// follow the clock in µs, and this one is 9 s ahead of it. A server that lost this fence would issue lower
/// ones.
#[track_caller]
fn with_raised_fence(kind: &ServerKind, how: &str) -> (Server, i64) {
    let server = if how == "save" { unmarked(kind).start() } else { lossless(kind).start() };
    let mut conn = server.connect();
    let raised = conn.ok("DLOCK.ACQUIRE k t 600000").int() + 9_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 600000")), raised);
    (server, raised)
}

#[each_server]
fn fences_rise_over_every_kind_of_restart(kind: &ServerKind) {
    for how in RESTARTS {
        let (mut server, raised) = with_raised_fence(kind, how);
        restart_by(&mut server, how);
        assert_eq!(server.number("dlock_fence"), raised, "{how}");
        assert_eq!(server.connect().ok("DLOCK.ACQUIRE other t 600000"), raised + 1, "{how}");
    }
}

#[each_server]
fn fences_rise_over_a_restart_with_every_lock_released(kind: &ServerKind) {
    // A rewrite without a preamble writes only keys, and no key contains the fence after the release.
    // mark/restarts.rs tests this case with the fence mark.
    for how in RESTARTS.into_iter().filter(|how| *how != "no preamble") {
        let (mut server, raised) = with_raised_fence(kind, how);
        assert_eq!(server.connect().ok("DLOCK.RELEASE k t"), 1);
        restart_by(&mut server, how);
        assert_eq!(server.connect().ok("DLOCK.ACQUIRE k t 600000"), raised + 1, "{how}");
    }
}

/// Redis 7.0 writes a header for the module's own data into every RDB file, even if the module writes no
/// data. The module used to refuse such a header. A server without grants could not restart, because the base
/// of its append only file is an RDB file.
#[each_server]
fn a_server_without_grants_restarts(kind: &ServerKind) {
    let mut server = lossless(kind).start();
    server.restart();
    server.connect().ok("SAVE");
    server.restart_with(|options| options.conf("appendonly no"));
    assert!(server.log().contains("DB loaded from disk"));
    let mut conn = server.connect();
    assert_eq!(conn.ok("DEBUG RELOAD"), "OK");
    assert_eq!(state(&mut conn, "k"), "free");
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
}

/// The server loads a lock before it checks the native TTL, and drops the lock if the TTL has elapsed.
#[each_server]
fn a_lock_dropped_at_load_by_its_native_ttl_does_not_end_the_next_hold(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let mut conn = server.connect();
    let soon = wall_millis() + 200;
    conn.ok("DLOCK.ACQUIRE k t 2000");
    conn.ok(&format!("PEXPIREAT k {soon}"));
    conn.ok("SAVE");
    server.kill9();
    until("the native TTL has elapsed", || wall_millis() > soon);
    server.restart();
    let mut conn = server.connect();
    assert_eq!(conn.ok("EXISTS k"), 0);
    let fence = conn.ok("DLOCK.ACQUIRE k u 600000").int();
    // The module does not learn that the server dropped the lock, and counts the hold until its lease ends.
    until("the old lease has expired", || server.number("dlock_held") == 1);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k u 600000"), fence);
    assert_eq!(server.number("dlock_expiries"), 0);
}

#[allow(clippy::disallowed_methods, reason = "a native TTL runs by the wall clock")]
fn wall_millis() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is past 1970").as_millis()
}

#[each_server]
fn a_clean_shutdown_keeps_every_lock_that_is_not_ephemeral(kind: &ServerKind) {
    let mut server = Server::options(kind).conf("appendonly yes").start();
    let mut conn = server.connect();
    acquire_all_kinds(&mut conn);
    let before = all_states(&mut conn);
    assert!(server.terminate().success());
    server.restart();
    // The ephemeral hold ended with its connection, before the server ended.
    let without_ephemeral =
        |lines: Vec<String>| lines.into_iter().filter(|line| !line.contains("ephemeral")).collect::<Vec<_>>();
    assert_eq!(without_ephemeral(all_states(&mut server.connect())), without_ephemeral(before));
}
