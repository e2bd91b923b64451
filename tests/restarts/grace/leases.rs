//! `dlock.restart-grace` bounds leases, and how far a confirmed fence may be ahead of the clock.

use super::{assert_grace, grace_left, logged_grace, until_granted};
use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Server, ServerKind, each_server};

#[each_server]
fn a_lease_longer_than_the_grace_period_is_refused(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.restart-grace 300").start();
    let mut conn = server.connect();
    let fence = until_granted(&mut conn, "DLOCK.ACQUIRE k t 300");
    let confirm = format!("DLOCK.CONFIRM k t {fence} 301");
    for command in [
        "DLOCK.ACQUIRE k t 301",
        "DLOCK.ACQUIRE free t 301 BLOCK 0",
        "DLOCK.ACQUIRE free t 300 DELAY 301",
        "DLOCK.EXTEND k t 301",
        &confirm,
    ] {
        let error = conn.say(command).error().to_string();
        assert!(error.starts_with("ERR ") && error.contains("to 300"), "{command}: {error}");
    }
    // A lower dlock.max-ttl is the bound instead.
    assert_eq!(conn.ok("CONFIG SET dlock.max-ttl 100"), "OK");
    let error = conn.say("DLOCK.ACQUIRE k t 101").error().to_string();
    assert_eq!(
        error,
        "ERR ttl must be a whole number of milliseconds from 1 to 100 (dlock.max-ttl, or a shorter \
         dlock.restart-grace)"
    );
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    assert_eq!(conn.ok("CONFIG SET dlock.max-ttl 1000"), "OK");
    assert!(conn.ok("DLOCK.ACQUIRE other t 1000").int() > 0);
}

#[each_server]
fn restore_refuses_a_lease_longer_than_the_grace_period(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t 60000");
    let dump = conn.ok("DUMP k");
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 59999"), "OK");
    let restore = |key: &[u8]| [&b"RESTORE"[..], key, b"0", dump.bytes()].map(<[u8]>::to_vec);
    assert!(conn.call(&restore(b"a")).error().starts_with("ERR "));
    assert!(server.log().contains("its ttl is longer than"), "{}", server.log());
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 60000"), "OK");
    assert_eq!(conn.call(&restore(b"a")), "OK");
}

#[each_server]
fn confirm_refuses_a_fence_further_ahead_than_half_the_grace_period(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 60000").int();
    // Without a grace period (0), the limit is 10 s.
    for (grace, limit_s) in [(0, 10), (600_000, 300), (100_000, 50)] {
        assert_eq!(conn.ok(&format!("CONFIG SET dlock.restart-grace {grace}")), "OK");
        // Fences follow the clock, so this one stays beyond the limit for 8 s.
        let beyond = fence + (limit_s + 8) * 1_000_000;
        let error = conn.say(&format!("DLOCK.CONFIRM k t {beyond} 60000")).error().to_string();
        assert!(error.starts_with("FENCEAHEAD ") && error.contains(&format!("{limit_s}000 ms")), "{error}");
    }
    let within = fence + 49_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {within} 60000")), within);
}

#[each_server]
fn a_change_of_the_option_neither_begins_nor_shortens_a_grace_period(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE before t 600000");
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 600000"), "OK");
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
    assert_eq!((grace_left(&server), logged_grace(&server).begun), (0, 0));
    // FLUSHDB ends the hold in database 3, and begins a grace period. FLUSHALL ends the holds in database 0.
    assert_eq!(conn.ok("SELECT 3"), "OK");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("FLUSHDB"), "OK");
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 100"), "OK");
    assert!(grace_left(&server) > 500_000, "the lost lease of 600 s may still run");
    assert_eq!(conn.ok("FLUSHALL"), "OK");
    assert!(grace_left(&server) > 500_000, "another loss does not shorten the grace period");
    assert_grace(&mut conn, "DLOCK.ACQUIRE k t 100");
    // The value 0 switches grace periods off, and ends the current one.
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    assert_eq!((grace_left(&server), logged_grace(&server).ended), (0, 1));
    assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
}

/// A lease longer than `dlock.restart-grace` could outlast the grace period of the next start.
#[each_server]
fn a_waiter_is_refused_at_its_turn_when_its_lease_exceeds_a_lowered_limit(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    for (option, acquire) in [
        ("dlock.restart-grace", "DLOCK.ACQUIRE k w 60001 BLOCK 0"),
        ("dlock.max-ttl", "DLOCK.ACQUIRE k w 60001 BLOCK 0"),
        ("dlock.max-ttl", "DLOCK.ACQUIRE k w 100 DELAY 60001 BLOCK 0"),
    ] {
        assert!(conn.ok("DLOCK.ACQUIRE k t 600000").int() > 0);
        let mut long = waiter(&server, acquire);
        let mut short = waiter(&server, "DLOCK.ACQUIRE k u 60000 BLOCK 0");
        assert_eq!(conn.ok(&format!("CONFIG SET {option} 60000")), "OK");
        assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
        let refused = long.read();
        assert!(refused.error().starts_with("ERR the longest lease"), "{refused:?}");
        granted(&mut short);
        assert_eq!(conn.ok("DLOCK.RELEASE k u"), 1);
        let default = if option == "dlock.max-ttl" { 86_400_000 } else { 0 };
        assert_eq!(conn.ok(&format!("CONFIG SET {option} {default}")), "OK");
    }
}
