//! Restart-grace: after holds may have been forgotten nothing new is granted for as long as the longest of them may
//! still last. What is held as far as the server knows goes on.
//!
//! Here stands when that begins and why; what it means for a lock is decided in the core, which is told the moment from
//! which new grants are made; when it is over, the background job serves the lines.

use std::fs;

use dlock_core::Instant;

use crate::ffi::{Ctx, Flags, LogLevel};
use crate::state::with;
use crate::{clock, events};

pub struct Grace {
    /// Nothing new is granted before.
    ends: Instant,
    /// It has begun, and nobody has been told that it is over.
    runs: bool,
    start: Start,
}

/// How far the server has come since the module was loaded.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Start {
    /// Whatever there is to load is not loaded yet.
    Begun,
    Loading(Load),
    /// Clients are served.
    Done,
}

/// What is known of the files that are loaded at the start.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Load {
    /// Bytes of the append only files before.
    size: Option<u64>,
    /// Holds were flushed in the course of it, maybe not long ago.
    flushed: bool,
    /// An effect could not be taken in. The server goes on with the next.
    skipped: bool,
}

impl Grace {
    /// None runs until [`at_start`].
    pub fn new() -> Grace {
        Grace { ends: NEVER, runs: false, start: Start::Begun }
    }

    /// The moment from which new grants are made.
    pub fn grants_from(&self) -> Instant {
        self.ends
    }

    /// The ms until then, rounded up.
    pub fn left(&self, now: Instant) -> u64 {
        self.ends.micros().saturating_sub(now.micros()).div_ceil(1000)
    }

    /// The millisecond at which the background job has to end it.
    pub fn due(&self) -> Option<u64> {
        self.runs.then_some(self.ends.micros().div_ceil(1000))
    }

    /// True once, when it is over.
    pub fn is_over(&mut self, now: Instant) -> bool {
        let over = self.runs && now >= self.ends;
        self.runs &= !over;
        over
    }

    fn stop(&mut self) {
        (self.ends, self.runs) = (NEVER, false);
    }
}

/// The beginning of time, for a grace that is none.
const NEVER: Instant = Instant::from_micros(0);

/// The module is loaded. Whatever will turn out to be remembered, nothing is known of it yet.
pub fn at_start() {
    with(|s| s.grace.ends = in_ms(s.config.restart_grace));
}

fn in_ms(ms: u32) -> Instant {
    if ms == 0 { NEVER } else { Instant::from_micros(clock::now().micros() + u64::from(ms) * 1000) }
}

pub fn loading_begins(ctx: Ctx<'_>) {
    if with(|s| s.grace.start == Start::Begun) {
        let load = Load { size: size_of_aof(ctx), flushed: false, skipped: false };
        with(|s| s.grace.start = Start::Loading(load));
    }
}

pub fn loading_ended(ctx: Ctx<'_>) {
    let Start::Loading(load) = with(|s| s.grace.start) else { return };
    with(|s| s.grace.start = Start::Done);
    if !ctx.flags().contains(Flags::MASTER) {
        return demoted();
    }
    match may_have_forgotten(ctx, load) {
        Some(why) => begin(ctx, why),
        None => {
            with(|s| s.grace.stop());
            if with(|s| s.config.restart_grace) > 0 {
                let text = "no dlock.restart-grace at this start: all that was granted was loaded";
                ctx.log(LogLevel::Notice, text);
            }
        }
    }
}

/// The event loop goes round, so the server can answer: if no load has been seen by now, there was none.
pub fn is_serving(ctx: Ctx<'_>) {
    if with(|s| s.grace.start == Start::Begun) {
        with(|s| s.grace.start = Start::Done);
        begin(ctx, "the server started and there was nothing to load");
    }
}

/// Holds have gone whose holders do not know of it.
pub fn forgot(ctx: Ctx<'_>, why: &str) {
    match with(|s| s.grace.start) {
        Start::Loading(load) => {
            with(|s| s.grace.start = Start::Loading(Load { flushed: true, ..load }));
        }
        _ => begin(ctx, why),
    }
}

/// An effect could not be taken in. Where it stands in the append only file, what it tells is forgotten.
pub fn effect_skipped() {
    with(|s| {
        if let Start::Loading(load) = &mut s.grace.start {
            load.skipped = true;
        }
    });
}

/// A replica grants nothing; its promotion begins anew.
pub fn demoted() {
    with(|s| s.grace.stop());
}

/// CONFIG SET: 0 ends what runs; any other value is for the next time.
pub fn configured(ctx: Ctx<'_>) {
    if with(|s| s.config.restart_grace == 0 && s.grace.runs) {
        over(ctx, "it was switched off");
    }
}

pub fn begin(ctx: Ctx<'_>, why: &str) {
    let ms = with(|s| s.config.restart_grace);
    if ms == 0 || !ctx.flags().contains(Flags::MASTER) {
        return with(|s| s.grace.stop());
    }
    with(|s| (s.grace.ends, s.grace.runs) = (s.grace.ends.max(in_ms(ms)), true));
    let text = format!("dlock.restart-grace begins: {why}; nothing new is granted for {ms} ms");
    ctx.log(LogLevel::Notice, &text);
}

/// Grants are made again, to those in line first.
pub fn over(ctx: Ctx<'_>, why: &str) {
    with(|s| s.grace.stop());
    ctx.log(LogLevel::Notice, &format!("dlock.restart-grace is over: {why}; locks are granted again"));
    events::serve_lines(|_| true);
}

/// Why a start may have forgotten holds. None only where every grant was on the disk before it was answered, and all
/// that was on the disk has been loaded.
fn may_have_forgotten(ctx: Ctx<'_>, load: Load) -> Option<&'static str> {
    let is = |option, value| ctx.option(option).is_some_and(|set| set == value);
    if !is("appendonly", "yes") {
        return Some("the server started and keeps no append only file");
    }
    if !is("appendfsync", "always") || !is("no-appendfsync-on-rewrite", "no") {
        return Some("the server started and does not keep every grant on the disk (appendfsync always)");
    }
    // The server cuts off what it cannot read at the end.
    if load.size.is_none() || load.size != size_of_aof(ctx) {
        return Some("the server started and the end of the append only file was missing");
    }
    if load.skipped {
        return Some("the server started and a part of the append only file could not be read");
    }
    load.flushed.then_some("the server started and had locks flushed")
}

/// Bytes in the append only files, all together.
fn size_of_aof(ctx: Ctx<'_>) -> Option<u64> {
    let folder = ctx.option("appenddirname")?;
    let sizes = fs::read_dir(folder).ok()?.map(|file| {
        let file = file.ok()?;
        // The list of the files may be written anew, and holds no data.
        let manifest = file.path().extension().is_some_and(|ext| ext == "manifest");
        if manifest { Some(0) } else { Some(file.metadata().ok()?.len()) }
    });
    sizes.sum()
}
