//! The fence mark: a number on the disk that no fence goes beyond, so that a start which has lost everything else, clock
//! included, goes on above the fences of before.
//!
//! Which number and when is decided in the core ([`Fences`]); here it gets onto the disk. A thread writes it, seconds
//! before it is needed, and the event loop looks at each tick whether it is done: nobody ever waits for the disk, but
//! a server that serves nobody yet. One is written each 5 s for as long as the server runs, whether or not anything is
//! granted: the first fence after a break would otherwise wait for the disk, fall behind the clock, or lack the cover.

use std::fs::{self, File};
use std::io::{ErrorKind, Read, Write};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, TryRecvError, channel};
use std::thread;

use dlock_core::mark::{self, NoMark};
use dlock_core::{Fences, Instant};

use crate::clock;
use crate::ffi::{Ctx, LogLevel};
use crate::state::with;

/// After so long, in microseconds, a disk that does not answer counts as one that cannot be written.
const PATIENCE: u64 = 10_000_000;

/// What could not be written is tried again after so long.
const PAUSE: u64 = 5_000_000;

/// A mark that is further ahead of the clock than this at a start is worth a word to the operator.
const WORTH_TELLING: u64 = 10_000_000;

pub struct Mark {
    status: Status,
    file: PathBuf,
    /// What this server wrote there last. None: not written yet, since the start or since the file is another.
    written: Option<u64>,
    writing: Option<Writing>,
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

/// The module is loaded, and nobody is served yet: goes on above what was reserved before, and reserves more.
pub fn start(ctx: Ctx<'_>) {
    with(|s| s.mark.file = file(ctx));
    write_now(ctx);
}

/// The files are loaded. That may have taken longer than the mark reaches, or brought fences beyond it.
pub fn loaded(ctx: Ctx<'_>) {
    let now = clock::now();
    if with(|s| s.mark.writing.is_none() && s.fences.wants_mark(now)) {
        write_now(ctx);
    }
}

/// CONFIG SET: of the switch, or of what names the file.
pub fn configured(ctx: Ctx<'_>) {
    let file = file(ctx);
    with(|s| {
        if s.mark.file != file {
            // A thread that still writes the other one is left to itself.
            (s.mark.file, s.mark.written, s.mark.writing) = (file, None, None);
        }
    });
    keep(ctx);
}

/// Looks how far the thread is, and whether a further mark is wanted.
pub fn keep(ctx: Ctx<'_>) {
    let now = clock::now();
    if let Some(outcome) = with(|s| s.mark.outcome(now)) {
        settle(ctx, outcome, now);
    }
    if !with(|s| s.config.fence_mark) {
        return with(|s| {
            (s.mark.status, s.mark.written) = (Status::Off, None);
            s.fences.set_mark(None);
        });
    }
    let wanted = with(|s| {
        let due = s.mark.written.is_none() || s.fences.wants_mark(now);
        due && s.mark.writing.is_none() && now >= s.mark.pause_until
    });
    if wanted {
        write_in_the_background(ctx, now);
    }
}

fn write_in_the_background(ctx: Ctx<'_>, now: Instant) {
    let job = Job::new(now);
    let (send, done) = channel();
    let thread = thread::Builder::new().name("dlock-mark".into());
    match thread.spawn(move || send.send(job.run())) {
        Ok(_) => with(|s| s.mark.writing = Some(Writing { since: now, done })),
        Err(why) => settle(ctx, Err(format!("no thread can be started: {why}")), now),
    }
}

fn write_now(ctx: Ctx<'_>) {
    if with(|s| s.config.fence_mark) {
        let now = clock::now();
        let outcome = Job::new(now).run();
        settle(ctx, outcome, now);
    }
}

/// Takes note of what has come of a write, and tells the operator what is new.
fn settle(ctx: Ctx<'_>, outcome: Result<Done, String>, now: Instant) {
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
                s.mark.status = Status::Failing;
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

/// Where the mark is: in the server's folder, by its port, for several servers may share a folder.
fn file(ctx: Ctx<'_>) -> PathBuf {
    let port = |option| ctx.option(option).filter(|port| port != "0");
    let port = port("port").or_else(|| port("tls-port")).unwrap_or_else(|| "0".into());
    // By its whole path, for the thread: the server changes its working folder when it is told another one.
    std::env::current_dir().unwrap_or_default().join(format!("dlock-{port}.fence"))
}

/// One write, with all it needs.
struct Job {
    file: PathBuf,
    now: Instant,
    last: u64,
    written: Option<u64>,
}

struct Done {
    mark: u64,
    found: Found,
}

/// What stood in the file before.
enum Found {
    /// Nothing, or what this server wrote.
    Nothing,
    /// The mark of the run before.
    Before(u64),
    /// The mark of somebody else, who runs now.
    Theirs(u64),
    Damaged,
}

impl Job {
    fn new(now: Instant) -> Job {
        with(|s| Job { file: s.mark.file.clone(), now, last: s.fences.last(), written: s.mark.written })
    }

    /// Whatever stands in the file may have been issued, by whomever: the new mark is above it.
    fn run(self) -> Result<Done, String> {
        let found = match read(&self.file)? {
            Found::Before(there) if self.written == Some(there) => Found::Nothing,
            Found::Before(there) if self.written.is_some() => Found::Theirs(there),
            found => found,
        };
        let mark = Fences::mark_for(self.now, self.last.max(found.number()));
        write(&self.file, mark).map_err(|why| why.to_string())?;
        Ok(Done { mark, found })
    }
}

impl Found {
    fn number(&self) -> u64 {
        match self {
            Found::Before(number) | Found::Theirs(number) => *number,
            Found::Nothing | Found::Damaged => 0,
        }
    }

    /// What an operator should hear of.
    fn news(&self, now: Instant) -> Option<String> {
        match self {
            Found::Before(mark) if *mark > now.micros() + WORTH_TELLING => {
                let seconds = (mark - now.micros()) / 1_000_000;
                Some(format!("is {seconds} s ahead of the clock: fences go on above it"))
            }
            Found::Theirs(_) => {
                Some("is written by another server too: give each a port or a dir of its own".into())
            }
            Found::Damaged => Some("was damaged: fences go on from the clock alone".into()),
            _ => None,
        }
    }
}

/// Nothing, a mark, or a damaged one. What cannot be read, or only by a newer module, is an error: not to be replaced.
fn read(file: &Path) -> Result<Found, String> {
    match fs::metadata(file) {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(Found::Nothing),
        Err(why) => return Err(why.to_string()),
        // To open a pipe is to wait.
        Ok(there) if !there.is_file() => return Err("it is no file".into()),
        Ok(_) => {}
    }
    let mut bytes = Vec::new();
    let opened =
        File::open(file).and_then(|file| file.take(mark::MAX_LEN as u64 + 1).read_to_end(&mut bytes));
    opened.map_err(|why| why.to_string())?;
    match mark::read(&bytes) {
        Ok(mark) => Ok(Found::Before(mark)),
        Err(NoMark::Damaged) => Ok(Found::Damaged),
        Err(newer) => Err(newer.to_string()),
    }
}

/// All of it or nothing, and on the disk when it is done, whatever happens meanwhile.
fn write(file: &Path, mark: u64) -> std::io::Result<()> {
    let unfinished = file.with_extension("tmp");
    let written = File::create(&unfinished).and_then(|mut to| {
        to.write_all(mark::write(mark).as_bytes())?;
        to.sync_data()
    });
    if let Err(why) = written.and_then(|()| fs::rename(&unfinished, file)) {
        let _ = fs::remove_file(&unfinished);
        return Err(why);
    }
    // The new name is on the disk when its folder is.
    File::open(file.parent().unwrap_or(Path::new(".")))?.sync_all()
}
