//! The only reader of clocks in the client.

use dlock_quorum::Instant;
use std::time::Duration;

/// The longest sleep before the clock is read again: the runtime's timers stop while the machine is
/// suspended, so this is how late, at most, a suspended holder learns that its hold has expired.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// The current time, on the clock that keeps running while the machine is suspended.
// clippy.toml: this file is the only reader of clocks.
#[cfg(unix)]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    use nix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    // On macOS it keeps running. Where it does not, a suspended holder learns only from the servers that its
    // hold has expired.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    Instant::since_boot(clock_gettime(CLOCK).expect("the system has this clock").into())
}

/// The current time, on the clock that keeps running while the machine is suspended.
// QueryPerformanceCounter, which does so, from the first call on.
#[cfg(windows)]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    use std::{sync::OnceLock, time};
    static FIRST: OnceLock<time::Instant> = OnceLock::new();
    Instant::since_boot(FIRST.get_or_init(time::Instant::now).elapsed())
}

/// Sleeps until `then`; returns at once if that is past.
pub async fn sleep_until(then: Instant) {
    loop {
        let left = then.saturating_since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}
