//! The fence mark: a number on the disk that is normally greater than all fences. A restart continues above
//! it, so fences rise even if all data is lost and the clock was set back.
//!
//! The core ([`dlock_core::mark`]) decides which number is written, and when. A thread writes it, seconds
//! before it is needed, and each tick of the event loop checks the thread. So no command waits for the
//! disk. The server waits for it only when it loads the module or its data.

use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{TryRecvError, channel};
use std::thread;

use dlock_core::Instant;
use dlock_core::mark::{self, Done, Found, News, NoMark, Order};
use nix::libc::{ELOOP, O_NOFOLLOW, O_NONBLOCK};
use rand::TryRng;

use crate::clock;
use crate::ffi::{Ctx, Flags, LogLevel};
use crate::module::{Mark, Module, Outcome};

/// Reads the mark that the previous run left, and writes a higher one. Called when the server loads the
/// module, before any client is served.
pub fn start(m: &Module, ctx: Ctx<'_>) {
    let file = path_of_this_server(ctx);
    m.with(|s| s.mark = Mark { file, ..Mark::default() });
    write_now(m, ctx);
}

/// Writes a higher mark after the server has loaded its data, if the current mark no longer suffices: the
/// load took long, or the data contains greater fences.
pub fn loaded(m: &Module, ctx: Ctx<'_>) {
    let now = clock::now();
    let wants_mark = m.with(|s| s.mark.thread.is_none() && s.fences.wants_mark(now));
    // A replica grants nothing, and may be serving readers already.
    if wants_mark && ctx.flags().contains(Flags::MASTER) {
        write_now(m, ctx);
    }
}

/// Applies CONFIG SET of `dlock.fence-mark`, or of `dir` or `port`, which are parts of the file's path. A
/// write to the previous file that is in progress continues.
pub fn configured(m: &Module, ctx: Ctx<'_>) {
    let file = path_of_this_server(ctx);
    m.with(|s| {
        if s.mark.file != file {
            (s.mark.file, s.mark.thread) = (file, None);
            s.mark.marking.moved();
        }
    });
    on_tick(m, ctx);
}

/// Writes the next mark at once if a fence from another server exceeds the current mark.
pub fn raised(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.fences.mark().is_some_and(|mark| s.fences.last() > mark)) {
        on_tick(m, ctx);
    }
}

/// Checks whether the writer thread is done and whether another mark is due.
pub fn on_tick(m: &Module, ctx: Ctx<'_>) {
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

/// Returns the outcome of the thread's write. `None` while it is not known.
fn outcome(mark: &mut Mark, now: Instant) -> Option<Outcome> {
    let outcome = match mark.thread.as_ref()?.try_recv() {
        Ok(outcome) => outcome,
        Err(TryRecvError::Disconnected) => Err("the thread that writes it has ended".into()),
        // Keeps the thread, as the write may still finish.
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
    match thread.spawn(move || send.send(carry_out(order, &file))) {
        Ok(_) => m.with(|s| s.mark.thread = Some(done)),
        Err(why) => finish(m, ctx, Err(format!("no thread can be started: {why}")), now),
    }
}

fn write_now(m: &Module, ctx: Ctx<'_>) {
    if m.with(|s| s.config.fence_mark) {
        let now = clock::now();
        let (order, file) = begin(m, now);
        finish(m, ctx, carry_out(order, &file), now);
    }
}

/// Records the outcome of a write, and logs news for the operator.
fn finish(m: &Module, ctx: Ctx<'_>, outcome: Outcome, now: Instant) {
    let news = m.with(|s| s.mark.marking.finish(outcome, &mut s.fences, now));
    let file = m.with(|s| s.mark.file.display().to_string());
    for news in news {
        let level = if news == News::Recovered { LogLevel::Notice } else { LogLevel::Warning };
        let text = match news {
            News::Recovered => "is written again".into(),
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

// One write of the mark. It accesses neither the module's state nor the server, so that a thread can run it.

/// Carries out an order of the core: reads the mark that the file contains, and replaces it by a higher one.
/// Another run, or another server, may have issued fences up to the old one.
fn carry_out(order: Order, file: &Path) -> Result<Done, String> {
    let found = match read(file, mark::MAX_LEN)? {
        None => Found::Nothing,
        Some(bytes) => match mark::read(&bytes) {
            Ok(mark) => order.found(mark),
            Err(NoMark::Damaged) => Found::Damaged,
            // The file of a newer module is not replaced.
            Err(newer) => return Err(newer.to_string()),
        },
    };
    let done = order.done(found);
    replace(file, &mark::write(done.mark)).map_err(|why| why.to_string())?;
    Ok(done)
}

// The file is in the server's folder. It is read and replaced as a whole, and never through a symbolic link,
// which another user of the machine could have created.

/// Returns the path of a file of this server: in its folder, named after its port, because servers may share
/// a folder. The port comes from INFO, which works where CONFIG is renamed.
fn path_of_this_server(ctx: Ctx<'_>) -> PathBuf {
    let port = ctx.info_number("server", "tcp_port").unwrap_or(0);
    // Absolute, because CONFIG SET dir changes the working folder, perhaps while the thread writes.
    std::env::current_dir().unwrap_or_default().join(format!("dlock-{port}.fence"))
}

/// Returns the content of a file, at most `max_len` + 1 bytes. More than `max_len` bytes mean that the file
/// is too long. `None` means that there is no file.
fn read(path: &Path, max_len: usize) -> Result<Option<Vec<u8>>, String> {
    // Without O_NONBLOCK, opening a pipe would wait for its writer.
    let opened = OpenOptions::new().read(true).custom_flags(O_NOFOLLOW | O_NONBLOCK).open(path);
    let file = match opened {
        Err(why) if why.kind() == ErrorKind::NotFound => return Ok(None),
        Err(why) if why.raw_os_error() == Some(ELOOP) => return Err("it is a link, not a file".into()),
        Err(why) => return Err(why.to_string()),
        Ok(file) => file,
    };
    if !file.metadata().map_err(|why| why.to_string())?.is_file() {
        return Err("it is no file".into());
    }
    let mut bytes = Vec::new();
    file.take(max_len as u64 + 1).read_to_end(&mut bytes).map_err(|why| why.to_string())?;
    Ok(Some(bytes))
}

/// Replaces a file atomically. The new one is on the disk when this returns.
fn replace(path: &Path, text: &str) -> io::Result<()> {
    let mut temporary = TemporaryFile::create_beside(path)?;
    temporary.file.write_all(text.as_bytes())?;
    temporary.file.sync_data()?;
    fs::rename(&temporary.path, path)?;
    // After the rename there is nothing to remove on drop.
    temporary.path.clear();
    // Syncing the folder writes the new name to the disk.
    File::open(path.parent().unwrap_or(Path::new(".")))?.sync_all()
}

/// The new content of a file, in a temporary file beside it. Removed on drop, unless it has replaced the
/// file.
struct TemporaryFile {
    path: PathBuf,
    file: File,
}

impl TemporaryFile {
    /// Creates a temporary file that only this user can read. Never writes to a file or link that exists.
    fn create_beside(file: &Path) -> io::Result<TemporaryFile> {
        let path = file.with_extension("fence.tmp");
        match TemporaryFile::create(path.clone()) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
        // The existing file was most likely left by a crash.
        let _ = fs::remove_file(&path);
        match TemporaryFile::create(path) {
            Err(why) if why.kind() == ErrorKind::AlreadyExists => {}
            done => return done,
        }
        // The file could not be removed, or has been created again. A random name is free.
        let random = rand::rngs::SysRng.try_next_u64().map_err(io::Error::other)?;
        TemporaryFile::create(file.with_extension(format!("fence.{random:016x}.tmp")))
    }

    fn create(path: PathBuf) -> io::Result<TemporaryFile> {
        // O_EXCL: fails if a file or a link exists under this name.
        let file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(&path)?;
        Ok(TemporaryFile { path, file })
    }
}

impl Drop for TemporaryFile {
    fn drop(&mut self) {
        if !self.path.as_os_str().is_empty() {
            let _ = fs::remove_file(&self.path);
        }
    }
}
