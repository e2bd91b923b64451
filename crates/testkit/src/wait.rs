//! Waiting for conditions. There is no other waiting in the tests.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long anything may take before a test gives up. Generous: it is only reached when something is broken.
pub const TIMEOUT: Duration = Duration::from_secs(30);

/// Waits until `condition` holds; panics with `what` when it does not within [`TIMEOUT`].
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(()))
}

/// [`until`] for what takes its time.
#[track_caller]
pub fn until_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let held = poll(limit, || condition().then_some(()));
    assert!(held.is_some(), "waited {limit:?} in vain until {what}");
}

/// Waits until `find` finds something and returns it; panics with `what` when it does not within [`TIMEOUT`].
#[track_caller]
pub fn until_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    match poll(TIMEOUT, &mut find) {
        Some(found) => found,
        None => panic!("waited {TIMEOUT:?} in vain until {what}"),
    }
}

/// Tries each 2 ms for at most `limit`.
pub(crate) fn poll<T>(limit: Duration, mut find: impl FnMut() -> Option<T>) -> Option<T> {
    let start = Instant::now();
    loop {
        if let Some(found) = find() {
            return Some(found);
        }
        if start.elapsed() > limit {
            return None;
        }
        sleep(Duration::from_millis(2));
    }
}
