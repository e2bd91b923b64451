//! The fence mark: a number on the disk that no fence goes beyond.
//!
//! Which number and when is decided in the core ([`dlock_core::marking`]); here it gets onto the disk. A
//! thread writes it, seconds before it is needed, and the event loop looks at each tick whether it is done:
//! nobody ever waits for the disk, but a server that serves nobody yet.

use std::path::PathBuf;
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;

use dlock_core::Instant;
use dlock_core::marking::{News, Order};

use crate::clock;
use crate::disk::{self, files};
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::{Mark, Module, Outcome};

/// Reads the mark that the previous run left, and writes a higher one. Called at load, before any client is
/// served.
pub fn start(m: &Module, ctx: Ctx<'_>) {
    let file = files::of_this_server(ctx, "fence");
    m.with(|s| s.mark = Mark { file, ..Mark::default() });
    write_now(m, ctx);
}

/// The files are loaded. That may have taken longer than the mark reaches, or brought fences beyond it.
pub fn loaded(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    let wanted = m.with(|s| s.mark.thread.is_none() && s.fences.wants_mark(now));
    // A replica grants nothing, and may be serving readers.
    if wanted && ctx.flags().contains(Flags::MASTER) {
        write_now(m, ctx);
    }
}

/// CONFIG SET: of the switch, or of what names the file. A thread that still writes another one is left to
/// itself.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    let file = files::of_this_server(ctx, "fence");
    m.with(|s| {
        if s.mark.file != file {
            (s.mark.file, s.mark.thread) = (file, None);
            s.mark.marking.moved();
        }
    });
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
    if let Some(outcome) = m.with(|s| outcome(&mut s.mark, now)) {
        finish(m, ctx, outcome, now);
    }
    if !m.with(|s| s.config.fence_mark) {
        return m.with(|s| s.mark.marking.off(&mut s.fences));
    }
    if m.with(|s| s.mark.thread.is_none() && s.mark.marking.is_due(&s.fences, now)) {
        write_in_the_background(m, ctx, now);
    }
}

/// What has come of the thread, if that is known by now.
fn outcome(mark: &mut Mark, now: Instant) -> Option<Outcome> {
    let outcome = match mark.thread.as_ref()?.try_recv() {
        Ok(outcome) => outcome,
        Err(TryRecvError::Disconnected) => Err("the thread that writes it has ended".into()),
        // It may answer yet.
        Err(TryRecvError::Empty) => {
            return mark.marking.is_late(now).then(|| Err("the disk does not answer".into()));
        }
    };
    mark.thread = None;
    Some(outcome)
}

fn begin(m: &Module, now: Instant) -> (Order, PathBuf) {
    m.with(|s| (s.mark.marking.begin(&s.fences, now), s.mark.file.clone()))
}

fn write_in_the_background(m: &Module, ctx: Ctx<'_>, now: Instant) {
    let ((order, file), (send, done)) = (begin(m, now), channel());
    let thread = thread::Builder::new().name("dlock-mark".into());
    match thread.spawn(move || send.send(disk::mark::carry_out(order, &file))) {
        Ok(_) => m.with(|s| s.mark.thread = Some(done)),
        Err(why) => finish(m, ctx, Err(format!("no thread can be started: {why}")), now),
    }
}

fn write_now(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.config.fence_mark) {
        let now = clock::now();
        let (order, file) = begin(m, now);
        finish(m, ctx, disk::mark::carry_out(order, &file), now);
    }
}

/// Takes note of what has come of a write, and tells the operator what is new.
fn finish(m: &Module, ctx: Ctx<'_>, outcome: Outcome, now: Instant) {
    let news = m.with(|s| s.mark.marking.finish(outcome, &mut s.fences, now));
    let file = m.with(|s| s.mark.file.display().to_string());
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
