//! What an operator should change: a word in INFO for as long as it is so, and a line in the log when it
//! begins.

use dlock_core::marking::Status;

use crate::ffi::{Announced, Ctx, LogLevel};
use crate::module::{Module, State, Warnings};

/// The server's options may be others than before.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    let policy = ctx.eviction_policy();
    m.with(|s| s.evictions.configured(&policy));
    look(m);
}

/// Looks at all of it, and tells what is new.
pub fn look(m: &Module) -> Warnings {
    let heard = m.ctx().announced().contains(Announced::MODULE | Announced::KEYSPACE);
    let (found, new) = m.with(|s| {
        let mut found = of(s);
        found.set(Warnings::EVENTS, !heard);
        let before = std::mem::replace(&mut s.warnings, found);
        (found, found - before)
    });
    for text in new.iter().filter_map(|warning| text(m, warning)) {
        m.ctx().log(LogLevel::Warning, &text);
    }
    found
}

/// Of what the module knows itself.
fn of(s: &State) -> Warnings {
    let bounds = s.config.bounds;
    let mut found = Warnings::default();
    found.set(Warnings::EVICTION, s.evictions.take_locks());
    found.set(Warnings::GRACE, bounds.grace.is_some_and(|grace| grace < bounds.max_ttl));
    found.set(Warnings::MARK, !s.config.fence_mark || s.mark.status() == Status::Failing);
    found
}

/// None where it is told already.
fn text(m: &Module, warning: Warnings) -> Option<String> {
    let bounds = m.with(|s| s.config.bounds);
    Some(match warning {
        Warnings::EVICTION => {
            "maxmemory-policy allkeys-* evicts locks that are held, as any key, when memory is \
                               short, and others are granted them then: use noeviction, or volatile-*"
                .into()
        }
        Warnings::EVENTS => {
            "nobody will hear of a released lock: notify-keyspace-events has to hold K and d (module \
                             events), for example \"Kd\""
                .into()
        }
        Warnings::GRACE => format!(
            "dlock.restart-grace is {} ms, so leases of up to dlock.max-ttl, {} ms, are refused: set both to the \
             longest lease that you need",
            bounds.grace?.millis(),
            bounds.max_ttl.millis()
        ),
        // What cannot be written is told where that is tried.
        _ if m.with(|s| s.config.fence_mark) => return None,
        _ => "dlock.fence-mark is no: fences fall if all data is lost and the clock is set back".into(),
    })
}
