//! The only reader of clocks in the client.

use dlock_quorum::Instant;
use std::time::Duration;

/// Longest sleep before the clock is read again. The timers of tokio stop while the machine is suspended. So
/// after the machine has woken up, a holder learns within this time that its hold has expired.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// Returns the current time on the clock that continues while the machine is suspended.
// clippy.toml forbids reading a clock anywhere else.
#[cfg(unix)]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    use nix::time::{ClockId, clock_gettime};
    #[cfg(any(target_os = "linux", target_os = "android"))]
    const CLOCK: ClockId = ClockId::CLOCK_BOOTTIME;
    // On macOS, this clock continues during a suspend. On a system where it stops, a suspended holder learns
    // only from the servers that its hold has expired.
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    const CLOCK: ClockId = ClockId::CLOCK_MONOTONIC;
    Instant::since_boot(clock_gettime(CLOCK).expect("the system has this clock").into())
}

/// Returns the current time on the clock that continues while the machine is suspended.
// std's `Instant` is QueryPerformanceCounter here, which continues during a suspend. The time is counted from
// the first call.
#[cfg(windows)]
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    use std::{sync::OnceLock, time};
    static FIRST: OnceLock<time::Instant> = OnceLock::new();
    Instant::since_boot(FIRST.get_or_init(time::Instant::now).elapsed())
}

/// Sleeps until `then`. Returns at once if `then` has passed.
pub async fn sleep_until(then: Instant) {
    loop {
        let left = then.saturating_since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LONGEST_SLEEP)).await;
    }
}
