//! What is asked for: one resource or several, and how.

pub(crate) mod all;
mod attempt;
mod beside;
pub(crate) mod contended;
pub(crate) mod line;
pub(crate) mod patience;
pub(crate) mod round;
pub(crate) mod session;

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::{Delay, Label, LockRequest, Mode, Token};

use crate::acquire::attempt::{Attempt, Outage};
use crate::acquire::line::OnPosition;
use crate::acquire::patience::Patience;
use crate::client::Client;
use crate::error::{AcquireError, Report};
use crate::guard::hold::Hold;
use crate::guard::renewal::{Keeping, keep};
use crate::guard::{Guard, Share};
use crate::inspect::Position;

/// For how long somebody else's hold is waited for, and masters that are missing: down, silent, loading, in grace.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one round, with the few tries that [`Retry`](crate::Retry) gives masters that are missing.
    No,
    /// At most so long, plus what one master may take for one answer.
    For(Duration),
    /// Until it is granted, or the future is dropped. Only where no majority has answered since it was asked for, the tries
    /// of [`Retry`](crate::Retry) are all: those addresses may be wrong.
    Forever,
}

/// A lock to be acquired: see [`Client::lock`](crate::Client::lock). The options come in any order.
#[must_use = "nothing is asked for before acquire()"]
pub struct Acquire {
    client: Client,
    resource: Vec<u8>,
    options: Options,
}

/// How it is asked for.
#[derive(Clone)]
struct Options {
    ttl: Duration,
    wait: Wait,
    mode: Asked,
    fenced: bool,
    reentrant: bool,
    ephemeral: bool,
    delay: Duration,
    label: String,
    renew: bool,
    max_hold: Option<Duration>,
    notice: Option<Duration>,
    token: Option<Token>,
    told: Option<OnPosition>,
    outage: Option<Outage>,
}

/// The mode before its number is checked.
#[derive(Clone, Copy)]
enum Asked {
    Exclusive,
    Shared,
    Permits(u32),
}

impl Acquire {
    /// The lease, 1 ms to the servers' `dlock.max-ttl` (a day unless they say otherwise); default 30 s. A holder that dies
    /// loses the lock after it; a holder that lives renews it at every third of it.
    ///
    /// 30 s is longer than the backoff that real machines make, and short enough to wait for.
    pub fn ttl(mut self, ttl: Duration) -> Self {
        self.options.ttl = ttl;
        self
    }

    /// For how long somebody else's hold is waited for; default [`Wait::Forever`], as a mutex.
    ///
    /// Who waits stands in line at one master, in the order of asking. Masters in grace, and those that are down or silent,
    /// are waited for as well: see [`Wait`].
    pub fn wait(mut self, wait: Wait) -> Self {
        self.options.wait = wait;
        self
    }

    /// Any number of sharers, no exclusive holder beside them.
    pub fn shared(mut self) -> Self {
        self.options.mode = Asked::Shared;
        self
    }

    /// At most `n` holders, 1 to 2147483647. On a single server only: permits cannot be counted by majorities.
    pub fn permits(mut self, n: u32) -> Self {
        self.options.mode = Asked::Permits(n);
        self
    }

    /// With a fence that is greater than that of every earlier hold of the resource, over the whole quorum: one round
    /// trip more. On a single server every hold has one.
    pub fn fenced(mut self) -> Self {
        self.options.fenced = true;
        self
    }

    /// Enter again where this client (or a clone of it) holds the resource by a re-entrant acquisition already: the guard
    /// is of the same hold, and the hold ends with its last guard. Counted in the client, so it costs no request; the
    /// servers know of one hold. Who is the owner? The client: [`Client::session`](crate::Client::session) makes another.
    pub fn reentrant(mut self) -> Self {
        self.options.reentrant = true;
        self
    }

    /// The hold also ends when its connection closes. On a single server only. A connection of its own carries it.
    pub fn ephemeral(mut self) -> Self {
        self.options.ephemeral = true;
        self
    }

    /// If the hold ends by its lease or a lost connection, nobody is granted the lock for so long, so that what the dead
    /// holder still had in flight can land.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.options.delay = delay;
        self
    }

    /// Free text for people (host, job), at most 255 bytes, shown by [`inspect`](crate::Client::inspect).
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = label.into();
        self
    }

    /// Whether the lease is renewed by itself at every third of the ttl; default true. A third leaves two more tries
    /// before the hold is lost.
    pub fn renew(mut self, renew: bool) -> Self {
        self.options.renew = renew;
        self
    }

    /// Renews no longer than until so long after the acquisition; default: no limit. A holder that hangs for ever would
    /// otherwise hold for ever.
    pub fn max_hold(mut self, longest: Duration) -> Self {
        self.options.max_hold = Some(longest);
        self
    }

    /// How long before its validity ends the hold is declared lost; default a tenth of the ttl. It is the time that is left
    /// to the holder to stop. At most half of the ttl.
    pub fn notice(mut self, notice: Duration) -> Self {
        self.options.notice = Some(notice);
        self
    }

    /// Acquire for this token instead of a fresh one. It must never have been used for this resource before: a release of
    /// its former life that is still under way would end the new one. There is one round for it, and in a quorum no
    /// second place in line after a lost one.
    pub fn token(mut self, token: Token) -> Self {
        self.options.token = Some(token);
        self
    }

    /// Called with the place in line when it is known, and when it changes; about twice a second.
    pub fn on_position(mut self, told: impl Fn(Position) + Send + Sync + 'static) -> Self {
        self.options.told = Some(Arc::new(told));
        self
    }

    /// Called once, with what each master said, when so many of them are missing that nobody could get it for as long as
    /// [`Retry`](crate::Retry) tries, and it is tried on, for [`Wait`] allows it.
    pub fn on_outage(mut self, told: impl Fn(&Report) + Send + Sync + 'static) -> Self {
        self.options.outage = Some(Arc::new(told));
        self
    }

    /// Acquires it.
    ///
    /// Dropping the future is safe at any moment: what was granted meanwhile is released, and no waiter stays in line, on
    /// every master that can be reached.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        let (attempt, keeping) = self.checked().map_err(AcquireError::Option)?;
        if !self.options.reentrant {
            return Ok(Guard::new(hold(attempt, keeping).await?));
        }
        let Some(mut entry) = self.client.session.entry(&self.resource, attempt.patience).await else {
            return Err(attempt.taken_by_ourselves());
        };
        if let Some(share) = entry.upgrade().filter(|share| share.0.state().loss.is_none()) {
            share.0.check_entry(attempt.asked.mode, attempt.fenced).map_err(AcquireError::Option)?;
            return Ok(Guard::new(share));
        }
        let share = hold(attempt, keeping).await?;
        *entry = Arc::downgrade(&share);
        Ok(Guard::new(share))
    }

    /// [`acquire`](Self::acquire) without waiting: None if somebody else has it.
    pub async fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        match self.wait(Wait::No).acquire().await {
            Ok(guard) => Ok(Some(guard)),
            Err(AcquireError::Taken { .. }) => Ok(None),
            Err(why) => Err(why),
        }
    }

    pub(crate) fn new(client: Client, resource: Vec<u8>) -> Acquire {
        let options = Options {
            ttl: Duration::from_secs(30),
            wait: Wait::Forever,
            mode: Asked::Exclusive,
            fenced: false,
            reentrant: false,
            ephemeral: false,
            delay: Duration::ZERO,
            label: String::new(),
            renew: true,
            max_hold: None,
            notice: None,
            token: None,
            told: None,
            outage: None,
        };
        Acquire { client, resource, options }
    }

    /// The same for another resource.
    pub(crate) fn of(&self, resource: Vec<u8>) -> Acquire {
        Acquire { client: self.client.clone(), resource, options: self.options.clone() }
    }

    pub(crate) fn wait_limit(&self) -> Wait {
        self.options.wait
    }

    /// Everything in its range; or what is not.
    fn checked(&self) -> Result<(Attempt, Keeping), String> {
        let options = &self.options;
        let service = self.client.service.clone();
        let (lease, ttl) = service.lease_for(options.ttl)?;
        let mode = match options.mode {
            Asked::Exclusive => Mode::Exclusive,
            Asked::Shared => Mode::Shared,
            Asked::Permits(n) => {
                let n = NonZeroU32::new(n).filter(|n| n.get() <= i32::MAX as u32);
                Mode::Permits(n.ok_or("there are 1 to 2147483647 permits")?)
            }
        };
        let single = service.nodes.len() == 1;
        if !single && matches!(mode, Mode::Permits(_)) {
            return Err("permits need a single server: majorities cannot count them".into());
        }
        if !single && options.ephemeral {
            return Err("an ephemeral hold needs a single server: it ends with one connection".into());
        }
        let label = Label::new(options.label.as_bytes())
            .ok_or_else(|| format!("a label has at most {} bytes", Label::MAX_LEN))?;
        if options.notice.is_some_and(|notice| notice > lease.ttl() / 2) {
            return Err("the notice is at most half of the ttl: a renewal has to have time to fail".into());
        }
        let delay = options.delay.as_millis().try_into().ok().and_then(Delay::from_millis);
        let delay = delay.ok_or("a delay lasts at most 49 days")?;
        let renewed_for = options.renew.then_some(options.max_hold.unwrap_or(Duration::MAX));
        let keeping = Keeping { renewed_for, notice: options.notice };
        let patience = Patience::of(options.wait);
        let (token, ephemeral) = (options.token.clone(), options.ephemeral);
        let asked = LockRequest { mode, ephemeral, delay, label, ..LockRequest::new(token, ttl) };
        let attempt = Attempt {
            service,
            resource: self.resource.clone(),
            asked,
            lease,
            fenced: options.fenced,
            patience,
            told: options.told.clone(),
            outage: options.outage.clone(),
        };
        Ok((attempt, keeping))
    }
}

/// Acquires, and sees to it that the hold is kept.
async fn hold(attempt: Attempt, keeping: Keeping) -> Result<Arc<Share>, AcquireError> {
    let (service, lease) = (attempt.service.clone(), attempt.lease);
    let acquired = attempt.run().await?;
    let hold = Hold::new(service.clone(), lease, acquired);
    service.attend(keep(hold.clone(), keeping));
    Ok(Arc::new(Share(hold)))
}
