//! The client: the operations of the lock service, and those for operators.

use futures_util::future::join_all;
use redis::{Cmd, Value};
use std::collections::{HashMap, HashSet};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::Token;
use dlock_quorum::{Extension, Instant};

use crate::acquire::Acquire;
use crate::acquire::adopt::adopt;
use crate::acquire::all::{AcquireAll, path_resources};
use crate::acquire::session::Session;
use crate::clock::now;
use crate::error::{BuildError, ExtendError, NoQuorum, NodeReport, NodeState, ReleaseError, Report};
use crate::hold::extend::extend;
use crate::hold::guard::Guard;
use crate::hold::release::Releases;
use crate::inspect::{
    Answer, Clock, ClusterState, Inspected, Inspection, Listed, Logged, Needed, Sentinel, Waiting,
};
use crate::options::ClientBuilder;
use crate::reading;
use crate::request::{self, MAX_HOLDERS, Release};
use crate::service::Service;
use crate::topology::{Channel, Home, Node, Site};
use crate::wait::Backoff;
use crate::wait::Wait;

/// Longest pause between two checks whether a resource is free.
const LONGEST_PAUSE: Duration = Duration::from_millis(500);

/// Time for which an unconfirmed release is repeated if the lease is unknown.
const UNKNOWN_LEASE: Duration = Duration::from_secs(60);

/// A lock service: one server, or a quorum of independent ones. Clones are the same client.
#[derive(Clone)]
pub struct Client {
    pub(crate) service: Arc<Service>,
    pub(crate) session: Arc<Session>,
}

impl ClientBuilder {
    /// Builds the client. Connects to all servers in parallel, and returns once each connection is open or
    /// has failed. After the [`node_timeout`](Self::node_timeout), a majority of open connections is enough.
    /// An attempt to connect fails after four times this timeout.
    ///
    /// A server that cannot be reached is not an error: it is tried again whenever it is needed. A server
    /// that cannot take part (no module, no permission, a cluster node) is an error only if there is no
    /// majority without it; otherwise, [`Client::unusable`] reports it. Of a cluster, one node that can take
    /// part is enough: only the locks in the slots of the others fail. Two addresses of the same server are
    /// an error.
    ///
    /// Starts a thread for the connections and the background work of the client (renewals, releases). The
    /// thread continues while your runtime is blocked or has ended. It ends with the last clone of the client
    /// and the last guard. The futures of the client still need a tokio runtime with timers.
    pub async fn build(self) -> Result<Client, BuildError> {
        Ok(Client { service: Service::connect(self).await?, session: Arc::default() })
    }

    /// Like [`build`](Self::build), for a client that only inspects servers. A server that cannot take part,
    /// or is the same as another one, is not an error here. Each question to such a server is answered with
    /// the reason ([`Answer::Unanswered`]).
    pub async fn observe(self) -> Result<Client, BuildError> {
        let service = Arc::new(Service::new(self)?);
        join_all(service.sites.iter().map(|site| site.connect())).await;
        Ok(Client { service, session: Arc::default() })
    }
}

impl Client {
    /// Returns a builder without servers.
    pub fn builder() -> ClientBuilder {
        ClientBuilder::default()
    }

    /// Returns the builder of a lock: `client.lock("invoice:42").acquire().await`.
    pub fn lock(&self, resource: impl AsRef<[u8]>) -> Acquire {
        Acquire::new(self.service.clone(), self.session.clone(), resource.as_ref().to_vec())
    }

    /// Returns the builder of several locks, all or none. They are acquired one after the other in sorted
    /// order, so clients with overlapping sets never deadlock.
    pub fn lock_all<I>(&self, resources: I) -> AcquireAll
    where
        I: IntoIterator<Item: AsRef<[u8]>>,
    {
        let mut resources: Vec<Vec<u8>> =
            resources.into_iter().map(|resource| resource.as_ref().to_vec()).collect();
        resources.sort();
        resources.dedup();
        AcquireAll { resources: Ok(resources), is_path: false, each: self.lock("") }
    }

    /// Returns the builder of the locks of a path such as `a/b/c`: the ancestors `a` and `a/b` shared, the
    /// path itself exclusive, or shared by [`shared`](Acquire::shared). So a path excludes all that are above
    /// or below it, and no others. `at_least`, `delay` and the delay of a release are only for the path
    /// itself. The resources are `{a}`, `{a}/b` and `{a}/b/c`, as in the clients of the other languages.
    pub fn lock_path(&self, path: impl AsRef<str>) -> AcquireAll {
        AcquireAll { resources: path_resources(path.as_ref()), is_path: true, each: self.lock("") }
    }

    /// Returns a client over the same servers and connections. The returned client is another owner of
    /// reentrant locks: see [`Acquire::reentrant`](crate::Acquire::reentrant).
    pub fn session(&self) -> Client {
        Client { service: self.service.clone(), session: Arc::default() }
    }

    /// Returns the number of members, each with one vote: a cluster is one.
    pub fn members(&self) -> usize {
        self.service.sites.len()
    }

    /// Returns how many of the answers of [`list`](Self::list), [`log`](Self::log), [`walk`](Self::walk) and
    /// [`ask`](Self::ask) are needed, which are those of single servers.
    pub fn needed(&self) -> Needed {
        match self.service.sites[0] {
            Site::Cluster(_) => Needed::Every,
            Site::Server(_) => Needed::Majority,
        }
    }

    /// For operators: returns the state of a cluster; the default one outside a cluster. Reads the map of the
    /// cluster again, so that the later calls ask its present masters, and asks each master for its own
    /// slots: a master that was reset may lack those that the others take for its own. The error says why
    /// no node has shown a map.
    pub async fn cluster(&self) -> Result<ClusterState, NodeState> {
        match &self.service.sites[0] {
            Site::Cluster(cluster) => cluster.state().await,
            Site::Server(_) => Ok(ClusterState::default()),
        }
    }

    /// Ends the hold of `token`, with any hold count and from any client, and removes the token from the wait
    /// queue.
    pub async fn release(&self, resource: impl AsRef<[u8]>, token: &Token) -> Result<(), ReleaseError> {
        let channels = self.service.channels(resource.as_ref());
        // It is unknown which masters have the hold, so every master gets a RELEASE.
        channels.iter().for_each(|channel| channel.assume_held());
        let (resource, token) = (resource.as_ref().to_vec(), token.clone());
        let release = Release::new(resource, token);
        Releases::new(&self.service, &channels, release, UNKNOWN_LEASE).wait_for_majority().await
    }

    /// Sets the lease of the hold of `token` to `ttl` from now, longer or shorter. Returns the end of its
    /// validity.
    ///
    /// If a connection breaks before the answer, its server may still carry out the extension, even after a
    /// later, longer one. Only a guard keeps track of extensions without an answer. So to change between
    /// leases of different lengths, [`adopt`](Self::adopt) the hold.
    pub async fn extend(
        &self,
        resource: impl AsRef<[u8]>,
        token: &Token,
        ttl: Duration,
    ) -> Result<Instant, ExtendError> {
        let (lease, wire_ttl) = self.service.lease_for(ttl).map_err(ExtendError::Option)?;
        // Only the holder knows the current end of validity. Here the masters alone decide whether the token
        // holds the lock.
        let held_until = Instant::since_boot(Duration::MAX);
        let (extension, sends) = Extension::new(self.service.quorum, lease, held_until, now());
        let command = request::extend(resource.as_ref(), token, wire_ttl);
        let channels = self.service.channels(resource.as_ref());
        let (extended, pending) =
            extend(&self.service, &channels, command, None, lease, Duration::MAX, (extension, sends)).await;
        // Waits for the remaining answers. Otherwise a master could execute this EXTEND after the EXTEND of a
        // later call, and so replace the later lease.
        pending.await;
        extended
    }

    /// Takes over the hold of `token`, which another process, [`forget`](crate::Guard::forget) or `dlock
    /// acquire` left: sets its lease to `ttl` on a majority, then renews the lease until the guard releases
    /// the hold. An adopted hold has a fence, also in a quorum. If a master of a quorum forgets the hold, the
    /// client requests it there again, but without its label, owner and delay.
    ///
    /// Returns [`ExtendError::Lost`] if no majority has the hold. After an error, the hold still belongs to
    /// its previous owner, and ends with its lease.
    pub async fn adopt(
        &self,
        resource: impl AsRef<[u8]>,
        token: &Token,
        ttl: Duration,
    ) -> Result<Guard, ExtendError> {
        adopt(&self.service, resource.as_ref(), token, ttl).await
    }

    /// Returns the resource as each master sees it. `None` in an answer means that the resource has no
    /// holder, no waiter and no delay there. A replica may lack locks, so its answer does not count.
    pub async fn inspect(&self, resource: impl AsRef<[u8]>) -> Vec<Inspected<Option<Inspection>>> {
        let question = &request::inspect(resource.as_ref(), MAX_HOLDERS);
        let ask =
            |channel: Arc<Channel>| async move { channel.query_locks(question, reading::inspection).await };
        self.ask_all(resource.as_ref(), ask).await
    }

    /// Returns the waiters in the queue of each master, the head first, at most `limit` of them.
    pub async fn waiters(&self, resource: impl AsRef<[u8]>, limit: u32) -> Vec<Inspected<Vec<Waiting>>> {
        let question = &request::waiters(resource.as_ref(), limit);
        self.ask_each(self.homes(resource.as_ref()), |channel| async move {
            channel.separate().await?;
            channel.query_locks(question, reading::queue).await
        })
        .await
    }

    /// For operators: returns the locks of each master, of a cluster those of its slots, or only those that
    /// match a pattern (in the syntax of the command KEYS). This takes several requests. A lock that exists
    /// during all of them is returned once. For servers with many locks, see [`walk`](Self::walk).
    pub async fn list(&self, pattern: Option<&[u8]>) -> Vec<Inspected<Vec<Listed>>> {
        self.walk_all(pattern, false).await
    }

    /// For operators: returns the locks of each master that have waiters, as [`list`](Self::list) does.
    pub async fn list_waited(&self) -> Vec<Inspected<Vec<Listed>>> {
        self.walk_all(None, true).await
    }

    /// For operators: returns a walk over the locks of each master, or only over those that match a pattern,
    /// or that have waiters. Sends nothing yet.
    pub fn walk(&self, pattern: Option<&[u8]>, only_waited_for: bool) -> Vec<Walk> {
        let walk = |node: &Arc<Node>| Walk::new(node.clone(), pattern, only_waited_for);
        self.service.nodes().iter().map(walk).collect()
    }

    async fn walk_all(&self, pattern: Option<&[u8]>, only_waited_for: bool) -> Vec<Inspected<Vec<Listed>>> {
        self.ask_each(self.masters(), |channel| async move {
            let (mut walk, mut found) = (Walk::new(channel.node(), pattern, only_waited_for), HashMap::new());
            while let Some(locks) = walk.next().await? {
                found.extend(locks.into_iter().map(|lock| (lock.resource.clone(), lock)));
            }
            Ok(found.into_values().collect())
        })
        .await
    }

    /// For operators: returns the recent incidents of each master, newest first, at most `limit` entries.
    /// With a resource, only those of that resource.
    pub async fn log(&self, limit: u32, resource: Option<&[u8]>) -> Vec<Inspected<Vec<Logged>>> {
        self.ask_separately(self.masters(), request::log(limit, resource), reading::log).await
    }

    /// For operators: sends a command to every master and returns the texts of its answer, in their order and
    /// without their nesting. Meant for commands that only read (INFO, CONFIG GET, TIME), because a master
    /// whose answer is missing may have executed the command.
    pub async fn ask(&self, command: &[impl AsRef<[u8]>]) -> Vec<Inspected<Vec<String>>> {
        self.ask_separately(self.masters(), request::cmd(command), reading::texts).await
    }

    /// For operators: asks the replicas of the masters, and the masters of a cluster without slots, as
    /// [`ask`](Self::ask) asks the masters. The masters, the other nodes of a cluster and the sentinels say
    /// which ones there are: one that is down is unknown outside a cluster and without sentinels. All have
    /// the login of the masters.
    pub async fn ask_replicas(&self, command: &[impl AsRef<[u8]>]) -> Vec<Inspected<Vec<String>>> {
        let replicas = self.service.replicas().await.into_iter().map(Home::Node).collect();
        self.ask_separately(replicas, request::cmd(command), reading::texts).await
    }

    /// For operators: asks each sentinel, those of the address and those that they know, what it says about
    /// the master. None for an address without sentinels. Each gets at most the
    /// [`node_timeout`](ClientBuilder::node_timeout) to answer.
    pub async fn sentinels(&self) -> Vec<Inspected<Sentinel>> {
        self.service.sentinels().await
    }

    /// For operators: returns the clock of each master (`TIME`).
    pub async fn clocks(&self) -> Vec<Inspected<Clock>> {
        self.ask_each(self.masters(), |channel| async move {
            // The connection is open before the clock is read, so that opening it does not count.
            channel.query(&redis::cmd("PING"), reading::text).await?;
            let asked = now();
            let unix_us = channel.query(&redis::cmd("TIME"), reading::clock).await?;
            Ok(Clock { unix_us, asked, answered: now() })
        })
        .await
    }

    /// For operators: removes the waiters of the token from the wait queue of every master that can be
    /// reached, and ends no hold. The wait ends as if its time had passed. Returns the number of waiters that
    /// each master removed.
    pub async fn cancel(&self, resource: impl AsRef<[u8]>, token: &Token) -> Vec<Inspected<u64>> {
        let command = &request::cancel(resource.as_ref(), token);
        let ask = |channel: Arc<Channel>| async move { channel.query(command, reading::number).await };
        self.ask_all(resource.as_ref(), ask).await
    }

    /// For operators: ends every hold of the resource, of any token, on every master that can be reached.
    /// Returns the number of holds that each master ended.
    pub async fn break_holds(&self, resource: impl AsRef<[u8]>) -> Vec<Inspected<u64>> {
        let command = &request::break_holds(resource.as_ref());
        let ask = |channel: Arc<Channel>| async move { channel.query(command, reading::number).await };
        let broken = self.ask_all(resource.as_ref(), ask).await;
        // A master reports a changed lock only to other clients, so this client checks its own hold here.
        self.service.watched.notify(resource.as_ref());
        broken
    }

    /// Returns the members, or the nodes of a cluster, that were reached but cannot take part, with the
    /// reason: no module, no permission, a cluster node, the same server as another member. A majority works
    /// without them; in a cluster, the other nodes do. One is reported only after a request to it.
    pub fn unusable(&self) -> Report {
        self.service.unusable()
    }

    /// Returns the name of this client's connections in the `lib-name` field of CLIENT LIST. It is
    /// `dlock-client` for a single server. For a quorum of 3 members it is, for example,
    /// `dlock-client(q3-1a2b3c4d)`: the part after `q3-` is the first 8 hex digits of the SHA-1 of the
    /// members' run ids, sorted and joined by commas. Until the run id of every member is known, the name is
    /// `dlock-client(q3)`.
    ///
    /// Clients that name different members have different names. Their majorities need not intersect, so two
    /// of them could hold the same lock at the same time. Servers before Redis 7.2 and Valkey 7.2 show no
    /// name.
    pub fn library_name(&self) -> String {
        self.service.member_list.library_name()
    }

    /// Returns true once the resource is free, that is once a majority has no holder, no waiter and no delay.
    /// Returns false if the wait times out. Nothing is reserved: another client may take the lock before this
    /// returns. Checks after random pauses of up to half a second, and waits for missing masters as [`Wait`]
    /// says.
    pub async fn wait_until_free(&self, resource: impl AsRef<[u8]>, wait: Wait) -> Result<bool, NoQuorum> {
        let majority = self.service.quorum.majority();
        let deadline = wait.deadline();
        let mut backoff = Backoff::new(LONGEST_PAUSE, LONGEST_PAUSE);
        // The number of checks in a row without a majority, and whether a majority has ever answered.
        let (mut outages, mut quorum_seen) = (0, false);
        loop {
            let seen = self.inspect(resource.as_ref()).await;
            let answered = seen.iter().filter(|seen| seen.answer.found().is_some()).count();
            let free = seen.iter().filter(|seen| matches!(seen.answer, Answer::Found(None))).count();
            if free >= majority {
                return Ok(true);
            }
            quorum_seen |= answered >= majority;
            outages = if answered < majority { outages + 1 } else { 0 };
            let given_up = outages > self.service.retry.times && !quorum_seen && deadline.instant().is_none();
            if deadline.has_passed(now()) && answered >= majority {
                return Ok(false);
            }
            if deadline.has_passed(now()) || given_up {
                return Err(no_quorum(seen));
            }
            let pause = backoff.next();
            tokio::time::sleep(deadline.limit_pause(pause, now()).unwrap_or_default()).await;
        }
    }

    /// Waits for the background work to finish: the releases of dropped guards, the clean-up of failed
    /// acquisitions, and the rest of successful ones, which need only a majority of the masters. It does not
    /// wait for masters that stay down: until the lease ends, the client continues to send them the release.
    /// A process that exits without a flush may leave holds behind, which last until their leases end.
    pub async fn flush(&self) {
        self.service.flush().await;
    }

    /// [`flush`](Self::flush) at the end of a program.
    pub async fn close(self) {
        self.flush().await;
    }

    /// Asks each member about one resource over the shared connections, of a cluster the node that has it.
    /// The answers must have a bounded length.
    async fn ask_all<T, A>(&self, resource: &[u8], ask: impl Fn(Arc<Channel>) -> A) -> Vec<Inspected<T>>
    where
        A: Future<Output = Result<T, NodeState>>,
    {
        let mut seen = self.ask_each(self.homes(resource), ask).await;
        let states = seen.iter_mut().map(|seen| match &mut seen.answer {
            Answer::Unanswered(state) => Some(state),
            Answer::Found(_) => None,
        });
        self.service.add_value_types(resource, states).await;
        seen
    }

    /// Asks over separate connections, because the length of the answers is unbounded.
    async fn ask_separately<T>(
        &self,
        homes: Vec<Home>,
        question: Cmd,
        read: impl Fn(Value) -> Option<T>,
    ) -> Vec<Inspected<T>> {
        let (question, read) = (&question, &read);
        self.ask_each(homes, |channel| async move {
            channel.separate().await?;
            channel.query(question, read).await
        })
        .await
    }

    /// Returns where each member is asked about one resource: of a cluster, at the node that has it.
    fn homes(&self, resource: &[u8]) -> Vec<Home> {
        self.service.sites.iter().map(|site| site.home(resource)).collect()
    }

    /// Returns all masters, of a cluster each of its own.
    fn masters(&self) -> Vec<Home> {
        self.service.nodes().into_iter().map(Home::Node).collect()
    }

    /// Asks all of them at the same time, each over a channel of its own.
    async fn ask_each<T, A>(&self, homes: Vec<Home>, ask: impl Fn(Arc<Channel>) -> A) -> Vec<Inspected<T>>
    where
        A: Future<Output = Result<T, NodeState>>,
    {
        let calls = homes.into_iter().map(|home| {
            let channel = Arc::new(Channel::new(home));
            let answer = ask(channel.clone());
            async move {
                let answer = Answer::of(answer.await);
                Inspected::new(channel.asked().server_name(), answer)
            }
        });
        join_all(calls).await
    }
}

/// The error of a question that too few servers have answered.
pub(crate) fn no_quorum<T>(seen: Vec<Inspected<T>>) -> NoQuorum {
    let reports = seen.into_iter().map(|Inspected { server, answer }| {
        let state = match answer {
            Answer::Found(_) => NodeState::Agreed,
            Answer::Unanswered(why) => why,
        };
        NodeReport { server, state }
    });
    NoQuorum(Report(reports.collect()))
}

impl fmt::Debug for Client {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let servers: Vec<&str> = self.service.sites.iter().map(|site| &**site.name()).collect();
        f.debug_struct("Client").field("servers", &servers).finish_non_exhaustive()
    }
}

/// Largest number of answers to LIST, with up to 250 locks each. A server with more locks than that needs
/// over 50 GB for them.
const MAX_ANSWERS: usize = 1_000_000;

/// A walk over the locks of one master, a few at a time: see [`Client::walk`]. A lock that exists during the
/// whole walk is returned at least once, and more than once only if it changes meanwhile.
pub struct Walk {
    node: Arc<Node>,
    pattern: Option<Vec<u8>>,
    only_waited_for: bool,
    /// A separate connection: other clients choose the names of the locks, so an answer may be too long, and
    /// then this client closes the connection.
    channel: Option<Channel>,
    /// The cursor of the next request. `None` after the last one.
    cursor: Option<u64>,
    cursors: Cursors,
}

impl Walk {
    fn new(node: Arc<Node>, pattern: Option<&[u8]>, only_waited_for: bool) -> Walk {
        let (pattern, cursors) = (pattern.map(<[u8]>::to_vec), Cursors::default());
        Walk { node, pattern, only_waited_for, channel: None, cursor: Some(0), cursors }
    }

    /// Returns the address of the master, without user and password.
    pub fn server(&self) -> &Arc<str> {
        &self.node.name
    }

    /// Returns the next locks, by one request. If no answer comes in time, repeats it once, over another
    /// connection. The locks may be none although others follow. `None` means that the walk has ended.
    pub async fn next(&mut self) -> Result<Option<Vec<Listed>>, NodeState> {
        let mut page = self.page().await;
        if page == Err(NodeState::Slow) {
            self.channel = None;
            page = self.page().await;
        }
        page
    }

    async fn page(&mut self) -> Result<Option<Vec<Listed>>, NodeState> {
        let Some(cursor) = self.cursor else { return Ok(None) };
        let channel = match &mut self.channel {
            Some(channel) => channel,
            empty => {
                let channel = Channel::new(Home::Node(self.node.clone()));
                channel.separate().await?;
                empty.insert(channel)
            }
        };
        let question = request::list(cursor, self.pattern.as_deref(), self.only_waited_for);
        let (next, locks) = channel.query_locks(&question, reading::listing).await?;
        self.cursor = (next != 0).then_some(next);
        if next != 0 && !self.cursors.allow(next) {
            return Err(NodeState::Failed("its walk over the locks (DLOCK.LIST) does not end".into()));
        }
        Ok(Some(locks))
    }
}

impl fmt::Debug for Walk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Walk").field("server", &self.node.name).field("cursor", &self.cursor).finish()
    }
}

/// The cursors that a server has returned.
#[derive(Debug, Default)]
struct Cursors(HashSet<u64>);

impl Cursors {
    /// Returns true if the next question may use this cursor: the server has not returned it before, and has
    /// returned fewer than [`MAX_ANSWERS`].
    fn allow(&mut self, cursor: u64) -> bool {
        self.0.insert(cursor) && self.0.len() < MAX_ANSWERS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_repeated_cursor_and_an_endless_walk_are_detected() {
        let mut same = Cursors::default();
        assert!(same.allow(4) && same.allow(6));
        assert!(!same.allow(4));
        let mut cursors = Cursors::default();
        assert!((1..).any(|cursor| !cursors.allow(cursor)));
    }
}
