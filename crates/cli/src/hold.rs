//! `dlock acquire`, `release`, `extend`, `wait`: one step each, for scripts.

use std::ffi::OsStr;
use std::io::{Write, stdout};
use std::os::unix::ffi::OsStrExt;

use dlock_client::{Guard, Token, Wait, now};
use serde_json::json;

use crate::args::{Acquire, Extend, Release, WaitFree};
use crate::exit::{Error, Failure};
use crate::obtain::{Countdown, PositionLine, Stopped, flush, label, tell_unusable, unless_signalled};
use crate::shown;
use crate::signals::Signals;

pub async fn acquire(options: Acquire) -> Result<u8, Stopped> {
    let clock = Countdown::begin();
    let mut signals = Signals::listen().map_err(|why| Error::system("signals", why))?;
    let client = unless_signalled(&mut signals, options.servers.client()).await?;
    tell_unusable(&client);
    let mut place = PositionLine::new(&options.wanted.resource);
    let lock = options.wanted.lock(&client, &clock, label("dlock acquire")).renew(false);
    let obtained = unless_signalled(&mut signals, place.watch(lock).acquire()).await;
    drop(place);
    let kept = obtained.and_then(|guard| keep(guard, &options));
    flush(&client, &options.servers).await;
    kept.map(|()| 0)
}

/// Prints the hold and lets it go on. One that could not be printed is released: nobody would know its token.
fn keep(guard: Guard, options: &Acquire) -> Result<(), Stopped> {
    let token = String::from_utf8_lossy(guard.token().as_bytes()).into_owned();
    let fence = guard.fence().map(|fence| fence.get());
    let line = if options.json {
        let valid_ms = guard.valid_until().saturating_since(now()).as_millis() as u64;
        let resource = options.wanted.resource.to_string_lossy();
        shown::json(&json!({ "resource": resource, "token": token, "fence": fence, "valid_ms": valid_ms }))
    } else {
        fence.map_or(token.clone(), |fence| format!("{token} {fence}"))
    };
    print(&line)?;
    let _kept = guard.forget();
    Ok(())
}

pub async fn release(options: Release) -> Result<u8, Stopped> {
    let client = options.servers.client().await?;
    let released = client.release(options.held.resource.as_bytes(), &token(&options.held.token)?).await;
    flush(&client, &options.servers).await;
    released.map_err(|why| about(&options.held.resource, why))?;
    Ok(0)
}

pub async fn extend(options: Extend) -> Result<u8, Stopped> {
    let client = options.servers.client().await?;
    let (resource, token) = (&options.held.resource, token(&options.held.token)?);
    client.extend(resource.as_bytes(), &token, options.ttl).await.map_err(|why| about(resource, why))?;
    Ok(0)
}

pub async fn wait(options: WaitFree) -> Result<u8, Stopped> {
    let clock = Countdown::begin();
    let client = options.servers.client().await?;
    let (resource, wait) =
        (&options.resource, options.timeout.map_or(Wait::Forever, |limit| clock.left_of(limit)));
    let free = client.wait_until_free(resource.as_bytes(), wait).await.map_err(|why| about(resource, why))?;
    if !free {
        let story = format!("{} is not free yet", resource.display());
        return Err(Error::new(Failure::NotObtained, story).into());
    }
    Ok(0)
}

fn token(text: &OsStr) -> Result<Token, Error> {
    Token::new(text.as_bytes()).ok_or_else(|| Error::usage("a token has 1 to 255 bytes"))
}

/// The error with the resource in front, where the client does not name it.
fn about(resource: &OsStr, why: impl Into<Error>) -> Error {
    let why = why.into();
    Error::new(why.failure, format_args!("{}: {why}", resource.display()))
}

/// To standard output, which may be gone.
pub fn print(text: &str) -> Result<(), Error> {
    writeln!(stdout(), "{text}").map_err(|why| Error::system("standard output", why))
}
