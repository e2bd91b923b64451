//! Restart-grace: what the server's events mean for it. When it begins, why, and when it is over is decided
//! in the core ([`dlock_core::grace`]); when it is over, the background job serves the queues.

use dlock_core::grace::{Grace, Loaded};

use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::Module;
use crate::{clock, proof};

/// The module is loaded. Whatever will turn out to be remembered, nothing is known of it yet.
pub fn at_start(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    m.with(|s| s.grace = Grace::at_start(s.config.bounds.grace, now));
    proof::start(m, ctx);
}

pub fn loading_begins(m: &Module) {
    m.with(|s| s.grace.loading_begins(s.proof.size_of_file()));
}

pub fn loading_ended(m: &Module, ctx: Ctx<'_>) {
    let judgement = m.with(|s| {
        let (facts, size, proof) = (s.proof.facts, s.proof.size_of_file(), s.proof.found.clone());
        let (has_file, syncs_each_grant) = (facts.has_file, facts.syncs_each_grant);
        s.grace.loading_ended(&Loaded { has_file, syncs_each_grant, size, proof })
    });
    match judgement {
        None => {}
        Some(_) if !ctx.flags().contains(Flags::MASTER) => demoted(m),
        Some(Err(loss)) => begin(m, ctx, &format!("the server started and {loss}")),
        Some(Ok(())) => {
            m.with(|s| s.grace.stop());
            m.with(|s| s.proof.facts.knows_all = true);
            if m.with(|s| s.config.bounds.grace).is_some() {
                let text = "no dlock.restart-grace at this start: all that was granted was loaded";
                ctx.log(LogLevel::Notice, text);
            }
        }
    }
}

pub fn loading_failed(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.grace.loading_failed()) {
        begin(m, ctx, "the server started and could not load its files");
    }
}

/// A tick of the event loop, so the server can answer.
pub fn is_serving(m: &Module, ctx: Ctx<'_>) {
    m.with(|s| s.evictions.tick());
    if m.with(|s| s.grace.serves()) {
        begin(m, ctx, "the server started and there was nothing to load");
    }
    if m.with(|s| s.grace.is_up()) {
        proof::keep(m, ctx);
    }
}

/// Holds have gone whose holders do not know of it.
pub fn forgot(m: &Module, ctx: Ctx<'_>, why: &str) {
    if !m.with(|s| s.grace.is_loading()) {
        begin(m, ctx, why);
    }
}

/// A replica grants nothing; its promotion begins anew.
pub fn demoted(m: &Module) {
    m.with(|s| s.grace.stop());
    proof::knows_not_all(m, m.ctx());
}

/// CONFIG SET: 0 ends what runs; any other value is for the next time.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    proof::configured(m, ctx);
    if m.with(|s| s.config.bounds.grace.is_none() && s.grace.runs()) {
        over(m, ctx, "it was switched off");
    }
}

pub fn begin(m: &Module, ctx: Ctx<'_>, why: &str) {
    proof::knows_not_all(m, ctx);
    let length = m.with(|s| s.config.bounds.grace).filter(|_| ctx.flags().contains(Flags::MASTER));
    let Some(length) = length else { return m.with(|s| s.grace.stop()) };
    let now = clock::now();
    m.with(|s| s.grace.begin(length, now));
    let ms = length.millis();
    let text = format!("dlock.restart-grace begins: {why}; nothing new is granted for {ms} ms");
    ctx.log(LogLevel::Notice, &text);
}

/// Grants are made again, to those in the queues first.
pub fn over(m: &Module, ctx: Ctx<'_>, why: &str) {
    m.with(|s| s.grace.stop());
    m.with(|s| s.proof.facts.knows_all = true);
    ctx.log(LogLevel::Notice, &format!("dlock.restart-grace is over: {why}; locks are granted again"));
    m.with(|s| s.serve(None));
}
