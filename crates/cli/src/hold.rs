//! `dlock acquire`, `release`, `extend`, `wait`: single steps for scripts.

use std::ffi::OsStr;
use std::io::{Write, stdout};
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Guard, Token, Wait, now};
use serde_json::json;

use crate::args::{Acquire, Extend, Release, WaitFree};
use crate::exit::{Error, Failure};
use crate::lock::{Abort, Countdown, flush, with_lock};
use crate::shown;

pub async fn acquire(args: Acquire) -> Result<u8, Abort> {
    let keep = async |guard, _: &mut _| keep(guard, &args);
    with_lock(&args.lock, &args.servers, "dlock acquire", |lock| lock.renew(false), keep).await
}

/// Prints the hold and keeps it. If it cannot be printed it is released, as nobody would know its token.
fn keep(guard: Guard, args: &Acquire) -> Result<u8, Abort> {
    let token = String::from_utf8_lossy(guard.token().as_bytes()).into_owned();
    let fence = guard.fence().map(|fence| fence.get());
    let line = if args.json {
        let valid_ms = guard.valid_until().saturating_since(now()).as_millis() as u64;
        let resource = args.lock.resource.to_string_lossy();
        shown::json(&json!({ "resource": resource, "token": token, "fence": fence, "valid_ms": valid_ms }))
    } else {
        fence.map_or(token.clone(), |fence| format!("{token} {fence}"))
    };
    print(&line)?;
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

/// Prints to standard output, which may be closed.
pub fn print(text: &str) -> Result<(), Error> {
    writeln!(stdout(), "{text}").map_err(|why| Error::system("standard output", why))
}
