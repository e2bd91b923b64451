//! A server that may evict any key evicts locks too: what that means is decided in the core ([`Evictions`]).
//!
//! [`Evictions`]: dlock_core::grace::Evictions

use dlock_core::Name;

use crate::ffi::Ctx;
use crate::module::Module;
use crate::{clock, grace};

/// A key was evicted, of whatever type.
pub fn evicted(m: &Module, ctx: Ctx<'_>, db: i32, key: &[u8]) {
    let now = clock::now();
    if !m.with(|s| s.evictions.evicted(&Name::new(db, key))) {
        return;
    }
    let runs = m.with(|s| {
        s.stats.evictions += 1;
        let length = s.config.bounds.grace.filter(|_| s.grace.runs());
        length.iter().for_each(|length| s.grace.begin(*length, now));
        s.grace.runs()
    });
    // One line in the log for all evictions of one grace period.
    if !runs {
        grace::forgot(m, ctx, "a lock that was held was evicted");
    }
}
