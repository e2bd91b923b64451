//! DLOCK.RELEASE, DLOCK.EXTEND and DLOCK.BREAK.

use super::{assert_lease, granted, holding, state};
use dlock_testkit::{Server, ServerKind, Value, each_server};

#[each_server]
fn release_frees_the_lock_and_returns_0_when_sent_again(kind: &ServerKind) {
    let (_server, mut conn, _) = holding(kind, "");
    assert_eq!(conn.ok("TYPE k"), "dlock-key");
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    // A free resource leaves nothing behind.
    assert_eq!(conn.ok("DBSIZE"), 0);
    for again in ["DLOCK.RELEASE k t", "DLOCK.RELEASE k t ALL", "DLOCK.RELEASE k t DEPTH 0"] {
        assert_eq!(conn.ok(again), 0, "{again}");
    }
    assert_eq!(conn.ok("DBSIZE"), 0);
}

#[each_server]
fn release_and_extend_return_0_for_another_token(kind: &ServerKind) {
    let (_server, mut conn, _) = holding(kind, "DEPTH 3");
    let before = state(&mut conn, "k");
    for command in [
        "DLOCK.RELEASE k other",
        "DLOCK.RELEASE k other ALL",
        "DLOCK.RELEASE k other DEPTH 1",
        "DLOCK.EXTEND k other 3600000",
    ] {
        assert_eq!(conn.ok(command), 0, "{command}");
    }
    assert_eq!(state(&mut conn, "k"), before);
    assert_lease(&mut conn, "k", "t", 600_000);
}

#[each_server]
fn release_ends_one_count_and_the_last_one_ends_the_hold(kind: &ServerKind) {
    let (_server, mut conn, _) = holding(kind, "DEPTH 3");
    for left in [2, 1] {
        assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), left);
        assert_eq!(conn.ok("DLOCK.ACQUIRE k other 600000"), Value::Nil);
    }
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    assert_eq!(conn.ok("DLOCK.HOLDS k t"), 0);
    granted(conn.ok("DLOCK.ACQUIRE k other 600000"));
}

#[each_server]
fn release_all_ends_every_count_and_depth_those_above_n(kind: &ServerKind) {
    let (_server, mut conn, _) = holding(kind, "DEPTH 7");
    // What it ends, and what is left; a safe form to send again.
    for (option, ended, left) in
        [("DEPTH 5", 2, 5), ("DEPTH 5", 0, 5), ("DEPTH 9", 0, 5), ("depth 4", 1, 4), ("aLL", 4, 0)]
    {
        assert_eq!(conn.ok(&format!("DLOCK.RELEASE k t {option}")), ended, "{option}");
        assert_eq!(conn.ok("DLOCK.HOLDS k t"), left, "after {option}");
    }
    granted(conn.ok("DLOCK.ACQUIRE k t 600000 DEPTH 3"));
    assert_eq!(conn.ok("DLOCK.RELEASE k t DEPTH 0"), 3);
    assert_eq!(conn.ok("EXISTS k"), 0);
}

#[each_server]
fn release_keeps_the_lease_and_fence_of_remaining_counts(kind: &ServerKind) {
    let (_server, mut conn, fence) = holding(kind, "DEPTH 3 LABEL host");
    assert_eq!(conn.ok("DLOCK.RELEASE k t"), 1);
    assert_eq!(state(&mut conn, "k"), format!(r#""exclusive" "t" x2 #{fence} "host""#));
    assert_lease(&mut conn, "k", "t", 600_000);
}

#[each_server]
fn extend_sets_a_longer_or_shorter_lease_and_nothing_else(kind: &ServerKind) {
    let (_server, mut conn, fence) = holding(kind, "DEPTH 2 LABEL host");
    let before = state(&mut conn, "k");
    for ttl in [3_600_000, 300_000, 300_000] {
        assert_eq!(conn.ok(&format!("DLOCK.EXTEND k t {ttl}")), 1);
        assert_lease(&mut conn, "k", "t", ttl);
    }
    assert_eq!(state(&mut conn, "k"), before);
    assert_eq!(conn.ok("DLOCK.INSPECT k").field("fence"), &fence);

    assert_eq!(conn.ok("DLOCK.EXTEND free t 600000"), 0);
    assert_eq!(conn.ok("EXISTS free"), 0);
}

#[each_server]
fn break_ends_the_hold_whatever_its_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut holder, mut operator) = (server.connect(), server.connect());
    let fence = granted(holder.ok("DLOCK.ACQUIRE k t 600000 DEPTH 5"));
    assert_eq!(operator.ok("DLOCK.BREAK k"), 1);
    assert_eq!(operator.ok("EXISTS k"), 0);
    assert_eq!(operator.ok("DLOCK.BREAK k"), 0);
    // The broken holder is a stranger now.
    assert_eq!(holder.ok("DLOCK.HOLDS k t"), 0);
    assert_eq!(holder.ok("DLOCK.EXTEND k t 600000"), 0);
    assert!(granted(operator.ok("DLOCK.ACQUIRE k other 600000")) > fence);
    assert_eq!(holder.ok("DLOCK.RELEASE k t ALL"), 0);
    assert_eq!(operator.ok("DLOCK.HOLDS k other"), 1);

    for token in ["a", "b", "c"] {
        granted(holder.ok(&format!("DLOCK.ACQUIRE shared {token} 600000 SHARED")));
    }
    assert_eq!(operator.ok("DLOCK.BREAK shared"), 3);
    assert_eq!(operator.ok("DLOCK.INSPECT shared"), Value::Nil);
}
