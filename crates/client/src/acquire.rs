//! What is asked for: one resource or several, and how.

use std::time::Duration;

use dlock_core::Token;

use crate::error::AcquireError;
use crate::guard::{Guard, Guards};
use crate::inspect::Place;

/// For how long somebody else's hold is waited for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Wait {
    /// Not at all: one round.
    No,
    /// At most so long.
    For(Duration),
    /// Until it is granted, or the future is dropped.
    Forever,
}

/// A lock to be acquired: see [`Client::lock`](crate::Client::lock). The options come in any order.
#[must_use = "nothing is asked for before acquire()"]
pub struct Acquire {}

impl Acquire {
    /// The lease, 1 ms to the servers' `dlock.max-ttl` (a day unless they say otherwise); default 30 s. A holder that dies
    /// loses the lock after it; a holder that lives renews it at every third of it.
    ///
    /// 30 s is longer than the pauses that real machines make, and short enough to wait for.
    pub fn ttl(self, _ttl: Duration) -> Self {
        todo!()
    }

    /// For how long somebody else's hold is waited for; default [`Wait::Forever`], as a mutex.
    ///
    /// Who waits stands in line at one master, in the order of asking. Masters in grace are waited for as well; masters
    /// that are down only as [`Retry`](crate::Retry) says.
    pub fn wait(self, _wait: Wait) -> Self {
        todo!()
    }

    /// Any number of sharers, no exclusive holder beside them.
    pub fn shared(self) -> Self {
        todo!()
    }

    /// At most `n` holders, 1 to 2147483647. On a single server only: permits cannot be counted by majorities.
    pub fn permits(self, _n: u32) -> Self {
        todo!()
    }

    /// With a fence that is greater than that of every earlier hold of the resource, over the whole quorum: one round
    /// trip more. On a single server every hold has one.
    pub fn fenced(self) -> Self {
        todo!()
    }

    /// Enter again where this client (or a clone of it) holds the resource by a re-entrant acquisition already: the guard
    /// is of the same hold, and the hold ends with its last guard. Counted in the client, so it costs no request; the
    /// servers know of one hold. Who is the owner? The client: [`Client::session`](crate::Client::session) makes another.
    pub fn reentrant(self) -> Self {
        todo!()
    }

    /// The hold also ends when its connection closes. On a single server only. A connection of its own carries it.
    pub fn ephemeral(self) -> Self {
        todo!()
    }

    /// If the hold ends by its lease or a lost connection, nobody is granted the lock for so long, so that what the dead
    /// holder still had in flight can land.
    pub fn delay(self, _delay: Duration) -> Self {
        todo!()
    }

    /// Free text for people (host, job), at most 255 bytes, shown by [`inspect`](crate::Client::inspect).
    pub fn label(self, _label: impl Into<String>) -> Self {
        todo!()
    }

    /// Whether the lease is renewed by itself at every third of the ttl; default true. A third leaves two more tries
    /// before the hold is lost.
    pub fn renew(self, _renew: bool) -> Self {
        todo!()
    }

    /// Renews no longer than until so long after the acquisition; default: no limit. A holder that hangs for ever would
    /// otherwise hold for ever.
    pub fn max_hold(self, _longest: Duration) -> Self {
        todo!()
    }

    /// How long before its validity ends the hold is declared lost; default a tenth of the ttl. It is the time that is left
    /// to the holder to stop. At most half of the ttl.
    pub fn notice(self, _notice: Duration) -> Self {
        todo!()
    }

    /// Acquire for this token instead of a fresh one. It must never have been used for this resource before: a release of
    /// its former life that is still under way would end the new one. There is one round for it, and in a quorum no
    /// second place in line after a lost one.
    pub fn token(self, _token: Token) -> Self {
        todo!()
    }

    /// Called with the place in line when it is known, and when it changes; about twice a second.
    pub fn on_place(self, _told: impl Fn(Place) + Send + Sync + 'static) -> Self {
        todo!()
    }

    /// Acquires it.
    ///
    /// Dropping the future is safe at any moment: what was granted meanwhile is released, and no waiter stays in line, on
    /// every master that can be reached.
    pub async fn acquire(self) -> Result<Guard, AcquireError> {
        todo!()
    }

    /// [`acquire`](Self::acquire) without waiting: None if somebody else has it.
    pub async fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        todo!()
    }
}

/// Several locks to be acquired, all or none: see [`Client::lock_all`](crate::Client::lock_all).
#[must_use = "nothing is asked for before acquire()"]
pub struct AcquireAll {}

impl AcquireAll {
    /// Sets the options that hold for each of them: `.each(|lock| lock.ttl(..).shared())`. The wait is for all together.
    pub fn each(self, _options: impl FnOnce(Acquire) -> Acquire) -> Self {
        todo!()
    }

    /// Acquires all, or releases what it got.
    pub async fn acquire(self) -> Result<Guards, AcquireError> {
        todo!()
    }
}
