//! DLOCK.CONFIRM: the second phase of a fenced quorum.

use super::{assert_lease, granted, holding, state};
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

#[each_server]
fn confirm_of_the_holds_own_fence_sets_the_lease(kind: &ServerKind) {
    let (_server, mut conn, fence) = holding(kind, "DEPTH 2 LABEL host");
    let before = state(&mut conn, "k");
    for ttl in [3_600_000, 300_000, 300_000] {
        assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {fence} {ttl}")), fence);
        assert_lease(&mut conn, "k", "t", ttl);
    }
    assert_eq!(state(&mut conn, "k"), before);
}

#[each_server]
fn confirm_of_a_higher_fence_raises_the_hold_and_the_counter(kind: &ServerKind) {
    let (server, mut conn, first) = holding(kind, "");
    // Ahead of the clock by less than the skew bound of 10 s.
    let raised = first + 5_000_000;
    let confirm = format!("DLOCK.CONFIRM k t {raised} 3600000");
    assert_eq!(conn.ok(&confirm), raised);
    assert_lease(&mut conn, "k", "t", 3_600_000);
    assert_eq!(state(&mut conn, "k"), format!(r#""exclusive" "t" x1 #{raised} """#));
    assert_eq!(server.info("dlock_fence"), raised.to_string());
    assert_eq!(conn.ok(&confirm), raised, "sent again it answers the same");
    // A retry of the ACQUIRE belongs to the same hold.
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), raised);
    assert_eq!(conn.ok("DLOCK.ACQUIRE other t 600000"), raised + 1);
}

/// The fence had to tell how old a hold is, and a raised one told of a grant in the future.
#[each_server]
fn confirm_keeps_the_age_of_the_hold(kind: &ServerKind) {
    let options = |kind| Server::options(kind).conf("appendonly yes").conf("appendfsync always");
    let (mut server, replica) = (options(kind).start(), Server::start(kind));
    replica.replicate(&server);
    let mut conn = server.connect();
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let held = |server: &Server| {
        server.connect().ok("DLOCK.INSPECT k").field("holders").items()[0].field("held").int()
    };
    until("it is 30 ms old", || held(&server) >= 30);
    let raised = fence + 9_000_000;
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {raised} 3600000")), raised);
    let age = held(&server);
    assert!(age >= 30, "{age}");
    replica.wait_in_sync(&server);
    assert!(held(&replica) >= age, "its replica knows");
    server.kill9();
    server.restart();
    assert!(held(&server) >= age, "a restart knows");
    assert_eq!(server.connect().ok("DLOCK.RELEASE k t"), 1);
    let longest: i64 = server.info("dlock_held_ms_max").parse().expect("a number");
    assert!((age..60_000).contains(&longest), "{longest}");
}

#[each_server]
fn confirm_of_a_lower_fence_returns_the_greater_and_changes_nothing(kind: &ServerKind) {
    let (_server, mut conn, fence) = holding(kind, "");
    for lower in [1, fence - 1] {
        assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {lower} 3600000")), fence);
    }
    assert_lease(&mut conn, "k", "t", 600_000);
    assert_eq!(state(&mut conn, "k"), format!(r#""exclusive" "t" x1 #{fence} """#));
}

#[each_server]
fn confirm_returns_null_and_changes_no_fence_for_a_token_that_holds_nothing(kind: &ServerKind) {
    let (server, mut conn, fence) = holding(kind, "");
    let higher = fence + 5_000_000;
    for command in ["DLOCK.CONFIRM k other", "DLOCK.CONFIRM free t"] {
        assert_eq!(conn.ok(&format!("{command} {higher} 3600000")), Value::Nil);
    }
    // Not even an impossible fence tells a stranger more.
    assert_eq!(conn.ok("DLOCK.CONFIRM k other 9007199254740991 3600000"), Value::Nil);
    assert_eq!(conn.ok("EXISTS free"), 0);
    assert_eq!(server.info("dlock_fence"), fence.to_string());
    assert_lease(&mut conn, "k", "t", 600_000);
}

#[each_server]
fn confirm_refuses_a_fence_beyond_the_skew_bound_and_changes_no_fence(kind: &ServerKind) {
    let (server, mut conn, fence) = holding(kind, "");
    // A minute, and the end of the number space.
    for ahead in [fence + 60_000_000, (1 << 53) - 1] {
        let refused = conn.say(&format!("DLOCK.CONFIRM k t {ahead} 3600000"));
        let words = refused.error().to_string();
        assert!(words.starts_with("FENCEAHEAD the fence lies "), "{words}");
        assert!(words.contains(" beyond the 10000 ms "), "{words}");
    }
    assert_eq!(server.info("dlock_fence"), fence.to_string());
    assert_lease(&mut conn, "k", "t", 600_000);
    assert_eq!(conn.ok("DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(conn.ok(&format!("DLOCK.CONFIRM k t {fence} 600000")), fence);
}

#[each_server]
fn confirm_accepts_fences_below_2_to_the_53(kind: &ServerKind) {
    let (_server, mut conn, _) = holding(kind, "");
    for fence in ["0", "-1", "9007199254740992", "18446744073709551617", "1.5", "01", "x"] {
        let refused = conn.say(&format!("DLOCK.CONFIRM k t {fence} 600000"));
        assert_eq!(refused.error(), "ERR fence must be a whole number from 1 to 9007199254740991");
    }
}
