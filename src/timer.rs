//! One timer over all deadlines. It runs by the wall clock, so it is a hint: the background job that it
//! starts looks at the server clock.

use crate::clock;
use crate::ffi::notices;
use crate::module::Module;

/// Arms the timer for the first thing that is due, where it is not armed for that or sooner.
#[inline(never)]
pub fn rearm(m: &Module) {
    let now = clock::now().millis();
    let Some(due) = m.with(|s| s.next_due()) else { return };
    let ms = due.saturating_sub(now).min(24 * 3600 * 1000);
    arm_in(m, ms, now);
}

pub fn arm_in(m: &Module, ms: u64, now: u64) {
    let late = match m.with(|s| s.timer) {
        Some((_, armed_for)) if armed_for <= now + ms => return,
        other => other,
    };
    if let Some((timer, _)) = late {
        notices::disarm(m.ctx(), timer);
    }
    let timer = notices::arm::<Module>(m.ctx(), ms);
    m.with(|s| s.timer = Some((timer, now + ms)));
}

/// It has fired.
pub fn fired(m: &Module) {
    m.with(|s| s.timer = None);
}

/// Whether it should have fired by now, as after the wall clock was set back. It fires no more then.
pub fn is_late(m: &Module) -> bool {
    let now = clock::now().millis();
    let Some((timer, _)) = m.with(|s| s.timer).filter(|(_, armed_for)| armed_for + 2 < now) else {
        return false;
    };
    notices::disarm(m.ctx(), timer);
    fired(m);
    true
}
