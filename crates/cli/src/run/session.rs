//! A session: one client, the acquisition of locks with it, and the signals that interrupt it.

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::process::exit;
use std::thread;
use std::time::Duration;

use dlock_client::{Acquire, AcquireError, Client, Instant, NodeReport, Wait, now};
use tokio::runtime::Handle;

use crate::args::{LockArgs, Servers};
use crate::exit::{Abort, Error, end_by};
use crate::lock_state;
use crate::output::{time, warn};
use crate::run::parent_run::{OWNER, inherited_owner};
use crate::run::position::PositionDisplay;
use crate::signals::Signals;

/// The resources to acquire, and the options of the acquisition.
pub struct Wanted<'a> {
    pub resources: &'a [OsString],
    pub args: &'a LockArgs,
    /// The name of the holder in the default label: a command, or `process 17`.
    pub holder: &'a str,
}

/// A client, and the signals that interrupt its work.
pub struct Session {
    pub client: Client,
    pub signals: Signals,
    /// When the session was opened. A wait for a lock counts from then.
    began: Instant,
}

impl Session {
    async fn open(servers: &Servers) -> Result<Session, Abort> {
        let began = now();
        let mut signals = Signals::listen().map_err(|why| Error::system("signals", why))?;
        let client = unless_signalled(&mut signals, servers.client()).await?;
        // The others continue without these, so this warning is the only sign that they are missing.
        for NodeReport { server, state, .. } in client.unusable().0 {
            warn(format_args!("{server} cannot take part, continuing without it: {state}"));
        }
        Ok(Session { client, signals, began })
    }

    /// Acquires the wanted resources by `send`, which gets a request for the first of them. To acquire
    /// several, `send` copies the options of this request. The error names the current holder if another
    /// client holds one of the resources.
    pub async fn acquire<G>(
        &mut self,
        wanted: Wanted<'_>,
        send: impl AsyncFnOnce(&Client, Acquire) -> Result<G, AcquireError>,
    ) -> Result<G, Abort> {
        let Wanted { resources, args, holder } = wanted;
        let names: Vec<String> = resources.iter().map(|name| name.display().to_string()).collect();
        let names = names.join(", ");
        let lock = args.lock(&self.client, &resources[0], &names, self.began, holder);
        let (lock, position) = PositionDisplay::watch(&names, lock);
        let acquisition = async {
            match send(&self.client, lock).await {
                Ok(acquired) => Ok(acquired),
                Err(why) => Err(args.acquire_error(why)),
            }
        };
        let acquired = unless_signalled(&mut self.signals, acquisition).await;
        drop(position);
        acquired
    }
}

/// Runs `work` in a new session, and then waits for the client's background work: see [`flush`].
pub async fn in_session<T>(
    servers: &Servers,
    work: impl AsyncFnOnce(&mut Session) -> Result<T, Abort>,
) -> Result<T, Abort> {
    let mut session = Session::open(servers).await?;
    let done = work(&mut session).await;
    flush(&session.client, servers).await;
    done
}

/// Runs `work`. If a signal that ends dlock arrives first, drops `work` and returns the signal.
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

/// Runs `work`, and ends this process when a signal that ends dlock arrives. Only for work that needs no
/// clean-up. The default action of a signal would not be enough: in a container, dlock can be PID 1, for
/// which the kernel does not carry out default actions.
pub async fn exit_on_signal(work: impl Future<Output = Result<u8, Abort>>) -> Result<u8, Abort> {
    let mut signals = Signals::listen().map_err(|why| Error::system("signals", why))?;
    let runtime = Handle::current();
    // In a thread of its own, because `work` may be blocked on a full pipe.
    thread::spawn(move || {
        if let Ok(signal) = runtime.block_on(signals.end()) {
            exit(end_by(signal).into());
        }
    });
    work.await
}

/// Waits for the client's background work, such as releases, for at most one node timeout and at most 1 s.
/// If a server does not answer in that time, the lease ends the hold.
pub async fn flush(client: &Client, servers: &Servers) {
    let limit = servers.node_timeout.min(Duration::from_secs(1));
    let _ = tokio::time::timeout(limit, client.flush()).await;
}

/// The rest of a wait of at most `limit`. The wait began at `start`, before the client connected.
pub fn wait_from(start: Instant, limit: Duration) -> Wait {
    if limit.is_zero() { Wait::No } else { Wait::For((start + limit).saturating_since(now())) }
}

impl LockArgs {
    /// A request for `resource` with these options. `names` lists all the resources of the acquisition, for
    /// messages.
    fn lock(&self, client: &Client, resource: &OsStr, names: &str, began: Instant, holder: &str) -> Acquire {
        let wait = match self.wait {
            _ if self.no_wait => Wait::No,
            Some(limit) => wait_from(began, limit),
            None => Wait::Forever,
        };
        let mut lock = client.lock(resource.as_bytes()).ttl(self.ttl).wait(wait).owner(OWNER.as_bytes());
        lock = lock.shares_owner(inherited_owner().is_some());
        let names = names.to_owned();
        lock = lock.on_outage(move |report| {
            warn(format_args!("too few servers for {names} at present ({report}); retrying"));
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
        lock.label(self.label.clone().unwrap_or_else(|| label(holder)))
    }

    /// The error for a failed acquisition. Begins with the holder if another client holds the lock: "r is
    /// taken by nightly@host7 for 3m 12s (fence 1795179170661711)". The fence is left out if no majority has
    /// it. If a delay after a release closes the lock: "r is closed for another 23h 59m".
    fn acquire_error(&self, why: AcquireError) -> Error {
        let closed = match &why {
            AcquireError::Taken { closed, .. } if !closed.is_zero() => {
                Some(format!("closed for another {}", time(closed.as_millis() as u64)))
            }
            _ => None,
        };
        let holder = match &why {
            AcquireError::Taken { resource, holder: Some(holder), .. }
            | AcquireError::Deadlock { resource, holder: Some(holder), .. } => {
                let name = lock_state::display_name(&holder.label, &holder.token);
                let fence = (holder.fence > 0).then(|| format!(" (fence {})", holder.fence));
                let (held, fence) = (time(holder.held_ms), fence.unwrap_or_default());
                let closed = closed.map(|closed| format!("; {closed}")).unwrap_or_default();
                Some(format!("{resource} is taken by {name} for {held}{fence}{closed}"))
            }
            AcquireError::Taken { resource, .. } => closed.map(|closed| format!("{resource} is {closed}")),
            _ => None,
        };
        let is_deadlock = matches!(why, AcquireError::Deadlock { .. });
        let is_taken = matches!(why, AcquireError::Taken { .. });
        let mut error = Error::from(why);
        if let Some(holder) = holder {
            // The client's error names the owners that wait for each other, which are random numbers. The
            // holder's label says more to users, so the message begins with the holder.
            let message = if is_deadlock { format!("{holder}; {error}") } else { holder };
            error = Error::new(error.failure, message);
        }
        // A full queue and a deadlock have the code 75, too, but are for people to know of and to mend.
        if is_taken {
            error.code = self.conflict_code.unwrap_or(error.code);
            if self.quiet {
                error.message.clear();
            }
        }
        error
    }
}

/// The default label: the holder's name, this host and this process, cut to the limit of 255 bytes.
fn label(holder: &str) -> String {
    let host = nix::unistd::gethostname().unwrap_or_default();
    let mut label = format!("{holder}@{} ({})", host.to_string_lossy(), std::process::id());
    while label.len() > 255 {
        label.pop();
    }
    label
}
