//! Restart grace: begins and ends grace periods at the server's events. [`dlock_core::grace`] decides when a
//! grace period is over, and `background.rs` then calls [`end`].

use dlock_core::grace::Grace;
use dlock_core::{Name, Ttl};

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
        begin_as_master(m, ctx, "the server started");
    }
}

/// Called in every tick of the event loop. The first tick begins the grace period of a start without data to
/// load, because from then on the server can answer clients.
pub fn on_tick(m: &Module, ctx: Ctx<'_>) {
    // Forgets the lock that lost its key last. It is stored for `evicted`, which the server calls directly
    // after it evicts a key. A call after this tick is about another key.
    m.with(|s| s.evictions.tick());
    if m.with(|s| s.grace.serving_begins()) {
        begin_as_master(m, ctx, "the server started and there was nothing to load");
    }
}

/// Begins a grace period, if that is on, after the server has removed holds without notice to their clients.
/// Does nothing during the load of a start, because a grace period begins when that load ends.
pub fn holds_removed(m: &Module, ctx: Ctx<'_>, why: &str) {
    let length = m.with(|s| s.config.bounds.grace.filter(|_| !s.grace.is_loading()));
    if let Some(length) = length.filter(|_| ctx.flags().contains(Flags::MASTER)) {
        begin(m, ctx, length, why);
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
    if m.with(|s| s.config.bounds.grace.is_some() || !s.grace.is_running()) {
        return;
    }
    let Some(left) = fences_ahead(m, ctx) else { return end(m, ctx, "it was switched off") };
    let now = clock::now();
    m.with(|s| {
        s.grace.stop();
        s.grace.begin(left, now);
    });
}

/// Begins a grace period when this server has become a master by its start or its promotion: for the length
/// of the option, and in a cluster until the clock has passed the last fence. If it needs none, or is no
/// master, ends the current one.
pub fn begin_as_master(m: &Module, ctx: Ctx<'_>, why: &str) {
    let (option, ahead) = (m.with(|s| s.config.bounds.grace), fences_ahead(m, ctx));
    let length = option.max(ahead).filter(|_| ctx.flags().contains(Flags::MASTER));
    let Some(length) = length else { return m.with(|s| s.grace.stop()) };
    let cause = if ahead > option { ", and its fences are ahead of the clock" } else { "" };
    begin(m, ctx, length, &format!("{why}{cause}"));
}

fn begin(m: &Module, ctx: Ctx<'_>, length: Ttl, why: &str) {
    let now = clock::now();
    m.with(|s| s.grace.begin(length, now));
    let ms = length.millis();
    let text = format!("dlock.restart-grace begins: {why}; nothing new is granted for {ms} ms");
    ctx.log(LogLevel::Notice, &text);
}

/// Returns by how much the fences of a node of a cluster are ahead of the clock. A lock that is free when its
/// slot moves leaves no fence behind, so the next fence is that of the other node's clock.
fn fences_ahead(m: &Module, ctx: Ctx<'_>) -> Option<Ttl> {
    let now = clock::now();
    ctx.flags().contains(Flags::CLUSTER).then(|| m.with(|s| s.fences.ahead_of(now))).flatten()
}

/// Ends the grace period, and schedules the service of all wait queues.
pub fn end(m: &Module, ctx: Ctx<'_>, why: &str) {
    m.with(|s| s.grace.stop());
    ctx.log(LogLevel::Notice, &format!("dlock.restart-grace is over: {why}; locks are granted again"));
    m.with(|s| s.serve(None));
}
