//! How long the random tests run: the variables that `make` sets from ROUNDS and SECONDS.

use std::env;
use std::str::FromStr;
use std::time::Duration;

/// `DLOCK_ROUNDS`: how often a random test does what it does.
pub fn rounds(normally: usize) -> usize {
    number("DLOCK_ROUNDS").unwrap_or(normally)
}

/// `DLOCK_RESTARTS`: how often servers are started anew with the clock set back.
pub fn restarts(normally: usize) -> usize {
    number("DLOCK_RESTARTS").unwrap_or(normally)
}

/// `DLOCK_SECONDS`: how long a test runs that goes on for a time.
pub fn run_time() -> Option<Duration> {
    number("DLOCK_SECONDS").map(Duration::from_secs)
}

pub(crate) fn number<N: FromStr>(name: &str) -> Option<N> {
    let text = env::var(name).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{name} must be a number, not {text:?}")))
}
