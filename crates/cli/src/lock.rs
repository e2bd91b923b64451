//! Acquiring a lock, and what may interrupt it.

use std::ffi::{OsStr, OsString};
use std::io::{IsTerminal, stderr};
use std::os::unix::ffi::OsStrExt;
use std::process::exit;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::Duration;

use dlock_client::{Acquire, AcquireError, Client, Instant, NodeReport, Position, Wait, now};
use nix::sys::signal::Signal;
use terminal_size::terminal_size_of;
use tokio::runtime::Handle;
use tokio::task::JoinHandle;

use crate::args::{LockArgs, Servers};
use crate::around::OWNER;
use crate::exit::{Error, Failure, PRINTING, complain, end_by, print_later, wait_printed};
use crate::list::Holding;
use crate::shown::plain;
use crate::signals::Signals;
use crate::{list, table};

/// Why a subcommand ended without its result.
pub enum Abort {
    Error(Error),
    Signal(Signal),
}

impl<E: Into<Error>> From<E> for Abort {
    fn from(why: E) -> Abort {
        Abort::Error(why.into())
    }
}

/// What to acquire, and how.
pub struct Wanted<'a> {
    pub resources: &'a [OsString],
    pub args: &'a LockArgs,
    /// What the label says by default.
    pub what: &'a str,
}

/// A client, and the signals that interrupt what it does.
pub struct Session {
    pub client: Client,
    pub signals: Signals,
    clock: Countdown,
}

impl Session {
    pub async fn open(servers: &Servers) -> Result<Session, Abort> {
        let clock = Countdown::begin();
        let mut signals = Signals::listen().map_err(|why| Error::system("signals", why))?;
        let client = unless_signalled(&mut signals, servers.client()).await?;
        // Otherwise nobody would notice, as the others go on without them.
        for NodeReport { server, state, .. } in client.unusable().0 {
            complain(format_args!("{server} cannot take part, continuing without it: {state}"));
        }
        Ok(Session { client, signals, clock })
    }

    /// Acquires what is wanted and does `work` with it.
    pub async fn with_lock<G, T>(
        &mut self,
        wanted: Wanted<'_>,
        acquire: impl AsyncFnOnce(&Client, Acquire) -> Result<G, Error>,
        work: impl AsyncFnOnce(G, &mut Signals) -> Result<T, Abort>,
    ) -> Result<T, Abort> {
        let Wanted { resources, args, what } = wanted;
        let names: Vec<String> = resources.iter().map(|name| name.display().to_string()).collect();
        let names = names.join(", ");
        let mut position = PositionDisplay::new(&names);
        let lock = position.watch(args.lock(&self.client, &resources[0], names, &self.clock, what));
        let acquired = unless_signalled(&mut self.signals, acquire(&self.client, lock)).await;
        drop(position);
        work(acquired?, &mut self.signals).await
    }
}

/// Opens a session, acquires what is wanted and does `work` with it.
pub async fn with_lock<G, T>(
    servers: &Servers,
    wanted: Wanted<'_>,
    acquire: impl AsyncFnOnce(&Client, Acquire) -> Result<G, Error>,
    work: impl AsyncFnOnce(G, &mut Signals) -> Result<T, Abort>,
) -> Result<T, Abort> {
    let mut session = Session::open(servers).await?;
    let done = session.with_lock(wanted, acquire, work).await;
    flush(&session.client, servers).await;
    done
}

/// Does `work` unless a signal asks to end first; the work is dropped then.
pub async fn unless_signalled<T, E>(
    signals: &mut Signals,
    work: impl Future<Output = Result<T, E>>,
) -> Result<T, Abort>
where
    Abort: From<E>,
{
    tokio::select! {
        done = work => Ok(done?),
        signal = signals.end() => Err(match signal {
            Ok(signal) => Abort::Signal(signal),
            Err(why) => Error::system("signals", why).into(),
        }),
    }
}

/// Does `work`, which leaves nothing to clean up, unless a signal asks to end. The kernel does not end the
/// first process of a container by signals that it neither reads nor handles.
pub async fn unless_ended(work: impl Future<Output = Result<u8, Abort>>) -> Result<u8, Abort> {
    let mut signals = Signals::listen().map_err(|why| Error::system("signals", why))?;
    let runtime = Handle::current();
    // Not here: the work may be writing to a pipe that nobody reads.
    thread::spawn(move || {
        if let Ok(signal) = runtime.block_on(signals.end()) {
            exit(end_by(signal).into());
        }
    });
    work.await
}

/// Waits for the background work: releases and clean-up. A silent server must not delay the exit for longer
/// than one answer: its lease ends the hold.
pub async fn flush(client: &Client, servers: &Servers) {
    let limit = servers.node_timeout.min(Duration::from_secs(1));
    let _ = tokio::time::timeout(limit, client.flush()).await;
}

/// Counts down a wait from the start, so that it includes the time of the first connections.
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

impl LockArgs {
    /// Of these resources, which are called `names`, the first.
    fn lock(
        &self,
        client: &Client,
        resource: &OsStr,
        names: String,
        clock: &Countdown,
        what: &str,
    ) -> Acquire {
        let wait = match self.wait {
            _ if self.no_wait => Wait::No,
            Some(limit) => clock.left_of(limit),
            None => Wait::Forever,
        };
        let mut lock = client.lock(resource.as_bytes()).ttl(self.ttl).wait(wait).owner(OWNER.as_bytes());
        lock = lock.on_outage(move |report| {
            complain(format_args!("too few servers for {names} at present ({report}); retrying"));
        });
        if let Some(permits) = self.permits {
            lock = lock.permits(permits);
        }
        if self.shared {
            lock = lock.shared();
        }
        if self.fenced {
            lock = lock.fenced();
        }
        if let Some(delay) = self.delay {
            lock = lock.delay(delay);
        }
        lock.label(self.label.clone().unwrap_or_else(|| label(what)))
    }

    /// Why none of these resources was acquired, and who holds the one that is taken.
    pub async fn refusal(&self, client: &Client, resources: &[OsString], why: AcquireError) -> Error {
        let holder = match &why {
            AcquireError::Taken { resource, .. } | AcquireError::Deadlock { resource, .. } => {
                holder(client, resources, resource).await
            }
            _ => None,
        };
        let is_deadlock = matches!(why, AcquireError::Deadlock { .. });
        let mut error = Error::from(why);
        if let Some(holder) = holder {
            // Owners tell people less: they are random, and those of runs within one run begin alike.
            let message = if is_deadlock { format!("{holder}; {error}") } else { holder };
            error = Error::new(error.failure, message);
        }
        if error.failure == Failure::NotAcquired {
            error = self.conflict_code.into_iter().fold(error, Error::with_code);
        }
        if error.failure == Failure::NotAcquired && self.quiet { error.without_message() } else { error }
    }
}

/// Who holds it, for how long, and with which fence, if it has one: "r is taken by nightly@host7 for 3m 12s
/// (fence 1795179170661711)". `None` if that cannot be told (any longer).
async fn holder(client: &Client, resources: &[OsString], taken: &str) -> Option<String> {
    let named = resources.iter().find(|resource| resource.display().to_string() == taken);
    let resource = named.or_else(|| resources.first().filter(|_| resources.len() == 1))?;
    let masters = client.inspect(resource.as_bytes()).await;
    let Holding { holder, fence } = list::holder(&masters)?;
    let (who, held) = (list::who(&holder), table::time(holder.held_ms));
    let fence = fence.map(|fence| format!(" (fence {fence})")).unwrap_or_default();
    Some(format!("{taken} is taken by {who} for {held}{fence}"))
}

/// A label that tells people where to look.
fn label(what: &str) -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let mut label = format!("{what}@{} ({})", host.to_string_lossy(), std::process::id());
    while label.len() > 255 {
        label.pop();
    }
    label
}

/// The position in the wait queue on one line of the terminal, redrawn in place and cleared at the end.
/// Without a terminal, nothing is shown.
struct PositionDisplay {
    line: Arc<PositionLine>,
    is_shown: bool,
    /// Redraws it every second.
    clock: Option<JoinHandle<()>>,
}

struct PositionLine {
    resource: String,
    last: Mutex<Option<(Position, Instant)>>,
    /// The terminal has not taken it yet.
    is_queued: AtomicBool,
}

impl PositionDisplay {
    fn new(names: &str) -> PositionDisplay {
        let line = PositionLine {
            resource: names.to_owned(),
            last: Mutex::default(),
            is_queued: AtomicBool::new(false),
        };
        PositionDisplay { line: Arc::new(line), is_shown: stderr().is_terminal(), clock: None }
    }

    fn watch(&mut self, lock: Acquire) -> Acquire {
        if !self.is_shown {
            return lock;
        }
        let line = self.line.clone();
        self.clock = Some(tokio::spawn(async move {
            loop {
                tokio::time::sleep(Duration::from_secs(1)).await;
                line.draw();
            }
        }));
        let line = self.line.clone();
        lock.on_position(move |position| {
            *line.last() = Some((position, now()));
            line.draw();
        })
    }
}

impl PositionLine {
    fn draw(self: &Arc<Self>) {
        if !self.is_queued.swap(true, Ordering::Relaxed) {
            let line = self.clone();
            print_later(move || line.text());
        }
    }

    /// Nothing as long as no position is known.
    fn text(&self) -> String {
        self.is_queued.store(false, Ordering::Relaxed);
        let last = self.last();
        let Some((Position { server, position, waited, .. }, at)) = &*last else { return String::new() };
        let (resource, waited) = (&self.resource, (*waited + now().saturating_since(*at)).as_secs());
        let line = plain(format_args!("waiting for {resource}: position {position} at {server}, {waited} s"));
        // A longer one would wrap, and could not be cleared.
        let width = terminal_size_of(stderr()).map_or(80, |(width, _)| usize::from(width.0));
        let line: String = line.chars().take(width.saturating_sub(1)).collect();
        format!("\r\x1b[K{line}")
    }

    fn last(&self) -> MutexGuard<'_, Option<(Position, Instant)>> {
        self.last.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for PositionDisplay {
    fn drop(&mut self) {
        self.clock.iter().for_each(JoinHandle::abort);
        if self.line.last().take().is_some() {
            print_later(|| "\r\x1b[K".into());
            // Before anybody else writes there.
            wait_printed(PRINTING);
        }
    }
}
