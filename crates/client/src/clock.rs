//! The client's one reader of clocks.

use crate::lease::Instant;
use nix::time::{ClockId, clock_gettime};
use std::time::Duration;

/// The longest sleep before another look at the clock: the runtime's timers stand still while the machine is
/// suspended, so this is how late a holder that was asleep learns, at most, that its time is over.
const LOOK: Duration = Duration::from_millis(250);

/// Now, on the clock that runs on while the machine is suspended.
// clippy.toml: this file is the one reader of clocks.
#[allow(clippy::disallowed_methods)]
pub fn now() -> Instant {
    let uptime = clock_gettime(ClockId::CLOCK_BOOTTIME).expect("every Linux since 2.6.39 has CLOCK_BOOTTIME");
    Instant::since_boot(uptime.into())
}

/// Sleeps until `then`, or not at all.
pub async fn sleep_until(then: Instant) {
    loop {
        let left = then.saturating_since(now());
        if left.is_zero() {
            return;
        }
        tokio::time::sleep(left.min(LOOK)).await;
    }
}
