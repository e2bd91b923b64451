//! Restart-grace: after holds may have been forgotten nothing new is granted for as long as the longest of them may
//! still last. What is held as far as the server knows goes on.
//!
//! Here stands when that begins and why; what it means for a lock is decided in the core, which is told the moment from
//! which new grants are made; when it is over, the background job serves the lines.

use dlock_core::{Instant, Name};

use crate::ffi::{Ctx, Flags, LogLevel, notices};
use crate::state::with;
use crate::{clock, events};

mod aof;
mod disk;
mod eviction;
mod proof;

pub use eviction::{evicted, taken_away};

pub use proof::{forked, replica_came};

use proof::Proof;

pub struct Grace {
    /// That the next start needs none.
    pub proof: Proof,
    /// Nothing new is granted before.
    ends: Instant,
    /// It has begun, and nobody has been told that it is over.
    runs: bool,
    start: Start,
    /// The server may evict any key.
    evicts_locks: bool,
    /// The lock whose key was taken away last.
    taken_away: Option<Name<'static>>,
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
    /// An effect could not be taken in. The server goes on with the next.
    skipped: bool,
}

impl Grace {
    /// None runs until [`at_start`].
    pub fn new() -> Grace {
        let (proof, start) = (Proof::new(), Start::Begun);
        Grace { proof, ends: NEVER, runs: false, start, evicts_locks: false, taken_away: None }
    }

    /// The moment from which new grants are made.
    pub fn grants_from(&self) -> Instant {
        // None would be covered by a proof that should be gone.
        if self.proof.is_stuck() { UNKNOWN } else { self.ends }
    }

    /// The ms until then, rounded up.
    pub fn left(&self, now: Instant) -> u64 {
        let ends = if self.proof.is_stuck() { self.ends.max(self.proof.tried_again()) } else { self.ends };
        ends.micros().saturating_sub(now.micros()).div_ceil(1000)
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

/// Nobody knows when.
const UNKNOWN: Instant = Instant::from_micros(u64::MAX);

/// The module is loaded. Whatever will turn out to be remembered, nothing is known of it yet.
pub fn at_start(ctx: Ctx<'_>) {
    with(|s| s.grace.ends = in_ms(s.config.restart_grace));
    proof::start(ctx);
    eviction::look(ctx);
}

fn in_ms(ms: u32) -> Instant {
    if ms == 0 { NEVER } else { Instant::from_micros(clock::now().micros() + u64::from(ms) * 1000) }
}

pub fn loading_begins(_ctx: Ctx<'_>) {
    if with(|s| s.grace.start == Start::Begun) {
        with(|s| {
            let size = s.grace.proof.size_of_file();
            s.grace.start = Start::Loading(Load { size, skipped: false });
        });
    }
}

pub fn loading_ended(ctx: Ctx<'_>) {
    let Start::Loading(load) = with(|s| s.grace.start) else { return };
    with(|s| s.grace.start = Start::Done);
    if !ctx.flags().contains(Flags::MASTER) {
        return demoted();
    }
    match may_have_forgotten(load) {
        Some(why) => begin(ctx, &format!("the server started and {why}")),
        None => {
            with(|s| s.grace.stop());
            proof::knows_all();
            if with(|s| s.config.restart_grace) > 0 {
                let text = "no dlock.restart-grace at this start: all that was granted was loaded";
                ctx.log(LogLevel::Notice, text);
            }
        }
    }
}

/// What could not be loaded at the start may be repaired, and so cut off, before the next.
pub fn loading_failed(ctx: Ctx<'_>) {
    if matches!(with(|s| s.grace.start), Start::Loading(_)) {
        with(|s| s.grace.start = Start::Done);
        begin(ctx, "the server started and could not load its files");
    }
}

/// A tick of the event loop, so the server can answer: if no load has been seen by now, there was none.
pub fn is_serving(ctx: Ctx<'_>) {
    // An eviction is told in the same breath as the key is taken away.
    with(|s| s.grace.taken_away = None);
    if with(|s| s.grace.start == Start::Begun) {
        with(|s| s.grace.start = Start::Done);
        begin(ctx, "the server started and there was nothing to load");
    }
    if with(|s| s.grace.start == Start::Done) {
        proof::keep(ctx);
    }
}

/// Holds have gone whose holders do not know of it. In the course of a load that is as long ago as the file is old: what
/// the proof says is of its end.
pub fn forgot(ctx: Ctx<'_>, why: &str) {
    if !matches!(with(|s| s.grace.start), Start::Loading(_)) {
        begin(ctx, why);
    }
}

/// An effect could not be taken in. Where it stands in the append only file, what it tells is forgotten.
pub fn effect_skipped() {
    with(|s| {
        s.stats.effects_skipped += 1;
        if let Start::Loading(load) = &mut s.grace.start {
            load.skipped = true;
        }
    });
}

/// A replica grants nothing; its promotion begins anew.
pub fn demoted() {
    with(|s| s.grace.stop());
    proof::knows_not_all(notices::background());
}

/// CONFIG SET: 0 ends what runs; any other value is for the next time.
pub fn configured(ctx: Ctx<'_>) {
    proof::configured(ctx);
    eviction::look(ctx);
    if with(|s| s.config.restart_grace == 0 && s.grace.runs) {
        over(ctx, "it was switched off");
    }
}

pub fn begin(ctx: Ctx<'_>, why: &str) {
    proof::knows_not_all(ctx);
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
    proof::knows_all();
    ctx.log(LogLevel::Notice, &format!("dlock.restart-grace is over: {why}; locks are granted again"));
    events::serve_lines(|_| true);
}

/// Why a start may have forgotten holds. None only where the run before had proven that every grant is in the append
/// only file, and all of that has been loaded.
fn may_have_forgotten(load: Load) -> Option<String> {
    let (has_file, syncs, found, size) = with(|s| {
        let proof = &s.grace.proof;
        (proof.has_file(), proof.syncs_each_grant(), proof.found(), proof.size_of_file())
    });
    if !has_file {
        return Some("keeps no append only file".into());
    }
    // The server cuts off what it cannot read at the end.
    if load.size.is_none() || load.size != size {
        return Some("the end of the append only file was missing".into());
    }
    if load.skipped {
        return Some("a part of the append only file could not be read".into());
    }
    match found {
        Ok(()) => None,
        Err(_) if !syncs => Some("does not keep every grant on the disk (appendfsync always)".into()),
        Err(why) => Some(format!("nothing proves that all that was granted was loaded (its proof: {why})")),
    }
}
