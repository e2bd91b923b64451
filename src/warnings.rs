//! Warnings to the operator about the configuration: a word in INFO while a warning holds, and a line in the
//! server's log when it begins to hold.

use dlock_core::marking::Status;

use crate::ffi::{Announced, Ctx, LogLevel};
use crate::module::{Module, State, Warnings};

/// Reads the server's options again.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    let policy = ctx.eviction_policy();
    m.with(|s| s.evictions.configured(&policy));
    check(m);
}

/// Returns the warnings that hold now, and logs the new ones.
pub fn check(m: &Module) -> Warnings {
    let announces = m.ctx().announced().contains(Announced::MODULE | Announced::KEYSPACE);
    let (found, new) = m.with(|s| {
        let mut found = of_module(s);
        found.set(Warnings::EVENTS, !announces);
        let before = std::mem::replace(&mut s.warnings, found);
        (found, found - before)
    });
    for text in new.iter().filter_map(|warning| text(m, warning)) {
        m.ctx().log(LogLevel::Warning, &text);
    }
    found
}

/// Returns the warnings that follow from the state of the module alone.
fn of_module(s: &State) -> Warnings {
    let bounds = s.config.bounds;
    let mut found = Warnings::default();
    found.set(Warnings::EVICTION, s.evictions.take_locks());
    found.set(Warnings::GRACE, bounds.grace.is_some_and(|grace| grace < bounds.max_ttl));
    found.set(Warnings::MARK, !s.config.fence_mark || s.mark.status() == Status::Failing);
    found
}

/// Returns the line for the log. `None` if the cause is logged elsewhere.
fn text(m: &Module, warning: Warnings) -> Option<String> {
    let bounds = m.with(|s| s.config.bounds);
    Some(match warning {
        Warnings::EVICTION => {
            "maxmemory-policy allkeys-* evicts locks that are held, like any key, when memory is short, and others \
             are granted them then: use noeviction, or volatile-*"
                .into()
        }
        Warnings::EVENTS => {
            "no client is notified when a lock becomes free: notify-keyspace-events must contain K and d (module \
             events), for example \"Kd\""
                .into()
        }
        Warnings::GRACE => format!(
            "dlock.restart-grace is {} ms, so leases of up to dlock.max-ttl, {} ms, are refused: set both to the \
             longest lease that you need",
            bounds.grace?.millis(),
            bounds.max_ttl.millis()
        ),
        // `fence_mark` logs failed writes.
        _ if m.with(|s| s.config.fence_mark) => return None,
        _ => "dlock.fence-mark is no: fences fall if all data is lost and the clock is set back".into(),
    })
}
