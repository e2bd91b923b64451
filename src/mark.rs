//! The fence mark: a number on the disk that no fence goes beyond, so that a start which has lost everything else, clock
//! included, goes on above the fences of before.
//!
//! Which number and when is decided in the core ([`dlock_core::Fences`]); here it gets onto the disk. A thread writes it, seconds
//! before it is needed, and the event loop looks at each tick whether it is done: nobody ever waits for the disk, but
//! a server that serves nobody yet. One is written each 5 s for as long as the server runs, whether or not anything is
//! granted: the first fence after a break would otherwise wait for the disk, fall behind the clock, or lack the cover.

use std::path::PathBuf;
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use dlock_core::Instant;

use crate::clock;
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::state::with;

mod disk;

use disk::{Done, Found, Job};

/// After so long, in microseconds, a disk that does not answer counts as one that cannot be written.
const PATIENCE: u64 = 10_000_000;

/// What could not be written is tried again after so long.
const PAUSE: u64 = 5_000_000;

/// It is written each so long.
const EACH: u64 = 5_000_000;

pub struct Mark {
    status: Status,
    file: PathBuf,
    /// What this server wrote there last. None: not written yet, since the start or since the file is another.
    written: Option<u64>,
    writing: Option<Writing>,
    /// When the last write began.
    begun: Instant,
    /// The first one waits until the files are loaded.
    put_off: bool,
    /// Not tried again before.
    pause_until: Instant,
    /// Somebody else's mark was found, and the log says so.
    shared: bool,
}

#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Status {
    Off,
    Ok,
    /// It cannot be written; the server goes on without.
    Failing,
}

impl Status {
    pub fn word(self) -> &'static str {
        match self {
            Status::Off => "off",
            Status::Ok => "ok",
            Status::Failing => "failing",
        }
    }
}

/// A thread that writes.
struct Writing {
    since: Instant,
    done: Receiver<Result<Done, String>>,
}

impl Mark {
    pub fn new() -> Mark {
        Mark {
            status: Status::Off,
            file: PathBuf::new(),
            written: None,
            writing: None,
            begun: Instant::from_micros(0),
            put_off: false,
            pause_until: Instant::from_micros(0),
            shared: false,
        }
    }

    pub fn status(&self) -> Status {
        self.status
    }

    /// What has come of the thread, if that is known by now.
    fn outcome(&mut self, now: Instant) -> Option<Result<Done, String>> {
        let writing = self.writing.as_ref()?;
        let outcome = match writing.done.try_recv() {
            Ok(outcome) => outcome,
            Err(TryRecvError::Disconnected) => Err("the thread that writes it has ended".into()),
            Err(TryRecvError::Empty) => {
                let late = now.micros() > writing.since.micros() + PATIENCE && self.status == Status::Ok;
                return late.then(|| Err("the disk does not answer".into()));
            }
        };
        self.writing = None;
        Some(outcome)
    }
}

/// The module is loaded, and nobody is served yet: goes on above what was reserved before, and reserves more. Where a
/// proof stands that is done when the files are loaded: until then nothing is granted, and a start that cannot load them
/// is no sign of life.
pub fn start(ctx: Ctx<'_>) {
    let file = file(ctx, "fence");
    with(|s| (s.mark.file, s.mark.put_off) = (file, s.grace.proof.stands()));
    if !with(|s| s.mark.put_off) {
        write_now(ctx);
    }
}

/// The files are loaded. That may have taken longer than the mark reaches, or brought fences beyond it.
pub fn loaded(ctx: Ctx<'_>) {
    let now = clock::now();
    let wanted = with(|s| s.mark.writing.is_none() && s.fences.wants_mark(now));
    // A replica grants nothing, and may be serving readers.
    if wanted && ctx.flags().contains(Flags::MASTER) {
        write_now(ctx);
    }
}

/// CONFIG SET: of the switch, or of what names the file.
pub fn configured(ctx: Ctx<'_>) {
    let file = file(ctx, "fence");
    with(|s| {
        if s.mark.file != file {
            // A thread that still writes the other one is left to itself.
            (s.mark.file, s.mark.written, s.mark.writing) = (file, None, None);
        }
    });
    keep(ctx);
}

/// A fence came from outside: where it lies beyond the mark, the next one is not waited for.
pub fn raised(ctx: Ctx<'_>) {
    if with(|s| s.fences.mark().is_some_and(|mark| s.fences.last() > mark)) {
        keep(ctx);
    }
}

/// Looks how far the thread is, and whether a further mark is wanted.
pub fn keep(ctx: Ctx<'_>) {
    let now = clock::now();
    if let Some(outcome) = with(|s| s.mark.outcome(now)) {
        finish(ctx, outcome, now);
    }
    // There was nothing to load.
    if with(|s| s.mark.put_off) {
        return write_now(ctx);
    }
    if !with(|s| s.config.fence_mark) {
        return with(|s| {
            (s.mark.status, s.mark.written) = (Status::Off, None);
            s.fences.set_mark(None);
        });
    }
    let wanted = with(|s| {
        // Also where it is far enough ahead of the clock: when it was written last is a sign of life.
        let old = now.micros() >= s.mark.begun.micros() + EACH;
        let due = old || s.mark.written.is_none() || s.fences.wants_mark(now);
        due && s.mark.writing.is_none() && now >= s.mark.pause_until
    });
    if wanted {
        write_in_the_background(ctx, now);
    }
}

fn write_in_the_background(ctx: Ctx<'_>, now: Instant) {
    let job = begin(now);
    let (send, done) = channel();
    let thread = thread::Builder::new().name("dlock-mark".into());
    match thread.spawn(move || send.send(job.run())) {
        Ok(_) => with(|s| s.mark.writing = Some(Writing { since: now, done })),
        Err(why) => finish(ctx, Err(format!("no thread can be started: {why}")), now),
    }
}

fn write_now(ctx: Ctx<'_>) {
    with(|s| s.mark.put_off = false);
    if with(|s| s.config.fence_mark) {
        let now = clock::now();
        let outcome = begin(now).run();
        finish(ctx, outcome, now);
    }
}

/// Takes note of what has come of a write, and tells the operator what is new.
fn finish(ctx: Ctx<'_>, outcome: Result<Done, String>, now: Instant) {
    let before = with(|s| s.mark.status);
    let name = with(|s| s.mark.file.display().to_string());
    match outcome {
        Ok(done) => {
            if before == Status::Failing {
                ctx.log(LogLevel::Notice, &format!("dlock.fence-mark: {name} is written again"));
            }
            let shared_before = with(|s| s.mark.shared);
            with(|s| {
                (s.mark.status, s.mark.written) = (Status::Ok, Some(done.mark));
                s.mark.shared |= matches!(done.found, Found::Theirs(_));
                s.fences.raise(done.found.number());
                s.fences.set_mark(Some(done.mark));
            });
            if let Some(text) = done.found.news(now).filter(|_| !shared_before) {
                ctx.log(LogLevel::Warning, &format!("dlock.fence-mark: {name} {text}"));
            }
        }
        Err(why) => {
            with(|s| {
                // It may be that the file is written and only its folder is not: what stands there is looked at again.
                (s.mark.status, s.mark.written) = (Status::Failing, None);
                s.mark.pause_until = Instant::from_micros(now.micros() + PAUSE);
                s.fences.set_mark(None);
            });
            if before != Status::Failing {
                let text = format!(
                    "dlock.fence-mark: {name} cannot be written: {why}. Locks are granted without it: fences would \
                     fall if all data were lost and the clock set back. It is tried again each 5 s"
                );
                ctx.log(LogLevel::Warning, &text);
            }
        }
    }
}

/// Where the mark is, and what else is kept of this server: in its folder, by its port, for several may share a folder.
pub fn file(ctx: Ctx<'_>, ending: &str) -> PathBuf {
    let port = |option| ctx.option(option).filter(|port| port != "0");
    let port = port("port").or_else(|| port("tls-port")).unwrap_or_else(|| "0".into());
    // By its whole path, for the thread: the server changes its working folder when it is told another one.
    std::env::current_dir().unwrap_or_default().join(format!("dlock-{port}.{ending}"))
}

fn begin(now: Instant) -> Job {
    with(|s| {
        s.mark.begun = now;
        Job { file: s.mark.file.clone(), now, last: s.fences.last(), written: s.mark.written }
    })
}
