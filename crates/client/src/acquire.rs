//! The builder of an acquisition.

pub(crate) mod adopt;
pub(crate) mod all;
mod driver;
mod durable;
mod release_delay;
pub(crate) mod session;

use std::marker::PhantomData;
use std::num::NonZeroU32;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dlock_protocol::{Delay, Label, LockRequest, Mode, OwnerId, Token};
use dlock_quorum::{AttemptOptions, Deadline, Plan};

use crate::acquire::driver::{Acquisition, Failed, OnOutage};
use crate::acquire::durable::Durable;
use crate::acquire::session::Session;
use crate::error::{AcquireError, Lost, Report};
use crate::hold::guard::{Guard, Unused};
use crate::hold::renewal::{OnLost, Renewal};
use crate::inspect::Position;
use crate::queue::OnPosition;
use crate::reading::printable;
use crate::service::Service;
use crate::wait::Wait;

/// The type parameter of an [`Acquire`] or [`AcquireAll`](crate::AcquireAll) that is awaited. Builders with
/// [`blocking::Client`](crate::blocking::Client) in its place block the thread instead.
#[derive(Debug, Clone, Copy)]
pub enum Async {}

/// Acquires a lock: see [`Client::lock`](crate::Client::lock). Set the options in any order, then await it,
/// or call [`acquire`](Self::acquire) or [`try_acquire`](Self::try_acquire).
#[must_use = "nothing is acquired before it is awaited"]
pub struct Acquire<C = Async> {
    service: Arc<Service>,
    session: Arc<Session>,
    caller: PhantomData<C>,
    resource: Vec<u8>,
    options: Options,
}

impl<C> Acquire<C> {
    /// Sets the lease, from 1 ms to the servers' `dlock.max-ttl` (a day by default). Default: 30 s, which is
    /// longer than most pauses of a machine.
    ///
    /// If the holder dies, the lock is free after the lease. A living holder renews the lease after each
    /// third.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// Sets how long to wait while another client holds the lock. Default: [`Wait::Forever`], like a mutex.
    ///
    /// Clients wait in the queue of one master, first come, first served. The wait also covers masters in
    /// grace, and masters that are down or silent: see [`Wait`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.options.wait = wait;
        self
    }

    /// Shares the lock with other shared holders, but with no exclusive one.
    pub fn shared(mut self) -> Self {
        self.options.mode = Ok(Mode::Shared);
        self
    }

    /// Allows at most `n` holders, 1 to 2147483647. Requires a single server: majorities cannot count
    /// permits.
    pub fn permits(mut self, n: u32) -> Self {
        let n = NonZeroU32::new(n).filter(|n| n.get() <= i32::MAX as u32);
        self.options.mode = n.map(Mode::Permits).ok_or("permits must be 1 to 2147483647");
        self
    }

    /// Requests a fencing token that is greater than all earlier ones of the resource. In a quorum, that
    /// takes one more round trip. On a single server, every hold has a fencing token.
    pub fn fenced(mut self) -> Self {
        self.options.fenced = true;
        self
    }

    /// Enters again if this client (or a clone of it) already holds the resource reentrantly: the new guard
    /// shares the hold, which ends with its last guard. The client counts the entries, so entering again
    /// sends no request. A client of [`Client::session`](crate::Client::session) enters only its own holds.
    pub fn reentrant(mut self) -> Self {
        self.options.reentrant = true;
        self
    }

    /// Ends the hold also when its connection closes. The hold gets a connection of its own. Requires a
    /// single server.
    pub fn ephemeral(mut self) -> Self {
        self.options.ephemeral = true;
        self
    }

    /// Delays the next grant by this much after a hold that ends by its lease or a closed connection.
    /// Meanwhile, writes of the dead holder that are still in flight can arrive. On a single server, a wait
    /// then takes one more round trip, as the server delays nothing after a grant that no client has claimed.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = delay;
        self
    }

    /// Sets the least time from the grant to the next one, 0 to the servers' `dlock.max-ttl`: if the hold is
    /// released earlier, the servers grant the lock to nobody for the rest of this time (`RELEASE .. DELAY`).
    /// It counts from when the client received the grant. For jobs that finish faster than the clocks of
    /// their machines differ: a second machine finds the lock taken. A hold that is lost, or ends by its
    /// lease, delays nothing.
    ///
    /// Requires dlock 0.1.0 on the servers. The client asks them before the acquisition, and fails with
    /// [`AcquireError::Option`] if one of them does not know the delay, or does not allow one this long. If a
    /// majority has not answered by then, the client asks again once the lock is granted: it acquires the
    /// lock only if a majority accepts the delay. Over a quorum, the delay holds if a majority confirms the
    /// release, which is when [`release`](crate::Guard::release) returns no error.
    pub fn at_least(mut self, time: Duration) -> Self {
        self.options.at_least = Some(time);
        self
    }

    /// Announces that the hold may be released by
    /// [`release_with_delay`](crate::Guard::release_with_delay) with at most this delay. The client asks the
    /// servers before the acquisition whether they know and allow it, as for [`at_least`](Self::at_least).
    pub fn release_delay(mut self, longest: Duration) -> Self {
        self.options.release_delay = Some(longest);
        self
    }

    /// Acquires only if each master of a majority reports within `timeout` that at least this number of its
    /// replicas have the grant (`WAIT`). With 0, a master reports whether its own append only file has the
    /// grant (`WAITAOF`, of Redis 7.2 and Valkey). Otherwise the lock is released again, and the error is
    /// [`AcquireError::NotDurable`]. The user needs `+wait` or `+waitaof`.
    ///
    /// A failover to one of these replicas then keeps the hold. The renewals do not wait for replicas.
    pub fn durable(mut self, replicas: u32, timeout: Duration) -> Self {
        self.options.durable = Some(Durable { replicas, timeout });
        self
    }

    /// Names the owner of the lock, 1 to 255 bytes: a job, a process, a thread. The servers then detect
    /// deadlocks: owners that wait for each other in a cycle, for locks or for places in a queue. A wait that
    /// would close a cycle fails with [`AcquireError::Deadlock`]. Without owners they detect none, because
    /// each acquisition has a token of its own. In a cluster, each server finds the cycles among its own
    /// locks: a cycle through two masters hangs, so use a hash tag, or a time limit.
    ///
    /// An owner must release nothing while it waits. Threads and tasks that run side by side need owners of
    /// their own: if one of them releases a lock while another waits, the servers may report a deadlock that
    /// does not exist. For this reason no owner is sent by default: a guard can move to another thread, and
    /// one task can acquire two locks side by side (`join!`).
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.options.owner = Some(owner.as_ref().to_vec());
        self
    }

    /// Sets whether other processes hold locks under the same [`owner`](Self::owner), too, such as a parent
    /// that waits for this process; default: false. Then a wait for a lock of the owner itself is a deadlock,
    /// although this client does not hold the lock. Once the wait has a position, such a deadlock is false.
    pub fn shares_owner(mut self, shares: bool) -> Self {
        self.options.owner_is_shared = shares;
        self
    }

    /// Sets a text for people (host, job), at most 255 bytes, which [`inspect`](crate::Client::inspect)
    /// shows.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// Sets whether the lease is renewed in the background after each third of the ttl; default: true. A
    /// third leaves room for two more tries before the hold is lost.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Declares the hold lost ([`Lost::Ended`]) this long after the acquisition, whatever is left of its
    /// lease, and renews it no longer; default: never. Without this limit, a program that hangs keeps its
    /// lock for ever.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.options.max_hold = longest;
        self
    }

    /// Sets how long before the end of its validity the hold is declared lost: the holder has this time to
    /// stop. At most half of the ttl; default: a tenth.
    pub fn notice(mut self, notice: Duration) -> Self {
        self.options.notice = Some(notice);
        self
    }

    /// Acquires with this token instead of a fresh one. The token must never have been used for this
    /// resource. A client repeats the release of a hold for up to a whole lease while a server does not
    /// confirm the release. A late release of an earlier hold of this token would end the new hold. In a
    /// quorum, a client with this option stays in the first queue that it joins. Without it, the client tries
    /// again with another token if that queue does not move.
    pub fn token(mut self, token: Token) -> Self {
        self.options.token = Some(token);
        self
    }

    /// Calls back on the client's thread when the hold is lost. Renewals of other holds wait until the
    /// callback returns, so it must not block. To wait for the loss, see [`Guard::lost`](crate::Guard::lost).
    pub fn on_lost(mut self, callback: impl Fn(&Lost) + Send + Sync + 'static) -> Self {
        self.options.on_lost = Some(Arc::new(callback));
        self
    }

    /// Calls back with the position in the wait queue when it is known and whenever it has changed. The
    /// client reads the position a few times a second.
    pub fn on_position(mut self, callback: impl Fn(Position) + Send + Sync + 'static) -> Self {
        self.options.on_position = Some(Arc::new(callback));
        self
    }

    /// Calls back once, with the state of each master, if too many masters are missing for any client to
    /// acquire the lock. The call comes after the last retry of [`Retry`](crate::Retry), and only if the
    /// client continues to wait as [`Wait`] allows.
    pub fn on_outage(mut self, callback: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.options.on_outage = Some(Arc::new(callback));
        self
    }

    pub(crate) fn service(&self) -> &Arc<Service> {
        &self.service
    }

    /// Returns the same lock and options for another kind of caller.
    pub(crate) fn for_caller<D>(self) -> Acquire<D> {
        let Acquire { service, session, resource, options, .. } = self;
        Acquire { service, session, caller: PhantomData, resource, options }
    }
}

impl Acquire {
    /// Acquires the lock.
    ///
    /// Cancel safe: if the future is dropped, every grant is released and no waiter stays in a queue, on
    /// every master that can be reached.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        let (service, resource) = (self.service.clone(), self.resource.clone());
        match self.acquire_with_tokens().await {
            Err(Failed { why, tokens }) => Err(service.name_holder(&resource, why, &tokens).await),
            Ok(guard) => Ok(guard),
        }
    }

    /// [`acquire`](Self::acquire) with an error that does not name the holder.
    pub(crate) async fn acquire_unnamed(self) -> Result<Guard, AcquireError> {
        self.acquire_with_tokens().await.map_err(|failed| failed.why)
    }

    async fn acquire_with_tokens(self) -> Result<Guard, Failed> {
        let (acquisition, renewal) = self.checked().map_err(AcquireError::Option)?;
        if !self.options.reentrant {
            return self.hold(&acquisition, renewal).await;
        }
        let deadline = acquisition.attempt_options.deadline;
        let Some(mut entry) = self.session.entry(&self.resource, deadline).await else {
            // Another task of this session is acquiring the lock.
            let (resource, report) = (printable(&self.resource), self.service.empty_report());
            return Err(AcquireError::Taken { resource, report, holder: None, closed: Duration::ZERO }.into());
        };
        if let Some(share) = entry.upgrade().filter(|share| share.0.state().loss.is_none()) {
            let entered = share.0.check_entry(acquisition.options.mode, self.options.fenced);
            return Ok(entered.map(|()| Guard::new(share)).map_err(AcquireError::Option)?);
        }
        let guard = self.hold(&acquisition, renewal).await?;
        *entry = guard.weak();
        Ok(guard)
    }

    /// [`acquire`](Self::acquire) without waiting: `None` if another client holds the lock.
    pub async fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        none_if_taken(self.wait(Wait::No).acquire_unnamed().await)
    }

    pub(crate) fn new(service: Arc<Service>, session: Arc<Session>, resource: Vec<u8>) -> Acquire {
        Acquire { service, session, caller: PhantomData, resource, options: Options::default() }
    }

    /// Returns the same options for another resource.
    pub(crate) fn for_resource(&self, resource: Vec<u8>) -> Acquire {
        let mut other = Acquire::new(self.service.clone(), self.session.clone(), resource);
        other.options = self.options.clone();
        other
    }

    /// Returns whether no other client can hold the lock at the same time.
    pub(crate) fn is_exclusive(&self) -> bool {
        matches!(self.options.mode, Ok(Mode::Exclusive))
    }

    /// Returns the end of a wait that begins now.
    pub(crate) fn deadline(&self) -> Deadline {
        self.options.wait.deadline()
    }

    /// Returns the same request for an ancestor of a path, which other paths share: a delay would close the
    /// ancestor for them, too.
    pub(crate) fn for_ancestor(mut self) -> Acquire {
        let shared = Options {
            mode: Ok(Mode::Shared),
            delay: Duration::ZERO,
            at_least: None,
            release_delay: None,
            ..self.options
        };
        self.options = shared;
        self
    }

    /// Checks every option; the error says which is out of range.
    fn checked(&self) -> Result<(Acquisition, Renewal), String> {
        let options = &self.options;
        let service = self.service.clone();
        let (lease, ttl) = service.lease_for(options.ttl)?;
        let mode = options.mode?;
        let single = service.is_single();
        if !single && matches!(mode, Mode::Permits(_)) {
            return Err("permits require a single server: majorities cannot count them".into());
        }
        if !single && options.ephemeral {
            return Err("an ephemeral hold requires a single server: it ends with one connection".into());
        }
        let label = Label::new(options.label.as_bytes())
            .ok_or_else(|| format!("a label must have at most {} bytes", Label::MAX_LEN))?;
        if options.notice.is_some_and(|notice| notice > lease.ttl() / 2) {
            return Err("the notice must be at most half of the ttl: renewals need time to be retried".into());
        }
        let delay = options.delay.as_millis().try_into().ok().and_then(Delay::from_millis);
        let delay = delay.ok_or("a delay must be at most 49 days")?;
        if options.at_least.max(options.release_delay).is_some_and(|time| time > LONGEST_DELAY) {
            return Err("at_least and the delay of a release must be at most 49 days".into());
        }
        let renewal = Renewal {
            renews: options.renew,
            max_hold: options.max_hold,
            notice: options.notice,
            on_lost: options.on_lost.clone(),
        };
        let owner = options.owner.as_ref().map(|owner| OwnerId::new(owner));
        let owner = owner.map(|owner| owner.ok_or("an owner must have 1 to 255 bytes")).transpose()?;
        let (token, ephemeral) = (options.token.clone(), options.ephemeral);
        let attempt_options = AttemptOptions {
            plan: Plan {
                quorum: service.quorum,
                lease,
                fenced: options.fenced,
                retries: service.retry.times,
            },
            first_pause: service.retry.pause,
            deadline: options.wait.deadline(),
            one_round: token.is_some(),
            adopts: false,
        };
        let acquisition = Acquisition {
            service,
            resource: self.resource.clone(),
            options: LockRequest { mode, ephemeral, delay, label, owner, ..LockRequest::new(token, ttl) },
            attempt_options,
            at_least: options.at_least,
            release_delay: options.release_delay.max(options.at_least),
            owner_may_hold: Arc::new(AtomicBool::new(options.owner_is_shared)),
            on_position: options.on_position.clone(),
            on_outage: options.on_outage.clone(),
        };
        Ok((acquisition, renewal))
    }

    /// Acquires the lock, and completes the check of the delay. Waits until the grant is durable if that was
    /// requested.
    async fn hold(&self, acquisition: &Acquisition, renewal: Renewal) -> Result<Guard, Failed> {
        let mut guard = Guard::new(acquisition.acquire_and_renew(renewal).await?);
        if let Some(delay) = acquisition.release_delay {
            let unused = Unused(vec![guard]);
            let service = &self.service;
            let confirmed = release_delay::confirm(service, &self.resource, delay);
            if let Err(why) = service.background.run_with_timers(confirmed).await {
                unused.discard().await;
                return Err(why.into());
            }
            guard = unused.into_guards().remove(0);
        }
        match self.options.durable {
            Some(durable) => Ok(durable.check(guard).await?),
            None => Ok(guard),
        }
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

/// Turns the error that another client holds the lock into `None`.
pub(crate) fn none_if_taken<T>(acquired: Result<T, AcquireError>) -> Result<Option<T>, AcquireError> {
    match acquired {
        Err(AcquireError::Taken { .. }) => Ok(None),
        acquired => acquired.map(Some),
    }
}

/// Longest delay that fits into a request.
const LONGEST_DELAY: Duration = Duration::from_secs(49 * 86_400);

/// The options, unchecked.
#[derive(Clone)]
struct Options {
    ttl: Duration,
    wait: Wait,
    mode: Result<Mode, &'static str>,
    fenced: bool,
    reentrant: bool,
    ephemeral: bool,
    delay: Duration,
    at_least: Option<Duration>,
    release_delay: Option<Duration>,
    owner_is_shared: bool,
    durable: Option<Durable>,
    label: String,
    owner: Option<Vec<u8>>,
    renew: bool,
    max_hold: Duration,
    notice: Option<Duration>,
    token: Option<Token>,
    on_lost: Option<OnLost>,
    on_position: Option<OnPosition>,
    on_outage: Option<OnOutage>,
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: Duration::from_secs(30),
            wait: Wait::Forever,
            mode: Ok(Mode::Exclusive),
            fenced: false,
            reentrant: false,
            ephemeral: false,
            delay: Duration::ZERO,
            at_least: None,
            release_delay: None,
            owner_is_shared: false,
            durable: None,
            label: String::new(),
            owner: None,
            renew: true,
            max_hold: Duration::MAX,
            notice: None,
            token: None,
            on_lost: None,
            on_position: None,
            on_outage: None,
        }
    }
}
