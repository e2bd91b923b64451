//! Acquiring a lock: its builder.

pub(crate) mod adopt;
pub(crate) mod all;
mod attempt;
pub(crate) mod contended;
mod course;
pub(crate) mod deadline;
pub(crate) mod durable;
mod hold;
mod meeting;
mod options;
mod owner;
pub(crate) mod queue;
pub(crate) mod round;
pub(crate) mod session;

pub use deadline::Wait;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::Token;

use crate::acquire::durable::Durable;
use crate::acquire::options::{Options, UncheckedMode};
use crate::client::Client;
use crate::error::{AcquireError, Lost, Report};
use crate::guard::Guard;
use crate::inspect::Position;

/// Acquires a lock: see [`Client::lock`](crate::Client::lock). Set the options in any order, then await it,
/// or call [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire).
#[must_use = "nothing is acquired before it is awaited"]
pub struct Acquire<C = Client> {
    client: C,
    resource: Vec<u8>,
    options: Options,
}

impl<C> Acquire<C> {
    /// Sets the lease, from 1 ms to the servers' `dlock.max-ttl` (a day by default). Default: 30 s, which
    /// outlasts the pauses of real machines and is short enough to wait for.
    ///
    /// If the holder dies, the lock is free after the lease; as long as it lives, it renews the lease after
    /// each third.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long to wait while somebody else holds the lock. Default: [`Wait::Forever`], like a mutex.
    ///
    /// Clients wait in the queue of one master, first come, first served. The wait also covers masters in
    /// grace, and those that are down or silent: see [`Wait`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.options.wait = wait;
        self
    }

    /// Shares the lock with other shared holders, but with no exclusive one.
    pub fn shared(mut self) -> Self {
        self.options.mode = UncheckedMode::Shared;
        self
    }

    /// Allows at most `n` holders, 1 to 2147483647. Requires a single server: majorities cannot count
    /// permits.
    pub fn permits(mut self, n: u32) -> Self {
        self.options.mode = UncheckedMode::Permits(n);
        self
    }

    /// Requests a fencing token that is greater than that of every earlier hold of the resource over the
    /// whole quorum, which takes one more round trip. On a single server every hold has one.
    pub fn fenced(mut self) -> Self {
        self.options.fenced = true;
        self
    }

    /// Enters again if this client (or a clone of it) already holds the resource reentrantly: the new guard
    /// shares the hold, which ends with its last guard. The client counts the entries, so entering again
    /// sends no request. The owner is the client; [`Client::session`](crate::Client::session) creates
    /// another.
    pub fn reentrant(mut self) -> Self {
        self.options.reentrant = true;
        self
    }

    /// Ends the hold also when its connection closes. It gets a connection of its own. Requires a single
    /// server.
    pub fn ephemeral(mut self) -> Self {
        self.options.ephemeral = true;
        self
    }

    /// If the hold ends by its lease or a closed connection, nobody is granted the lock for this long, so
    /// that writes that a dead holder still had in flight can land.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = delay;
        self
    }

    /// Acquires only if so many replicas of a majority of the masters have the grant within `timeout`
    /// (`WAIT`); 0 asks for the masters' own append only files (`WAITAOF`, of Redis 7.2 and Valkey).
    /// Otherwise the lock is released again, with [`AcquireError::NotDurable`]. The user needs `+wait` or
    /// `+waitaof`.
    ///
    /// A failover to one of these replicas then keeps the hold. The renewals do not wait for replicas.
    pub fn durable(mut self, replicas: u32, timeout: Duration) -> Self {
        self.options.durable = Some(Durable { replicas, timeout });
        self
    }

    /// Sets a text for people (host, job), at most 255 bytes, which [`inspect`](crate::Client::inspect)
    /// shows.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// Whether to renew the lease in the background after each third of the ttl; default: true. A third
    /// leaves room for two more tries before the hold is lost.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Declares the hold lost ([`Lost::Ended`]) this long after the acquisition, whatever is left of its
    /// lease, and renews it no longer; default: never. Without it, a holder that hangs holds for ever.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.options.max_hold = Some(longest);
        self
    }

    /// How long before its validity ends the hold is declared lost: the time that the holder has to stop. At
    /// most half of the ttl; default: a tenth.
    pub fn notice(mut self, notice: Duration) -> Self {
        self.options.notice = Some(notice);
        self
    }

    /// Acquires with this token instead of a fresh one. It must never have been used for this resource: a
    /// release from its earlier use could still arrive and end the new hold. The attempt then has a single
    /// round; in a quorum, it does not queue a second time.
    pub fn token(mut self, token: Token) -> Self {
        self.options.token = Some(token);
        self
    }

    /// Calls back when the hold is lost, on the client's thread: the renewals of other holds wait for its
    /// return, so it must not block. To wait for it, see [`Guard::lost`](crate::Guard::lost).
    pub fn on_lost(mut self, callback: impl Fn(&Lost) + Send + Sync + 'static) -> Self {
        self.options.on_lost = Some(Arc::new(callback));
        self
    }

    /// Calls back with the position in the wait queue when it is known and when it changes, about twice a
    /// second.
    pub fn on_position(mut self, callback: impl Fn(Position) + Send + Sync + 'static) -> Self {
        self.options.on_position = Some(Arc::new(callback));
        self
    }

    /// Calls back once, with the report of each master, if so many are missing that nobody can acquire the
    /// lock, the retries of [`Retry`](crate::Retry) are used up, and [`Wait`] allows to keep retrying.
    pub fn on_outage(mut self, callback: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.options.on_outage = Some(Arc::new(callback));
        self
    }

    pub(crate) fn client(&self) -> &C {
        &self.client
    }

    /// The same lock and options by another client.
    pub(crate) fn on<D>(self, client: D) -> Acquire<D> {
        Acquire { client, resource: self.resource, options: self.options }
    }
}

impl Acquire {
    /// Acquires the lock.
    ///
    /// Cancel safe: if the future is dropped, whatever was granted is released and no waiter stays in a
    /// queue, on every master that can be reached.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        let (attempt, renewal) = self.checked().map_err(AcquireError::Option)?;
        if !self.options.reentrant {
            return Ok(Guard::new(attempt.hold(renewal).await?));
        }
        let Some(mut entry) = self.client.session.entry(&self.resource, attempt.deadline).await else {
            return Err(attempt.taken_by_ourselves());
        };
        if let Some(share) = entry.upgrade().filter(|share| share.0.state().loss.is_none()) {
            share.0.check_entry(attempt.asked.mode, attempt.fenced).map_err(AcquireError::Option)?;
            return Ok(Guard::new(share));
        }
        let share = attempt.hold(renewal).await?;
        *entry = Arc::downgrade(&share);
        Ok(Guard::new(share))
    }

    /// [`acquire`](Self::acquire) without waiting: `None` if somebody else holds the lock.
    pub async fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        untaken(self.wait(Wait::No).acquire().await)
    }

    pub(crate) fn new(client: Client, resource: Vec<u8>) -> Acquire {
        Acquire { client, resource, options: Options::default() }
    }

    /// The same options for another resource.
    pub(crate) fn of(&self, resource: Vec<u8>) -> Acquire {
        Acquire { client: self.client.clone(), resource, options: self.options.clone() }
    }
}

impl IntoFuture for Acquire {
    type Output = Result<Guard, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// [`acquire`](Acquire::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}

/// `None` if somebody else holds it.
fn untaken<T>(acquired: Result<T, AcquireError>) -> Result<Option<T>, AcquireError> {
    match acquired {
        Err(AcquireError::Taken { .. }) => Ok(None),
        acquired => acquired.map(Some),
    }
}
