//! The state that all clones of a client share: the masters, and the background work.

use dlock_protocol::{Token, Ttl};
use dlock_quorum::{Contention, FaultKind, Holder, Holders, Lease, Quorum, Vote};
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use smallvec::SmallVec;
use std::collections::HashMap;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;
use tokio_util::task::TaskTracker;

use crate::background::Background;
use crate::clock::{now, sleep_until};
use crate::error::{AcquireError, BuildError, NodeReport, NodeState, Report};
use crate::inspect::{Answer, Inspected, Inspection, Sentinel};
use crate::options::{ClientBuilder, Retry};
use crate::sync::Mutex;
use crate::topology::{Channel, MemberList, Node, Settings, Site, Watched, replicas_of};
use crate::transport::{ConnectError, SiteAddress, wrong_type};
use crate::{holder, reading, request};

#[derive(Debug)]
pub(crate) struct Service {
    /// By member.
    pub(crate) sites: Vec<Site>,
    /// Time limit of one answer.
    pub(crate) limit: Duration,
    pub(crate) quorum: Quorum,
    pub(crate) retry: Retry,
    pub(crate) contended: Contended,
    drift: Option<Duration>,
    pub(crate) background: Arc<Background>,
    /// The held resources, each with the hold to check after a message of a server.
    pub(crate) watched: Arc<Watched>,
    pub(crate) member_list: Arc<MemberList>,
    settings: Arc<Settings>,
    /// The work that `flush` waits for.
    pub(crate) cleanup: TaskTracker,
}

/// Largest number of holders to read from each master.
const MAX_HOLDERS_READ: u32 = 100;

/// The channels of one hold, by member.
pub(crate) type Channels = SmallVec<[Arc<Channel>; 5]>;

impl Service {
    pub(crate) async fn connect(options: ClientBuilder) -> Result<Arc<Service>, BuildError> {
        let service = Service::new(options)?;
        service.first_connections().await?;
        Ok(Arc::new(service))
    }

    /// Makes the service without opening a connection.
    pub(crate) fn new(options: ClientBuilder) -> Result<Service, BuildError> {
        let addresses: Vec<SiteAddress> = options
            .servers
            .iter()
            .enumerate()
            .map(|(index, server)| SiteAddress::parse(index + 1, server, &options))
            .collect::<Result<_, _>>()?;
        let alone = addresses.iter().zip(1..).find_map(|(address, at)| Some((at, address.stands_alone()?)));
        if let Some((position, what)) = alone.filter(|_| addresses.len() > 1) {
            let why = format!(
                "{what} is a lock service of its own, and no member of a quorum: write only this address, with its other \
                 nodes as node=host:port after a ?"
            );
            return Err(BuildError::Address { position, why });
        }
        let members = u8::try_from(addresses.len()).map_err(|_| BuildError::TooManyServers)?;
        let quorum = Quorum::new(members).ok_or(BuildError::NoServers)?;
        let limit = options.node_timeout;
        if limit < Duration::from_millis(1) || limit > Duration::from_secs(86_400) {
            let why = format!("the node timeout must be 1 ms to a day, not {limit:?}");
            return Err(BuildError::Option(why));
        }
        let member_list = MemberList::new(quorum, addresses.iter().map(|address| address.name().clone()));
        let background = Background::start().map_err(|why| BuildError::Thread(why.to_string()))?;
        let watched = Arc::<Watched>::default();
        let settings = Settings { limit, background: background.clone(), watched: watched.clone() };
        let settings = Arc::new(settings);
        let sites = quorum.members().zip(addresses);
        let sites =
            sites.map(|(member, address)| Site::new(member, address, &member_list, &settings)).collect();
        let cleanup = TaskTracker::new();
        // `flush` returns only if the tracker is closed. A closed tracker still accepts tasks.
        cleanup.close();
        let (retry, drift) = (options.retry, options.drift);
        let contended = Contended::default();
        Ok(Service {
            sites,
            limit,
            quorum,
            retry,
            contended,
            drift,
            background,
            watched,
            member_list,
            settings,
            cleanup,
        })
    }

    /// Opens the first connections. Waits until each is open or has failed, but after the time limit of one
    /// answer only until a majority is open. The others may connect later. A master that is down is not an
    /// error, because it may come back. A master that cannot take part is an error only if no majority
    /// remains without it, or if it is the same server as another one.
    async fn first_connections(&self) -> Result<(), BuildError> {
        let limit_end = now() + self.limit;
        let opening = self.sites.iter().map(|site| async move { (site, site.connect().await) });
        let mut opening: FuturesUnordered<_> = opening.collect();
        let mut connected = 0;
        loop {
            let next = tokio::select! {
                biased;
                next = opening.next() => next,
                () = sleep_until(limit_end), if connected >= self.quorum.majority() => None,
            };
            match next {
                None => return Ok(()),
                Some((_, Ok(()))) => connected += 1,
                Some((site, Err(ConnectError::SameAs(other)))) => {
                    return Err(BuildError::SameServer(other, site.name().clone()));
                }
                Some((_, Err(ConnectError::Failure(_)))) => {
                    let unusable = self.unusable();
                    if !self.quorum.has_majority_without(unusable.0.len()) {
                        return Err(BuildError::Unusable(unusable));
                    }
                }
            }
        }
    }

    /// Returns the masters that were reached but cannot take part.
    pub(crate) fn unusable(&self) -> Report {
        let defects = self.nodes().into_iter().filter_map(|node| {
            let state = node.connect_error().filter(|state| matches!(state, NodeState::Failed(_)))?;
            Some(NodeReport { server: node.name.clone(), state })
        });
        Report(defects.collect())
    }

    /// Reads the holders of the resource at each master, and whether a delay keeps it closed there. The
    /// holders are unknown if there are too many to read.
    pub(crate) async fn holders(&self, resource: &[u8]) -> Holders {
        let question = &request::inspect(resource, MAX_HOLDERS_READ);
        let calls = self.sites.iter().map(|site| async move {
            let seen = site.channel(resource).query(question, reading::inspection).await;
            let Inspection { holders, delay_ms, .. } = seen.ok()?.unwrap_or_default();
            let holder =
                |seen: holder::Holder| Holder { token: seen.token, age: Duration::from_millis(seen.held_ms) };
            let is_complete = holders.len() < MAX_HOLDERS_READ as usize;
            Some((is_complete.then(|| holders.into_iter().map(holder).collect()), delay_ms > 0))
        });
        let seen = join_all(calls).await;
        Holders {
            closed: seen.iter().flatten().filter(|(_, is_closed)| *is_closed).count(),
            by_member: seen.into_iter().map(|seen| seen?.0).collect(),
        }
    }

    /// Adds the holder to the error of a failed acquisition, if another client holds the resource, and the
    /// time for which it is closed. `own` has tokens of the acquisition, which is no holder: its releases may
    /// be under way. Also asks the masters for which the acquisition did not wait: only a
    /// majority surely has the fence of a hold.
    pub(crate) async fn name_holder(
        &self,
        resource: &[u8],
        mut why: AcquireError,
        own: &[Token],
    ) -> AcquireError {
        let own: &Vec<String> = &own.iter().map(|token| reading::printable(token.as_bytes())).collect();
        let (report, holder, closed) = match &mut why {
            AcquireError::Taken { report, holder, closed, .. } => (report, holder, Some(closed)),
            AcquireError::Deadlock { report, holder, .. } => (report, holder, None),
            _ => return why,
        };
        let question = &request::inspect(resource, MAX_HOLDERS_READ);
        let failed = |node: &NodeReport| {
            matches!(node.state, NodeState::Down(_) | NodeState::Slow | NodeState::Failed(_))
        };
        let calls = self.sites.iter().zip(&report.0).map(|(site, node)| async move {
            let mut answer = match failed(node) {
                true => Err(NodeState::Unasked),
                false => site.channel(resource).query_locks(question, reading::inspection).await,
            };
            if let Ok(Some(lock)) = &mut answer {
                lock.holders.retain(|holder| !own.contains(&holder.token));
            }
            Inspected::new(node.server.clone(), Answer::of(answer))
        });
        let seen = join_all(calls).await;
        *holder = holder::Holder::of(&seen).map(Box::new);
        if let Some(closed) = closed {
            *closed = Inspection::closed_for(&seen);
        }
        why
    }

    /// For each master that answered WRONGTYPE, reads the type of the value under the key, and adds the type
    /// to the master's state. A state remains as it is if TYPE fails, for example because the ACL forbids it.
    /// `states` has one item for each master. Items that are `None` are skipped.
    pub(crate) async fn add_value_types<'s>(
        &self,
        resource: &[u8],
        states: impl Iterator<Item = Option<&'s mut NodeState>>,
    ) {
        let question = &request::type_of(resource);
        let calls = self.sites.iter().zip(states).map(|(site, state)| async move {
            let Some(NodeState::Failed(why)) = state else { return };
            if why.kind == FaultKind::WrongType
                && let Ok(key_type) = site.channel(resource).query(question, reading::text).await
            {
                *why = FaultKind::WrongType.with(wrong_type(Some(&key_type)));
            }
        });
        join_all(calls).await;
    }

    /// Returns the channels of a hold of the resource, or of a question about it.
    pub(crate) fn channels(&self, resource: &[u8]) -> Channels {
        self.sites.iter().map(|site| Arc::new(site.channel(resource))).collect()
    }

    /// Returns the masters of all members: several for a cluster.
    pub(crate) fn nodes(&self) -> Vec<Arc<Node>> {
        self.sites.iter().flat_map(Site::nodes).collect()
    }

    /// Returns the replicas of all masters.
    pub(crate) async fn replicas(&self) -> Vec<Arc<Node>> {
        join_all(self.sites.iter().map(|site| replicas_of(site, &self.settings))).await.concat()
    }

    /// Asks the sentinels what they say. None without sentinels.
    pub(crate) async fn sentinels(&self) -> Vec<Inspected<Sentinel>> {
        let nodes = self.nodes();
        join_all(nodes.iter().filter_map(|node| node.survey())).await.concat()
    }

    /// Returns true if one member decides alone. Permits, ephemeral holds and upgrades require this.
    pub(crate) fn is_single(&self) -> bool {
        self.sites.len() == 1
    }

    /// Rounds `ttl` down to whole ms. Returns the lease of this length, and the [`Ttl`] of the requests for
    /// it. The error says why there is no such lease.
    pub(crate) fn lease_for(&self, ttl: Duration) -> Result<(Lease, Ttl), String> {
        let Some(wire_ttl) = u64::try_from(ttl.as_millis()).ok().and_then(Ttl::from_millis) else {
            return Err(format!("a ttl must be 1 ms to 49 days, not {ttl:?}"));
        };
        let ttl = Duration::from_millis(wire_ttl.millis());
        let lease = match self.drift {
            Some(drift) => Lease::with_drift(ttl, drift),
            None => Lease::new(ttl),
        };
        let lease = lease
            .ok_or_else(|| format!("a ttl of {ttl:?} must be longer than the allowance for clock drift"));
        lease.map(|lease| (lease, wire_ttl))
    }

    /// Polls a task once, so that it sends its first request, and spawns the rest. `flush` does not wait for
    /// the task.
    pub(crate) fn poll_then_spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        let _runtime = self.background.runtime.enter();
        let mut task = Box::pin(task);
        if task.as_mut().now_or_never().is_none() {
            self.spawn(task);
        }
    }

    /// Spawns a task that `flush` waits for. It runs to its end even if the handle is dropped.
    pub(crate) fn spawn_cleanup<T: Send + 'static>(
        &self,
        task: impl Future<Output = T> + Send + 'static,
    ) -> JoinHandle<T> {
        self.cleanup.spawn_on(task, &self.background.runtime)
    }

    /// Spawns a task that `flush` does not wait for.
    pub(crate) fn spawn(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.background.runtime.spawn(task);
    }

    /// Blocks the thread until the operation is done.
    ///
    /// # Panics
    ///
    /// In an async context.
    pub(crate) fn block_on<F: Future>(&self, operation: F) -> F::Output {
        self.background.runtime.block_on(operation)
    }

    pub(crate) async fn flush(&self) {
        self.cleanup.wait().await;
    }

    /// Makes the report of these votes, with the address of the node that was asked. `None` means that the
    /// answer was not needed.
    pub(crate) fn report<'a, G: 'a>(
        &self,
        channels: &Channels,
        votes: impl IntoIterator<Item = Option<&'a Vote<G>>>,
    ) -> Report {
        let report = |(channel, vote): (&Arc<Channel>, Option<&Vote<G>>)| {
            let state = match vote {
                None => channel.unneeded_state(),
                Some(Vote::Unknown) => channel.no_answer_state(),
                Some(vote) => NodeState::from(vote),
            };
            NodeReport { server: channel.node().server_name(), state }
        };
        Report(channels.iter().zip(votes).map(report).collect())
    }

    /// Makes a report that shows each master as unasked.
    pub(crate) fn empty_report(&self) -> Report {
        let report = |site: &Site| NodeReport { server: site.name().clone(), state: NodeState::Unasked };
        Report(self.sites.iter().map(report).collect())
    }

    /// Makes the report of these states, with the address of the node that was asked.
    pub(crate) fn report_of(
        &self,
        channels: &Channels,
        states: impl IntoIterator<Item = NodeState>,
    ) -> Report {
        let names = channels.iter().map(|channel| channel.node().server_name());
        Report(names.zip(states).map(|(server, state)| NodeReport { server, state }).collect())
    }
}

/// The client's records of contention, by resource: whether the lock was found taken a short while ago, and
/// in which queue to wait for it.
#[derive(Debug, Default)]
pub(crate) struct Contended(Mutex<HashMap<Vec<u8>, Contention>>);

impl Contended {
    pub(crate) fn get(&self, resource: &[u8]) -> Contention {
        self.0.lock().get(resource).copied().unwrap_or_default()
    }

    /// Lets `change` read and change the contention of the resource.
    pub(crate) fn update<T>(&self, resource: &[u8], change: impl FnOnce(&mut Contention) -> T) -> T {
        let mut all = self.0.lock();
        let before = all.get(resource).copied().unwrap_or_default();
        let mut after = before;
        let outcome = change(&mut after);
        if after != before {
            // Before the map grows, expired entries are removed.
            if all.len() == all.capacity() {
                let now = now();
                all.retain(|_, contention| !contention.is_expired(now));
            }
            all.insert(resource.to_vec(), after);
        }
        outcome
    }
}
