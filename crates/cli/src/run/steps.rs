//! `dlock acquire`, `release`, `extend` and `wait`: single steps for scripts.

use std::ffi::OsStr;
use std::io::{self, stdout};
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Guard, Token, Wait, now};
use nix::fcntl::{FcntlArg, OFlag, fcntl};
use nix::sys::stat::{SFlag, fstat, stat};
use serde_json::json;
use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::args::{self, Extend, Release, WaitFree};
use crate::exit::{Abort, Error, Failure};
use crate::output::{NotPrinted, escape_json, print, set_name};
use crate::run::session::{Wanted, flush, in_session, unless_signalled, wait_from};
use crate::signals::Signals;

pub async fn acquire(args: args::Acquire) -> Result<u8, Abort> {
    if is_closed(stdout()) {
        let message =
            "standard output is closed, so the token could not be printed; the lock was not acquired";
        return Err(Error::new(Failure::System, message).into());
    }
    let resources = std::slice::from_ref(&args.resource);
    in_session(&args.servers, async |session| {
        let wanted = Wanted { resources, args: &args.lock, holder: "dlock acquire" };
        let guard = session.acquire(wanted, async |_, lock| lock.renew(false).acquire().await).await?;
        // The acquisition waits for a majority of the servers. This waits for the others, at most for a tenth
        // of the lease. The client waits at most one node timeout for each answer.
        let others = async { Ok::<_, Abort>(timeout(args.lock.ttl / 10, session.client.flush()).await) };
        let _ = unless_signalled(&mut session.signals, others).await?;
        keep(guard, &args, &mut session.signals).await
    })
    .await
}

/// Returns whether `output` was closed when dlock started. In its place, Rust's runtime has opened /dev/null
/// for reading and writing; a redirection of the shell to /dev/null opens it for writing only.
fn is_closed(output: impl AsFd) -> bool {
    let flags = fcntl(&output, FcntlArg::F_GETFL).map(OFlag::from_bits_retain);
    let is_read_write = flags.is_ok_and(|flags| flags & OFlag::O_ACCMODE == OFlag::O_RDWR);
    let null = stat("/dev/null").map(|null| null.st_rdev);
    is_read_write
        && fstat(output).is_ok_and(|file| {
            SFlag::from_bits_truncate(file.st_mode) & SFlag::S_IFMT == SFlag::S_IFCHR
                && Ok(file.st_rdev) == null
        })
}

/// Prints the token and leaves the lock held. If the token cannot be printed, the lock is released.
async fn keep(guard: Guard, args: &args::Acquire, signals: &mut Signals) -> Result<u8, Abort> {
    let token = String::from_utf8_lossy(guard.token().as_bytes()).into_owned();
    let fence = guard.fence().map(|fence| fence.get());
    let line = if args.json {
        let valid_ms = guard.valid_until().saturating_since(now()).as_millis() as u64;
        let mut acquired = json!({ "token": token, "fence": fence, "valid_ms": valid_ms });
        set_name(&mut acquired, args.resource.as_bytes());
        escape_json(&acquired)
    } else {
        fence.map_or(token.clone(), |fence| format!("{token} {fence}"))
    };
    // In another thread, so that a signal ends dlock even while a pipe that is not read blocks the printing.
    let printed = async {
        let printed = spawn_blocking(move || print(&line)).await;
        printed.unwrap_or_else(|why| Err(NotPrinted(io::Error::other(why))))
    };
    unless_signalled(signals, printed).await?;
    let _ = guard.forget();
    Ok(0)
}

pub async fn release(args: Release) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let released = client.release(args.held.resource.as_bytes(), &token(&args.held.token)?).await;
    // `client.release` waits for a majority of the servers. This waits for the others.
    flush(&client, &args.servers).await;
    released.map_err(|why| with_name(&args.held.resource, why))?;
    Ok(0)
}

pub async fn extend(args: Extend) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let (resource, token) = (&args.held.resource, token(&args.held.token)?);
    client.extend(resource.as_bytes(), &token, args.ttl).await.map_err(|why| with_name(resource, why))?;
    Ok(0)
}

pub async fn wait(args: WaitFree) -> Result<u8, Abort> {
    let began = now();
    let client = args.servers.client().await?;
    let resource = &args.resource;
    let wait = args.timeout.map_or(Wait::Forever, |limit| wait_from(began, limit));
    let free =
        client.wait_until_free(resource.as_bytes(), wait).await.map_err(|why| with_name(resource, why))?;
    if !free {
        let message = format!("{} is not free yet", resource.display());
        return Err(Error::new(Failure::NotAcquired, message).into());
    }
    Ok(0)
}

fn token(text: &OsStr) -> Result<Token, Error> {
    Token::new(text.as_bytes()).ok_or_else(|| Error::usage("a token must have 1 to 255 bytes"))
}

/// The error, with the name of the resource in front.
fn with_name(resource: &OsStr, why: impl Into<Error>) -> Error {
    let why = why.into();
    Error::new(why.failure, format_args!("{}: {why}", resource.display()))
}
