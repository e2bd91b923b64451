//! The client for programs without a runtime. Each operation blocks its thread until it is done. The
//! background work, such as renewals, runs on the client's own thread.
//!
//! ```no_run
//! use dlock_client::{Client, Wait};
//! use std::time::Duration;
//!
//! # fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder().server("redis://10.0.0.1").build_blocking()?;
//! let guard = client.lock("invoice:42").wait(Wait::For(Duration::from_secs(10))).acquire()?;
//! // ... while guard.loss() is None
//! guard.release()?; // dropping the guard releases it too, but reports no error
//! # Ok(())
//! # }
//! ```
//!
//! In an async context, such as a task, every operation panics, because it would block the runtime. Use the
//! async [`Client`](crate::Client) there.

use std::fmt;
use std::ops::Deref;
use std::time::Duration;

use dlock_quorum::Instant;
use tokio::runtime::Handle;

use crate::acquire::all::AcquireAll;
use crate::acquire::{Acquire, Async};
use crate::error::{AcquireError, BuildError, ExtendError, Lost, ReleaseError};
use crate::options::ClientBuilder;
use crate::wait::Wait;
use dlock_protocol::Token;

/// A client for threads: see [`ClientBuilder::build_blocking`]. Clones are the same client.
#[derive(Debug, Clone)]
pub struct Client(crate::Client);

impl ClientBuilder {
    /// [`build`](Self::build) for programs without a runtime: see [`blocking`](crate::blocking).
    ///
    /// # Panics
    ///
    /// In an async context.
    pub fn build_blocking(self) -> Result<Client, BuildError> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_time().build();
        let runtime = runtime.map_err(|why| BuildError::Thread(why.to_string()))?;
        runtime.block_on(self.build()).map(Client)
    }
}

impl Client {
    /// Returns the builder of a lock: `client.lock("invoice:42").acquire()`.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> Acquire<Client> {
        self.0.lock(resource).for_caller()
    }

    /// Returns the builder of several locks, all or none: see [`Client::lock_all`](crate::Client::lock_all).
    pub fn lock_all<I>(&self, resources: I) -> AcquireAll<Client>
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        self.0.lock_all(resources).for_caller()
    }

    /// Returns the builder of the locks of a path: see
    /// [`Client::lock_path`](crate::Client::lock_path).
    pub fn lock_path(&self, path: impl AsRef<str>) -> AcquireAll<Client> {
        self.0.lock_path(path).for_caller()
    }

    /// Takes over a hold: see [`Client::adopt`](crate::Client::adopt).
    pub fn adopt(
        &self,
        resource: impl AsRef<[u8]>,
        token: &Token,
        ttl: Duration,
    ) -> Result<Guard, ExtendError> {
        self.block_on(self.0.adopt(resource, token, ttl)).map(Guard::new)
    }

    /// Returns the async client, for the operations that only it has:
    /// `client.block_on(client.client().inspect("invoice:42"))`.
    pub fn client(&self) -> &crate::Client {
        &self.0
    }

    /// Blocks until an operation of the async client is done.
    ///
    /// # Panics
    ///
    /// In an async context.
    pub fn block_on<F: Future>(&self, operation: F) -> F::Output {
        self.0.service.block_on(operation)
    }

    /// Waits for the releases and the clean-up in the background: see
    /// [`Client::flush`](crate::Client::flush).
    pub fn close(self) {
        self.block_on(self.0.flush());
    }
}

impl Acquire<Client> {
    /// Acquires the lock.
    pub fn acquire(self) -> Result<Guard, AcquireError> {
        let service = self.service().clone();
        service.block_on(self.for_caller::<Async>().acquire()).map(Guard::new)
    }

    /// [`acquire`](Self::acquire) without waiting. Returns `None` if another client holds the lock.
    pub fn try_acquire(self) -> Result<Option<Guard>, AcquireError> {
        let service = self.service().clone();
        Ok(service.block_on(self.for_caller::<Async>().try_acquire())?.map(Guard::new))
    }
}

impl AcquireAll<Client> {
    /// Acquires all locks, or releases the acquired ones and returns the first error.
    pub fn acquire(self) -> Result<Vec<Guard>, AcquireError> {
        let service = self.each.service().clone();
        let guards = service.block_on(self.for_caller::<Async>().acquire())?;
        Ok(guards.into_iter().map(Guard::new).collect())
    }

    /// [`acquire`](Self::acquire) without waiting. Returns `None` if another client holds one of the locks.
    pub fn try_acquire(self) -> Result<Option<Vec<Guard>>, AcquireError> {
        let service = self.each.service().clone();
        let guards = service.block_on(self.for_caller::<Async>().try_acquire())?;
        Ok(guards.map(|guards| guards.into_iter().map(Guard::new).collect()))
    }
}

/// Guards a hold like the async [`Guard`](crate::Guard), and has its methods that do not wait. Dropping it
/// releases the lock, and waits for the masters' answers, but not longer than the
/// [`node_timeout`](ClientBuilder::node_timeout). Within a tokio runtime, in a task or in `spawn_blocking`,
/// the drop does not wait.
#[must_use = "a dropped guard releases its lock"]
pub struct Guard(Option<crate::Guard>);

impl Guard {
    fn new(guard: crate::Guard) -> Guard {
        Guard(Some(guard))
    }

    /// Waits until the hold is lost and returns the reason: see [`Guard::lost`](crate::Guard::lost). For a
    /// callback, see [`Acquire::on_lost`].
    pub fn lost(&self) -> Lost {
        self.runtime().block_on(self.deref().lost())
    }

    /// Sets the lease to `ttl` from now: see [`Guard::extend`](crate::Guard::extend).
    pub fn extend(&self, ttl: Duration) -> Result<Instant, ExtendError> {
        self.runtime().block_on(self.deref().extend(ttl))
    }

    /// Turns an exclusive hold into a shared one: see [`Guard::downgrade`](crate::Guard::downgrade).
    pub fn downgrade(&mut self) -> Result<(), ExtendError> {
        self.runtime().block_on(self.inner().downgrade())
    }

    /// Turns a shared hold into an exclusive one: see [`Guard::upgrade`](crate::Guard::upgrade).
    pub fn upgrade(&mut self, wait: Wait) -> Result<(), AcquireError> {
        self.runtime().block_on(self.inner().upgrade(wait))
    }

    /// Releases the lock: see [`Guard::release`](crate::Guard::release).
    pub fn release(mut self) -> Result<(), ReleaseError> {
        // While the async guard exists, a reentrant acquisition by another thread shares its hold. So the
        // async `release` consumes the guard before it sends RELEASE.
        self.0.take().map_or(Ok(()), |guard| guard.runtime().block_on(guard.release()))
    }

    /// Releases the lock, and keeps it closed: see
    /// [`Guard::release_with_delay`](crate::Guard::release_with_delay).
    pub fn release_with_delay(mut self, delay: Duration) -> Result<(), ReleaseError> {
        let release = |guard: crate::Guard| guard.runtime().block_on(guard.release_with_delay(delay));
        self.0.take().map_or(Ok(()), release)
    }

    fn inner(&mut self) -> &mut crate::Guard {
        self.0.as_mut().expect(NOT_RELEASED)
    }
}

impl Deref for Guard {
    type Target = crate::Guard;

    fn deref(&self) -> &crate::Guard {
        self.0.as_ref().expect(NOT_RELEASED)
    }
}

/// The async guard is taken out only when the blocking one is released or dropped.
const NOT_RELEASED: &str = "the guard was not released";

impl Drop for Guard {
    fn drop(&mut self) {
        let Some(guard) = self.0.take() else { return };
        // In an async context, blocking would panic. At the end of a thread that has the guard in a
        // thread-local variable, tokio's own thread-local context may be gone already. In both cases the drop
        // of the async guard releases the lock in the background.
        if Handle::try_current().is_err_and(|why| why.is_missing_context()) {
            let _ = guard.runtime().block_on(guard.release());
        }
    }
}

impl fmt::Debug for Guard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.deref().fmt(f)
    }
}
