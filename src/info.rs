//! The section of INFO (docs/info.md describes each field), and the warnings to the operator about the
//! configuration: a word in INFO while a warning holds, and a line in the server's log when it begins.

use std::ffi::CStr;

use dlock_core::Name;
use dlock_core::mark::Status;

use crate::clock;
use crate::ffi::{Ctx, EventFlags, LogLevel, Section};
use crate::module::{Module, Warnings};

/// Writes the fields: counters since the start, and gauges.
pub fn write(m: &Module, section: &Section) {
    let (now, warnings) = (clock::now(), check_warnings(m));
    let fields: Vec<(&CStr, u64)> = m.with(|s| {
        let stats = &s.stats;
        vec![
            (c"held", s.background.held() as u64),
            (c"holders", s.background.holders() as u64),
            (c"waiting", s.waiting.clients() as u64),
            (c"queued", s.waiting.queued() as u64),
            (c"longest_wait_ms", s.waiting.longest().map_or(0, |waiter| now.millis_since(waiter.since))),
            (c"fence", s.fences.last()),
            (c"fence_mark", s.fences.mark().unwrap_or(0)),
            (c"fences_beyond_mark", s.fences.beyond()),
            (c"grace_ms_left", s.grace_left(now)),
            (c"warnings", warnings.count()),
            (c"followed", s.followers.may_follow.into()),
            (c"grants", stats.grants),
            (c"handoffs", stats.handoffs),
            (c"denials", stats.denials),
            (c"releases", stats.releases),
            (c"expiries", stats.expiries),
            (c"disconnects", stats.disconnects),
            (c"breaks", stats.breaks),
            (c"timeouts", stats.timeouts),
            (c"cancels", stats.cancels),
            (c"deadlocks", stats.deadlocks),
            (c"queue_refusals", stats.queue_refusals),
            (c"grace_refusals", stats.grace_refusals),
            (c"waiters_gone", stats.waiters_gone),
            (c"evictions", stats.evictions),
            (c"effects_skipped", stats.effects_skipped),
            (c"waited_ms_p50", stats.waited.all.value_at_quantile(0.5)),
            (c"waited_ms_p99", stats.waited.all.value_at_quantile(0.99)),
            (c"waited_ms_max", stats.waited.all.max()),
            (c"held_ms_p50", stats.held.all.value_at_quantile(0.5)),
            (c"held_ms_p99", stats.held.all.value_at_quantile(0.99)),
            (c"held_ms_max", stats.held.all.max()),
        ]
    });
    for (field, value) in fields {
        section.number(field, value);
    }
    let longest = m.with(|s| s.waiting.longest().map(|waiter| waiter.name.clone()));
    section.text(c"longest_wait_lock", &longest.map_or_else(String::new, |name| lock_text(&name)));
    section.text(c"waited_ms", &m.with(|s| s.stats.waited.cumulative()));
    section.text(c"held_ms", &m.with(|s| s.stats.held.cumulative()));
    section.text(c"warning_words", &warnings.words());
    section.text(c"fence_mark_status", m.with(|s| s.mark.marking.status().word()));
}

/// The longest key that is shown, in bytes.
const MAX_KEY: usize = 256;

/// Returns the database and the key, such as `0 jobs%3A1`. The server would replace some characters of a
/// field, among them the colon. Empty if the key is too long.
fn lock_text(name: &Name<'_>) -> String {
    let encoded = name.key.iter().map(|byte| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' | b'/' => {
            char::from(*byte).into()
        }
        byte => format!("%{byte:02X}"),
    });
    if name.key.len() > MAX_KEY {
        String::new()
    } else {
        format!("{} {}", name.db, encoded.collect::<String>())
    }
}

// Warnings.

/// Reads the server's options again, and logs the warnings that begin to hold.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    let policy = ctx.eviction_policy();
    m.with(|s| s.evictions.configured(&policy));
    check_warnings(m);
}

/// Returns the warnings that hold now, and logs the new ones.
fn check_warnings(m: &Module) -> Warnings {
    let announces = m.ctx().event_flags().contains(EventFlags::MODULE | EventFlags::KEYSPACE);
    let (found, new) = m.with(|s| {
        let bounds = s.config.bounds;
        let mut found = Warnings::default();
        found.set(Warnings::EVICTION, s.evictions.can_evict_locks());
        found.set(Warnings::EVENTS, !announces);
        found.set(Warnings::GRACE, bounds.grace.is_some_and(|grace| grace < bounds.max_ttl));
        found.set(Warnings::MARK, !s.config.fence_mark || s.mark.marking.status() == Status::Failing);
        let before = std::mem::replace(&mut s.warnings, found);
        (found, found - before)
    });
    for text in new.iter().filter_map(|warning| log_line(m, warning)) {
        m.ctx().log(LogLevel::Warning, &text);
    }
    found
}

/// Returns the line for the log. `None` if the cause is logged elsewhere.
fn log_line(m: &Module, warning: Warnings) -> Option<String> {
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
            "dlock.restart-grace is {} ms, so longer leases are refused, although dlock.max-ttl is {} ms: set both \
             to the longest lease that you need",
            bounds.grace?.millis(),
            bounds.max_ttl.millis()
        ),
        // `fence_mark.rs` logs failed writes.
        _ if m.with(|s| s.config.fence_mark) => return None,
        _ => "dlock.fence-mark is no: fences fall if all data is lost and the clock is set back".into(),
    })
}
