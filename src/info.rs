//! The section of INFO: counters since the start, and gauges. docs/info.md describes each field.

use std::ffi::CStr;

use crate::clock;
use crate::ffi::Section;
use crate::module::Module;
use crate::warnings;

pub fn write(m: &Module, section: &Section) {
    let (now, warnings) = (clock::now(), warnings::check(m));
    let fields: Vec<(&CStr, u64)> = m.with(|s| {
        let stats = &s.stats;
        vec![
            (c"held", s.background.held() as u64),
            (c"holders", s.background.holders() as u64),
            (c"waiting", s.waiting.clients() as u64),
            (c"queued", s.waiting.queued() as u64),
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
            (c"waiters_gone", stats.gone),
            (c"evictions", stats.evictions),
            (c"effects_skipped", stats.effects_skipped),
            (c"waited_ms_p50", stats.waited.quantile(0.5)),
            (c"waited_ms_p99", stats.waited.quantile(0.99)),
            (c"waited_ms_max", stats.waited.max()),
            (c"held_ms_p50", stats.held.quantile(0.5)),
            (c"held_ms_p99", stats.held.quantile(0.99)),
            (c"held_ms_max", stats.held.max()),
        ]
    });
    for (field, value) in fields {
        section.number(field, value);
    }
    section.text(c"waited_ms", &m.with(|s| s.stats.waited.cumulative()));
    section.text(c"held_ms", &m.with(|s| s.stats.held.cumulative()));
    section.text(c"warning_words", &warnings.words());
    section.text(c"fence_mark_status", m.with(|s| s.mark.status().word()));
}
