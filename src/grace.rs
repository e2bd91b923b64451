//! Restart grace: begins and ends grace periods at the server's events. [`dlock_core::grace`] decides when a
//! grace period is over, and `background.rs` then calls [`end`].

use dlock_core::Name;
use dlock_core::grace::Grace;

use crate::clock;
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::Module;

/// Withholds new grants while the server starts. Called when the module is loaded.
pub fn at_start(m: &Module) {
    let now = clock::now();
    m.with(|s| s.grace = Grace::at_start(s.config.bounds.grace, now));
}

/// Begins a grace period if the load that has ended was that of the server's start. Called after every load,
/// complete or failed.
pub fn loading_ended(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.grace.loading_ended()) {
        begin(m, ctx, "the server started");
    }
}

/// Called in every tick of the event loop. The first tick begins the grace period of a start without data to
/// load, because from then on the server can answer clients.
pub fn on_tick(m: &Module, ctx: Ctx<'_>) {
    // Forgets the lock that lost its key last. It is stored for `evicted`, which the server calls directly
    // after it evicts a key. A call after this tick is about another key.
    m.with(|s| s.evictions.tick());
    if m.with(|s| s.grace.serving_begins()) {
        begin(m, ctx, "the server started and there was nothing to load");
    }
}

/// Begins a grace period after the server has removed holds without notice to their clients. Does nothing
/// during the load of a start, because a grace period begins when that load ends.
pub fn holds_removed(m: &Module, ctx: Ctx<'_>, why: &str) {
    if !m.with(|s| s.grace.is_loading()) {
        begin(m, ctx, why);
    }
}

/// Begins a grace period, or extends the current one, if the evicted key was a lock that was held. Called for
/// every evicted key, of any type.
pub fn evicted(m: &Module, ctx: Ctx<'_>, db: i32, key: &[u8]) {
    let now = clock::now();
    if !m.with(|s| s.evictions.ended_hold(&Name::new(db, key))) {
        return;
    }
    let is_running = m.with(|s| {
        s.stats.evictions += 1;
        let is_running = s.grace.is_running();
        if let Some(length) = s.config.bounds.grace.filter(|_| is_running) {
            s.grace.begin(length, now);
        }
        is_running
    });
    // If a grace period was running, it has been extended above, without a log line.
    if !is_running {
        holds_removed(m, ctx, "a lock that was held was evicted");
    }
}

/// Applies CONFIG SET of `dlock.restart-grace`: 0 ends the current grace period, but not that of fences ahead
/// of the clock; any other value applies from the next one on.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.config.bounds.grace.is_none() && s.grace.is_running()) {
        m.with(|s| s.grace.stop());
        if !begin_silently(m, ctx) {
            end(m, ctx, "it was switched off");
        }
    }
}

/// Begins a grace period if one is needed. Otherwise ends the current one.
pub fn begin(m: &Module, ctx: Ctx<'_>, why: &str) {
    if begin_silently(m, ctx) {
        let ms = m.with(|s| s.grace_left(clock::now()));
        let text = format!("dlock.restart-grace begins: {why}; nothing new is granted for {ms} ms");
        ctx.log(LogLevel::Notice, &text);
    } else {
        m.with(|s| s.grace.stop());
    }
}

/// Begins a grace period on a master if `dlock.restart-grace` is on, or if fences are ahead of the clock in a
/// cluster, and returns whether it did. A lock that is free when its slot moves leaves no fence behind, so
/// the next fence is that of the other node's clock.
fn begin_silently(m: &Module, ctx: Ctx<'_>) -> bool {
    let (flags, now) = (ctx.flags(), clock::now());
    let length = m.with(|s| {
        let ahead = s.fences.ahead_of(now).filter(|_| flags.contains(Flags::CLUSTER));
        s.config.bounds.grace.max(ahead).filter(|_| flags.contains(Flags::MASTER))
    });
    length.iter().for_each(|length| m.with(|s| s.grace.begin(*length, now)));
    length.is_some()
}

/// Ends the grace period, and schedules the service of all wait queues.
pub fn end(m: &Module, ctx: Ctx<'_>, why: &str) {
    m.with(|s| s.grace.stop());
    ctx.log(LogLevel::Notice, &format!("dlock.restart-grace is over: {why}; locks are granted again"));
    m.with(|s| s.serve(None));
}
