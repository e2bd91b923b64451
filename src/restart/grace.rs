//! Restart grace: begins and ends grace periods at the server's events. [`dlock_core::grace`] decides when
//! one is over; the background job then serves the wait queues.

use dlock_core::Name;
use dlock_core::grace::Grace;

use crate::clock;
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::Module;

/// Holds new grants back from the moment the module is loaded.
pub fn at_start(m: &Module) {
    let now = clock::now();
    m.with(|s| s.grace = Grace::at_start(s.config.bounds.grace, now));
}

/// A load has ended or failed.
pub fn loading_ended(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.grace.loading_ended()) {
        begin(m, ctx, "the server started");
    }
}

/// A tick of the event loop: the server can answer clients.
pub fn on_tick(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.evictions.tick());
    if m.with(|s| s.grace.serves()) {
        begin(m, ctx, "the server started and there was nothing to load");
    }
}

/// Holds were removed without their holders knowing.
pub fn forgot(m: &Module, ctx: Ctx<'_>, why: &str) {
    if !m.with(|s| s.grace.is_loading()) {
        begin(m, ctx, why);
    }
}

/// The server evicted a key of any type. If a hold was evicted, a grace period begins, or the current one
/// begins anew.
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
    // One line in the server's log for all evictions of one grace period.
    if !runs {
        forgot(m, ctx, "a lock that was held was evicted");
    }
}

/// Ends the grace period of a replica, which grants nothing. Its promotion begins another one.
pub fn demoted(m: &Module) {
    m.with(|s| s.grace.stop());
}

/// CONFIG SET: 0 ends the current grace period; any other value applies from the next one on.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.config.bounds.grace.is_none() && s.grace.runs()) {
        over(m, ctx, "it was switched off");
    }
}

/// Begins a grace period, if the option is on and this server is a master.
pub fn begin(m: &Module, ctx: Ctx<'_>, why: &str) {
    let length = m.with(|s| s.config.bounds.grace).filter(|_| ctx.flags().contains(Flags::MASTER));
    let Some(length) = length else { return m.with(|s| s.grace.stop()) };
    let now = clock::now();
    m.with(|s| s.grace.begin(length, now));
    let ms = length.millis();
    let text = format!("dlock.restart-grace begins: {why}; nothing new is granted for {ms} ms");
    ctx.log(LogLevel::Notice, &text);
}

/// Ends the grace period. New grants are made again, to the waiters first.
pub fn over(m: &Module, ctx: Ctx<'_>, why: &str) {
    m.with(|s| s.grace.stop());
    ctx.log(LogLevel::Notice, &format!("dlock.restart-grace is over: {why}; locks are granted again"));
    m.with(|s| s.serve(None));
}
