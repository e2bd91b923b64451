//! Restart grace: a server that may have lost holds grants no new lock until the longest of their leases has
//! expired.

mod flushed;
mod leases;
mod promoted;
mod started;

use dlock_testkit::{Conn, Options, Server, ServerKind, Value, until};

/// Longer than any test: only [`end_grace`] ends this grace period.
const LONG: &str = "dlock.restart-grace 600000";

fn with_grace(kind: &ServerKind) -> Options {
    Server::options(kind).conf(LONG)
}

/// Asserts that the reply is GRACE with the remaining ms and the advice to operators.
#[track_caller]
fn assert_grace(conn: &mut Conn, command: &str) {
    let answer = conn.say(command);
    let text = answer.error().strip_prefix("GRACE ").unwrap_or_else(|| panic!("{command}: {answer:?}"));
    let (left, text) = text.split_once(' ').expect("a time and a reason");
    let left: u64 = left.parse().expect("ms");
    assert!(
        text.contains("may have lost holds") && text.contains("CONFIG SET dlock.restart-grace 0"),
        "{text}"
    );
    assert!((1..=600_000).contains(&left), "{command}: {left}");
}

/// Returns the remaining ms of the grace period; 0 if there is none.
fn grace_left(server: &Server) -> i64 {
    server.number("dlock_grace_ms_left")
}

/// Ends the grace period as an operator does. Restores the option afterwards.
#[track_caller]
fn end_grace(server: &Server) {
    let mut conn = server.connect();
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 0"), "OK");
    assert_eq!(grace_left(server), 0);
    assert_eq!(conn.ok(&format!("CONFIG SET {LONG}")), "OK");
    assert_eq!(grace_left(server), 0, "a change of the option begins no grace period");
}

/// The grace periods in the log of a server.
struct LoggedGrace {
    begun: usize,
    ended: usize,
    /// Why the last one began. Empty if none has.
    last_reason: String,
}

fn logged_grace(server: &Server) -> LoggedGrace {
    let log = server.log();
    let mut begins = log.lines().filter_map(|line| Some(line.split_once("restart-grace begins: ")?.1));
    LoggedGrace {
        begun: begins.clone().count(),
        ended: log.matches("restart-grace is over: ").count(),
        last_reason: begins.next_back().unwrap_or_default().to_string(),
    }
}

#[track_caller]
fn until_granted(conn: &mut Conn, command: &str) -> i64 {
    let mut fence = None;
    until(&format!("{command} is granted"), || {
        match conn.say(command) {
            Value::Error(why) => assert!(why.starts_with("GRACE "), "{command}: {why}"),
            granted => fence = Some(granted.int()),
        }
        fence.is_some()
    });
    fence.expect("the lock is granted")
}
