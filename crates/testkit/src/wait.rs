//! Waiting for conditions. Tests wait in no other way.

use std::thread::sleep;
use std::time::{Duration, Instant};

/// Time limit of every wait. Generous, because it only ends a hang.
pub const TIMEOUT: Duration = Duration::from_secs(120);

/// Waits until `condition` is true. Panics with `what` if the condition is not true within [`TIMEOUT`].
#[track_caller]
pub fn until(what: &str, mut condition: impl FnMut() -> bool) {
    until_some(what, || condition().then_some(()))
}

/// Like [`until`], with another time limit.
#[track_caller]
pub fn until_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    let result = poll(limit, || condition().then_some(()));
    assert!(result.is_some(), "waited {limit:?} in vain until {what}");
}

/// Waits until `find` returns a value, and returns it. Panics with `what` if `find` returns no value within
/// [`TIMEOUT`].
#[track_caller]
pub fn until_some<T>(what: &str, mut find: impl FnMut() -> Option<T>) -> T {
    match poll(TIMEOUT, &mut find) {
        Some(found) => found,
        None => panic!("waited {TIMEOUT:?} in vain until {what}"),
    }
}

/// Calls `find` every 2 ms until it returns a value, for at most `limit`.
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
