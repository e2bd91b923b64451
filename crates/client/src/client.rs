//! The client: what can be asked of the lock service.

use futures_util::StreamExt;
use redis::{Cmd, Value};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::Token;

use crate::acquire::all::AcquireAll;
use crate::acquire::patience::Patience;
use crate::acquire::session::Session;
use crate::acquire::{Acquire, Wait};
use crate::backoff::Backoff;
use crate::clock::now;
use crate::error::{BuildError, ExtendError, NoQuorum, NodeState, ReleaseError, Report};
use crate::guard::extend::extend;
use crate::guard::release::Releases;
use crate::inspect::{Answer, Inspected, Inspection, Waiting};
use crate::lease::Instant;
use crate::options::ClientBuilder;
use crate::quorum::Extension;
use crate::reading;
use crate::request;
use crate::service::Service;

/// The longest pause between two looks at whether a resource is free.
const LOOK: Duration = Duration::from_millis(500);

/// A lock service: one server, or a quorum of independent ones. Cloned, it is the same client.
#[derive(Clone)]
pub struct Client {
    pub(crate) service: Arc<Service>,
    pub(crate) session: Arc<Session>,
}

impl Client {
    /// A client is built by naming its servers.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    pub(crate) async fn connect(builder: ClientBuilder) -> Result<Client, BuildError> {
        Ok(Client { service: Service::connect(builder).await?, session: Arc::default() })
    }

    /// The lock of `resource`, to be acquired: `client.lock("invoice:42").acquire().await`.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> Acquire {
        Acquire::new(self.clone(), resource.as_ref().to_vec())
    }

    /// The locks of several resources, all or none of them. They are acquired one after the other in their sorted order, so
    /// that two who want some of the same never wait for each other.
    pub fn lock_all<I>(&self, resources: I) -> AcquireAll
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let mut resources: Vec<Vec<u8>> =
            resources.into_iter().map(|resource| resource.as_ref().to_vec()).collect();
        resources.sort();
        resources.dedup();
        AcquireAll { resources, each: self.lock("") }
    }

    /// The same servers over the same connections, for another owner of re-entrant locks: see
    /// [`Acquire::reentrant`](crate::Acquire::reentrant).
    pub fn session(&self) -> Client {
        Client { service: self.service.clone(), session: Arc::default() }
    }

    /// How many servers there are.
    pub fn members(&self) -> usize {
        self.service.nodes.len()
    }

    /// Ends the hold of `token`, whoever acquired it, with all its counts, and takes it out of the line.
    pub async fn release(&self, resource: impl AsRef<[u8]>, token: &Token) -> Result<(), ReleaseError> {
        let channels = self.service.channels();
        // Who acquired it is not known here, so everybody is asked.
        channels.iter().for_each(|channel| channel.assume_held());
        Releases::new(&self.service, &channels, request::release(resource.as_ref(), token)).majority().await
    }

    /// Sets the lease of `token`'s hold to `ttl` from now, longer or shorter. Answers until when it is valid.
    pub async fn extend(
        &self,
        resource: impl AsRef<[u8]>,
        token: &Token,
        ttl: Duration,
    ) -> Result<Instant, ExtendError> {
        let (lease, counted) = self.service.lease_for(ttl).map_err(ExtendError::Option)?;
        // Until when it is valid its holder knows: here it is enough that the masters hold it.
        let held_until = Instant::since_boot(Duration::MAX);
        let begun = Extension::new(self.service.quorum, lease, held_until, now());
        let command = request::extend(resource.as_ref(), token, counted);
        let channels = self.service.channels();
        let (extended, mut rest) =
            extend(&self.service, &channels, command, lease, Duration::MAX, begun).await;
        // Whoever extends again must not be overtaken by this.
        while rest.next().await.is_some() {}
        extended
    }

    /// The resource as each master sees it; `None` in an answer: nobody holds it or waits for it there.
    pub async fn inspect(&self, resource: impl AsRef<[u8]>) -> Vec<Inspected<Option<Inspection>>> {
        self.ask_all(request::inspect(resource.as_ref()), reading::inspection).await
    }

    /// Who waits in line for the resource at each master, first first, at most `most` of them.
    pub async fn waiters(&self, resource: impl AsRef<[u8]>, most: u32) -> Vec<Inspected<Vec<Waiting>>> {
        self.ask_all(request::waiters(resource.as_ref(), most), reading::queue).await
    }

    /// For operators: ends every hold of the resource on every master that can be reached, whatever its token. Answers how
    /// many each of them ended.
    pub async fn break_holds(&self, resource: impl AsRef<[u8]>) -> Vec<Inspected<u64>> {
        self.ask_all(request::break_holds(resource.as_ref()), reading::number).await
    }

    /// The members that were reached and cannot take part, with what they lack: the module, a permission, another server
    /// than one that is a member already. A majority goes on without them. Known once they have been asked for something.
    pub fn unusable(&self) -> Report {
        self.service.unusable()
    }

    /// Returns true when the resource is free: a majority says that nobody holds it, nobody waits and no delay runs; false
    /// if it is not when the wait is over. It may be taken again when this returns; nothing is reserved. Looks again after
    /// random backoff of up to half a second. Masters that are missing are waited for as [`Wait`] says.
    pub async fn wait_until_free(&self, resource: impl AsRef<[u8]>, wait: Wait) -> Result<bool, NoQuorum> {
        let majority = self.service.quorum.majority();
        let patience = Patience::of(wait);
        let mut backoff = Backoff::new(LOOK, LOOK);
        let (mut in_vain, mut quorum_seen) = (0, false);
        loop {
            let seen = self.inspect(resource.as_ref()).await;
            let answered = seen.iter().filter(|seen| seen.answer.found().is_some()).count();
            let free = seen.iter().filter(|seen| matches!(seen.answer, Answer::Found(None))).count();
            if free >= majority {
                return Ok(true);
            }
            quorum_seen |= answered >= majority;
            in_vain = if answered < majority { in_vain + 1 } else { 0 };
            let given_up = in_vain > self.service.retry.times && !quorum_seen && patience.end().is_none();
            if patience.is_over() && answered >= majority {
                return Ok(false);
            }
            if patience.is_over() || given_up {
                let states = seen.into_iter().map(|seen| match seen.answer {
                    Answer::Found(_) => NodeState::Agreed,
                    Answer::Unanswered(why) => why,
                });
                return Err(NoQuorum(self.service.report_of(states)));
            }
            let pause = backoff.next();
            tokio::time::sleep(patience.allows(pause).unwrap_or_default()).await;
        }
    }

    /// Returns when all that goes on in the background is done: releases of dropped guards, clean-up after what was
    /// not won. A process that ends without it may leave holds behind, which their leases end.
    pub async fn flush(&self) {
        self.service.flush().await;
    }

    async fn ask_all<T>(&self, question: Cmd, read: impl Fn(Value) -> Option<T>) -> Vec<Inspected<T>> {
        let replies = self.service.ask_all(question).await;
        let answers = replies.into_iter().map(|reply| match reply.found(&read) {
            Ok(answer) => Answer::Found(answer),
            Err(state) => Answer::Unanswered(state),
        });
        let servers = self.service.nodes.iter().map(|node| node.name.clone());
        servers.zip(answers).map(|(server, answer)| Inspected { server, answer }).collect()
    }
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.service.nodes.iter().map(|node| &*node.name).collect();
        f.debug_struct("Client").field("servers", &servers).finish_non_exhaustive()
    }
}
