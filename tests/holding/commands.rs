//! Every command of the contract, by cases worked out by hand. `--test waiting` is about waiting.

mod acquiring;
mod confirming;
mod inside;
mod misuse;
mod reading;
mod releasing;

use dlock_testkit::{Conn, Server, ServerKind, Value};

/// The fence of a grant.
#[track_caller]
fn granted(answer: Value) -> i64 {
    let fence = answer.int();
    assert!(fence > 0 && fence < 1 << 53, "no fence: {fence}");
    fence
}

/// A server, a connection to it, and the fence of its only hold: `t` has `k` for ten minutes.
#[track_caller]
fn holding(kind: &ServerKind, options: &str) -> (Server, Conn, i64) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let fence = granted(conn.ok(&format!("DLOCK.ACQUIRE k t 600000 {options}")));
    (server, conn, fence)
}

/// Leases are minutes apart from each other in these tests, so that which one a hold has can be told without
/// timing.
#[track_caller]
fn assert_lease(conn: &mut Conn, key: &str, token: &str, ttl: i64) {
    let left = conn.ok(&format!("DLOCK.PTTL {key} {token}")).int();
    assert!((ttl - 60_000..=ttl).contains(&left), "{left} ms left, it should be a lease of {ttl}");
}

/// The whole lock as a text to compare, the times that run left out.
#[track_caller]
fn state(conn: &mut Conn, key: &str) -> String {
    let lock = conn.ok(&format!("DLOCK.INSPECT {key}"));
    if lock.is_nil() {
        return "free".into();
    }
    let holders = lock.field("holders").items().iter();
    let holders = holders.map(|hold| {
        let [token, count, fence] = ["token", "count", "fence"].map(|name| hold.field(name));
        format!("{token:?} x{count:?} #{fence:?} {:?}", hold.field("label"))
    });
    format!("{:?} {}", lock.field("mode"), holders.collect::<Vec<_>>().join(", "))
}
