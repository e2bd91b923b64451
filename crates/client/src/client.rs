//! The client: what can be asked of the lock service.

use std::time::Duration;

use dlock_core::Token;

use crate::acquire::{Acquire, AcquireAll};
use crate::error::{BuildError, ExtendError, NoQuorum, ReleaseError};
use crate::inspect::{Inspected, Inspection, Waiting};
use crate::lease::Instant;
use crate::options::ClientBuilder;

/// A lock service: one server, or a quorum of independent ones. Cloned, it is the same client.
#[derive(Debug, Clone)]
pub struct Client {}

impl Client {
    /// A client is built by naming its servers.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) async fn connect(_builder: ClientBuilder) -> Result<Client, BuildError> {
        todo!()
    }

    /// The lock of `resource`, to be acquired: `client.lock("invoice:42").acquire().await`.
    pub fn lock(&self, _resource: impl AsRef<[u8]>) -> Acquire {
        todo!()
    }

    /// The locks of several resources, all or none of them. They are acquired one after the other in their sorted order, so
    /// that two who want some of the same never wait for each other.
    pub fn lock_all<I>(&self, _resources: I) -> AcquireAll
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        todo!()
    }

    /// The same servers over the same connections, for another owner of re-entrant locks: see
    /// [`Acquire::reentrant`](crate::Acquire::reentrant).
    pub fn session(&self) -> Client {
        todo!()
    }

    /// How many servers there are.
    pub fn members(&self) -> usize {
        todo!()
    }

    /// Ends the hold of `token`, whoever acquired it, with all its counts, and takes it out of the line.
    pub async fn release(&self, _resource: impl AsRef<[u8]>, _token: &Token) -> Result<(), ReleaseError> {
        todo!()
    }

    /// Sets the lease of `token`'s hold to `ttl` from now, longer or shorter. Answers until when it is valid.
    pub async fn extend(
        &self,
        _resource: impl AsRef<[u8]>,
        _token: &Token,
        _ttl: Duration,
    ) -> Result<Instant, ExtendError> {
        todo!()
    }

    /// The resource as each master sees it; `None` in an answer: nobody holds it or waits for it there.
    pub async fn inspect(&self, _resource: impl AsRef<[u8]>) -> Vec<Inspected<Option<Inspection>>> {
        todo!()
    }

    /// Who waits in line for the resource at each master, first first, at most `most` of them.
    pub async fn waiters(&self, _resource: impl AsRef<[u8]>, _most: u32) -> Vec<Inspected<Vec<Waiting>>> {
        todo!()
    }

    /// For operators: ends every hold of the resource on every master that can be reached, whatever its token. Answers how
    /// many each of them ended.
    pub async fn break_holds(&self, _resource: impl AsRef<[u8]>) -> Vec<Inspected<u64>> {
        todo!()
    }

    /// Returns when the resource is free: a majority says that nobody holds it, nobody waits and no delay runs. It may be
    /// taken again when this returns; nothing is reserved. Looks again after random pauses of up to half a second.
    pub async fn wait_until_free(&self, _resource: impl AsRef<[u8]>) -> Result<(), NoQuorum> {
        todo!()
    }

    /// Returns when all that goes on in the background is done: releases of dropped guards, clean-up after what was
    /// not won. A process that ends without it may leave holds behind, which their leases end.
    pub async fn settle(&self) {
        todo!()
    }
}
