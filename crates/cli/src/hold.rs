//! `dlock acquire`, `release`, `extend`, `wait`: single steps for scripts.

use std::ffi::OsStr;
use std::fmt;
use std::io::{self, ErrorKind, Write, stdout};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Acquire, Client, Guard, Token, Wait, now};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::signal::Signal;
use nix::sys::stat::{SFlag, fstat, stat};
use serde_json::json;
use tokio::task::spawn_blocking;

use crate::args::{self, Extend, Release, WaitFree};
use crate::exit::{Error, Failure};
use crate::lock::{Abort, Countdown, Wanted, flush, unless_signalled, with_lock};
use crate::shown;
use crate::signals::Signals;

pub async fn acquire(args: args::Acquire) -> Result<u8, Abort> {
    if is_closed(stdout()) {
        let message = "standard output is closed: nobody would know the token, and the lock was not acquired";
        return Err(Error::new(Failure::System, message).into());
    }
    let resources = std::slice::from_ref(&args.resource);
    let wanted = Wanted { resources, args: &args.lock, what: "dlock acquire" };
    let acquire = async |client: &Client, lock: Acquire| match lock.renew(false).acquire().await {
        Ok(guard) => Ok(guard),
        Err(why) => Err(args.lock.refusal(client, resources, why).await),
    };
    let work = async |guard, signals: &mut _| keep(guard, &args, signals).await;
    with_lock(&args.servers, wanted, acquire, work).await
}

/// Whether it was closed when dlock started: then the runtime has opened /dev/null in its place, for reading
/// too. A redirection to /dev/null is for writing only.
fn is_closed(output: impl AsFd) -> bool {
    let flags = fcntl(&output, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    let for_both = flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDWR);
    let null = stat("/dev/null").map(|null| null.st_rdev);
    for_both
        && fstat(output).is_ok_and(|file| {
            SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR
                && Ok(file.st_rdev) == null
        })
}

/// Prints the hold and keeps it. If it cannot be printed it is released, as nobody would know its token.
async fn keep(guard: Guard, args: &args::Acquire, signals: &mut Signals) -> Result<u8, Abort> {
    let token = String::from_utf8_lossy(guard.token().as_bytes()).into_owned();
    let fence = guard.fence().map(|fence| fence.get());
    let line = if args.json {
        let valid_ms = guard.valid_until().saturating_since(now()).as_millis() as u64;
        let resource = args.resource.to_string_lossy();
        shown::json(&json!({ "resource": resource, "token": token, "fence": fence, "valid_ms": valid_ms }))
    } else {
        fence.map_or(token.clone(), |fence| format!("{token} {fence}"))
    };
    // By another thread, as nobody may read it: a signal ends dlock all the same.
    let printed = async { spawn_blocking(move || print(&line)).await.unwrap_or_else(|why| Err(failed(why))) };
    unless_signalled(signals, printed).await?;
    let _ = guard.forget();
    Ok(0)
}

pub async fn release(args: Release) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let released = client.release(args.held.resource.as_bytes(), &token(&args.held.token)?).await;
    flush(&client, &args.servers).await;
    released.map_err(|why| about(&args.held.resource, why))?;
    Ok(0)
}

pub async fn extend(args: Extend) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let (resource, token) = (&args.held.resource, token(&args.held.token)?);
    client.extend(resource.as_bytes(), &token, args.ttl).await.map_err(|why| about(resource, why))?;
    Ok(0)
}

pub async fn wait(args: WaitFree) -> Result<u8, Abort> {
    let clock = Countdown::begin();
    let client = args.servers.client().await?;
    let resource = &args.resource;
    let wait = args.timeout.map_or(Wait::Forever, |limit| clock.left_of(limit));
    let free = client.wait_until_free(resource.as_bytes(), wait).await.map_err(|why| about(resource, why))?;
    if !free {
        let message = format!("{} is not free yet", resource.display());
        return Err(Error::new(Failure::NotAcquired, message).into());
    }
    Ok(0)
}

fn token(text: &OsStr) -> Result<Token, Error> {
    Token::new(text.as_bytes()).ok_or_else(|| Error::usage("a token must have 1 to 255 bytes"))
}

/// Puts the resource in front of an error that does not name it.
fn about(resource: &OsStr, why: impl Into<Error>) -> Error {
    let why = why.into();
    Error::new(why.failure, format_args!("{}: {why}", resource.display()))
}

/// Prints to standard output.
pub fn print(text: &str) -> Result<(), Abort> {
    writeln!(stdout(), "{text}").map_err(not_printed)
}

/// If the reader of standard output has gone away (`dlock list | head -1`) dlock ends without a word, as
/// other programs do, which the signal for it kills.
pub fn not_printed(why: io::Error) -> Abort {
    match why.kind() {
        ErrorKind::BrokenPipe => Abort::Signal(Signal::SIGPIPE),
        _ => failed(why),
    }
}

fn failed(why: impl fmt::Display) -> Abort {
    Error::system("standard output", why).into()
}
