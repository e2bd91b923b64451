//! The one timer, armed for the next task of the background job. It runs by the wall clock, so it is only a
//! hint: the job reads the server clock.

use crate::clock;
use crate::ffi::notices;
use crate::module::Module;

/// Longest time that the timer is armed for, in ms.
const MAX_MILLIS: u64 = 24 * 3600 * 1000;

/// Arms the timer for the next task, unless it is armed for then or sooner.
#[inline(never)]
pub fn rearm(m: &Module) {
    let now = clock::now().millis();
    let Some(due) = m.with(|s| s.next_due()) else { return };
    arm_in(m, due.saturating_sub(now).min(MAX_MILLIS), now);
}

/// Arms the timer to fire in `ms`, unless it is armed for then or sooner. `now` is in ms of the server clock.
pub fn arm_in(m: &Module, ms: u64, now: u64) {
    let late = match m.with(|s| s.timer) {
        Some((_, due)) if due <= now + ms => return,
        other => other,
    };
    if let Some((timer, _)) = late {
        notices::disarm(m.ctx(), timer);
    }
    let timer = notices::arm::<Module>(m.ctx(), ms);
    m.with(|s| s.timer = Some((timer, now + ms)));
}

/// Notes that the timer has fired.
pub fn fired(m: &Module) {
    m.with(|s| s.timer = None);
}

/// Disarms the timer if it is overdue, as it is after the wall clock was set back. Returns whether it was.
pub fn is_late(m: &Module) -> bool {
    let now = clock::now().millis();
    let Some((timer, _)) = m.with(|s| s.timer).filter(|(_, due)| due + 2 < now) else {
        return false;
    };
    notices::disarm(m.ctx(), timer);
    fired(m);
    true
}
