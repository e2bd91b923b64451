//! The only reader of clocks in the client.

use crate::lease::Instant;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The longest sleep before the clock is read again: the runtime's timers stop while the machine is
/// suspended, so this is how late, at most, a suspended holder learns that its hold has expired.
const LONGEST_SLEEP: Duration = Duration::from_millis(250);

/// The current time, on the clock that keeps running while the machine is suspended.
// clippy.toml: this file is the only reader of clocks.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    let uptime = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has CLOCK_BOOTTIME");
    Instant::since_boot(uptime.into())
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
