//! The fence mark: a number on the disk that no fence goes beyond.
//!
//! Which number and when is decided in the core ([`dlock_core::marking`]); here it gets onto the disk. A
//! thread writes it, seconds before it is needed, and the event loop looks at each tick whether it is done:
//! nobody ever waits for the disk, but a server that serves nobody yet.

use std::sync::mpsc::channel;
use std::thread;

use dlock_core::Instant;
use dlock_core::marking::News;

use crate::clock;
use crate::disk::{self, files};
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::{Job, Module, Outcome};

/// The module is loaded, and nobody is served yet: goes on above what was reserved before, and reserves more.
/// Where a proof stands that is done when the files are loaded: until then nothing is granted, and a start
/// that cannot load them is no sign of life.
pub fn start(m: &Module, ctx: Ctx<'_>) {
    let file = files::of_this_server(ctx, "fence");
    if m.with(|s| s.mark.start(file, s.proof.stands())) {
        write_now(m, ctx);
    }
}

/// The files are loaded. That may have taken longer than the mark reaches, or brought fences beyond it.
pub fn loaded(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    let wanted = m.with(|s| !s.mark.is_writing() && s.fences.wants_mark(now));
    // A replica grants nothing, and may be serving readers.
    if wanted && ctx.flags().contains(Flags::MASTER) {
        write_now(m, ctx);
    }
}

/// CONFIG SET: of the switch, or of what names the file.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    let file = files::of_this_server(ctx, "fence");
    m.with(|s| s.mark.move_to(file));
    keep(m, ctx);
}

/// A fence came from outside: where it lies beyond the mark, the next one is not waited for.
pub fn raised(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.fences.mark().is_some_and(|mark| s.fences.last() > mark)) {
        keep(m, ctx);
    }
}

/// Looks how far the thread is, and whether a further mark is wanted.
pub fn keep(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    if let Some(outcome) = m.with(|s| s.mark.outcome(now)) {
        finish(m, ctx, outcome, now);
    }
    // There was nothing to load.
    if m.with(|s| s.mark.was_put_off()) {
        return write_now(m, ctx);
    }
    if !m.with(|s| s.config.fence_mark) {
        return m.with(|s| s.mark.off(&mut s.fences));
    }
    if let Some(job) = m.with(|s| s.mark.is_due(&s.fences, now).then(|| s.mark.begin(&s.fences, now))) {
        write_in_the_background(m, ctx, job, now);
    }
}

fn write_in_the_background(m: &Module, ctx: Ctx<'_>, job: Job, now: Instant) {
    let (send, done) = channel();
    let thread = thread::Builder::new().name("dlock-mark".into());
    match thread.spawn(move || send.send(disk::mark::carry_out(job.order, &job.file))) {
        Ok(_) => m.with(|s| s.mark.wait_for(done, now)),
        Err(why) => finish(m, ctx, Err(format!("no thread can be started: {why}")), now),
    }
}

fn write_now(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    let job = m.with(|s| {
        s.mark.was_put_off();
        s.config.fence_mark.then(|| s.mark.begin(&s.fences, now))
    });
    if let Some(job) = job {
        finish(m, ctx, disk::mark::carry_out(job.order, &job.file), now);
    }
}

/// Takes note of what has come of a write, and tells the operator what is new.
fn finish(m: &Module, ctx: Ctx<'_>, outcome: Outcome, now: Instant) {
    let (news, file) = m.with(|s| (s.mark.finish(outcome, &mut s.fences, now), s.mark.file()));
    for news in news {
        let level = if news == News::Again { LogLevel::Notice } else { LogLevel::Warning };
        let text = match news {
            News::Again => "is written again".into(),
            News::Ahead(seconds) => format!("is {seconds} s ahead of the clock: fences go on above it"),
            News::Shared => "is written by another server too: give each a port or a dir of its own".into(),
            News::Damaged => "was damaged: fences go on from the clock alone".into(),
            News::Failing(why) => format!(
                "cannot be written: {why}. Locks are granted without it: fences would fall if all data were lost and \
                 the clock set back. It is tried again each 5 s"
            ),
        };
        ctx.log(level, &format!("dlock.fence-mark: {file} {text}"));
    }
}
