//! Getting a lock, with whatever may come in between.

use std::io::{IsTerminal, Write, stderr};
use std::os::unix::ffi::OsStrExt;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use dlock_client::lease::Instant;
use dlock_client::{Acquire, Client, NodeReport, Position, Wait, now};
use nix::sys::signal::Signal;
use terminal_size::terminal_size_of;
use tokio::task::JoinHandle;

use crate::args::{Servers, Wanted};
use crate::exit::{Error, complain};
use crate::shown::plain;
use crate::signals::Signals;

/// Why there is nothing.
pub enum Stopped {
    Error(Error),
    /// A signal asked to end.
    Signal(Signal),
}

impl<E: Into<Error>> From<E> for Stopped {
    fn from(why: E) -> Stopped {
        Stopped::Error(why.into())
    }
}

/// `work`, unless a signal asks to end first. What the work had begun is dropped then.
pub async fn unless_signalled<T, E: Into<Error>>(
    signals: &mut Signals,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Stopped> {
    tokio::select! {
        done = work => Ok(done?),
        signal = signals.end() => Err(match signal {
            Ok(signal) => Stopped::Signal(signal),
            Err(why) => Error::system("signals", why).into(),
        }),
    }
}

/// Lets what goes on in the background come to its end: releases, clean-up. A server that is silent must not hold us up
/// for longer than for one answer: what it holds ends by its lease.
pub async fn flush(client: &Client, servers: &Servers) {
    let limit = servers.node_timeout.min(Duration::from_secs(1));
    let _ = tokio::time::timeout(limit, client.flush()).await;
}

/// Tells which members are there and of no use, since nobody would look for what is wrong with them.
pub fn tell_unusable(client: &Client) {
    for NodeReport { server, state, .. } in client.unusable().0 {
        complain(format_args!("{server} cannot take part, and the others go on without it: {state}"));
    }
}

/// Since when something is waited for: the time that the first connections take is a part of it.
pub struct Countdown(Instant);

impl Countdown {
    pub fn begin() -> Countdown {
        Countdown(now())
    }

    /// What is left of `limit`.
    pub fn left_of(&self, limit: Duration) -> Wait {
        if limit.is_zero() { Wait::No } else { Wait::For((self.0 + limit).saturating_since(now())) }
    }
}

impl Wanted {
    /// The lock, to be acquired.
    pub fn lock(&self, client: &Client, clock: &Countdown, label: String) -> Acquire {
        let wait = match self.wait {
            _ if self.no_wait => Wait::No,
            Some(limit) => clock.left_of(limit),
            None => Wait::Forever,
        };
        let mut lock = client.lock(self.resource.as_bytes()).ttl(self.ttl).wait(wait);
        let resource = self.resource.display().to_string();
        lock = lock.on_outage(move |report| {
            complain(format_args!("too few servers for {resource} at present ({report}); it is tried on"));
        });
        if self.shared {
            lock = lock.shared();
        }
        if self.fenced {
            lock = lock.fenced();
        }
        if let Some(delay) = self.delay {
            lock = lock.delay(delay);
        }
        lock.label(self.label.clone().unwrap_or(label))
    }
}

/// A label that tells people where to look.
pub fn label(what: &str) -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let mut label = format!("{}: {what} ({})", host.to_string_lossy(), std::process::id());
    while label.len() > 255 {
        label.pop();
    }
    label
}

/// The place in line, on one line of a terminal that is written anew and cleared at the end. Elsewhere, silence.
pub struct PositionLine {
    resource: String,
    is_shown: bool,
    place: Arc<Mutex<Option<(Position, Instant)>>>,
    /// Writes it anew as time goes by.
    clock: Option<JoinHandle<()>>,
}

impl PositionLine {
    pub fn new(resource: &std::ffi::OsStr) -> PositionLine {
        let resource = resource.display().to_string();
        PositionLine { resource, is_shown: stderr().is_terminal(), place: Arc::default(), clock: None }
    }

    pub fn watch(&mut self, lock: Acquire) -> Acquire {
        if !self.is_shown {
            return lock;
        }
        let (resource, place) = (self.resource.clone(), self.place.clone());
        self.clock = Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                draw(&resource, &place);
            }
        }));
        let (resource, place) = (self.resource.clone(), self.place.clone());
        lock.on_position(move |told| {
            *place.lock().unwrap_or_else(PoisonError::into_inner) = Some((told, now()));
            draw(&resource, &place);
        })
    }
}

/// Nothing where no place is known yet.
fn draw(resource: &str, place: &Mutex<Option<(Position, Instant)>>) {
    if let Some((place, told_at)) = &*place.lock().unwrap_or_else(PoisonError::into_inner) {
        let Position { server, position, waited } = place;
        let waited = (*waited + now().saturating_since(*told_at)).as_secs();
        let line = plain(format_args!("waiting for {resource}: place {position} at {server}, {waited} s"));
        // A longer one would go on on the next line, and could not be cleared.
        let width = terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let line: String = line.chars().take(width.saturating_sub(1)).collect();
        let _ = write!(stderr(), "\r\x1b[K{line}");
    }
}

impl Drop for PositionLine {
    fn drop(&mut self) {
        self.clock.iter().for_each(JoinHandle::abort);
        if self.place.lock().unwrap_or_else(PoisonError::into_inner).take().is_some() {
            let _ = write!(stderr(), "\r\x1b[K");
        }
    }
}
