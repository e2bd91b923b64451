//! What all clones of a client share: the masters, and the work in the background.

use dlock_protocol::Ttl;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use smallvec::SmallVec;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::runtime::Handle;
use tokio_util::task::TaskTracker;

use crate::acquire::contended::Contended;
use crate::clock::{now, sleep_until};
use crate::error::{BuildError, NodeReport, NodeState, Report};
use crate::lease::Lease;
use crate::node::{Address, Channel, ConnectError, MemberList, Node, Reply};
use crate::options::{ClientBuilder, Retry};
use crate::quorum::{Member, Quorum, Refusal, Vote};

/// The lock service as a client knows it.
#[derive(Debug)]
pub(crate) struct Service {
    pub(crate) nodes: Vec<Arc<Node>>,
    pub(crate) quorum: Quorum,
    pub(crate) retry: Retry,
    pub(crate) contended: Contended,
    drift: Option<Duration>,
    runtime: Handle,
    work: TaskTracker,
}

/// The ways of one hold, by member.
pub(crate) type Channels = SmallVec<[Arc<Channel>; 5]>;

impl Service {
    pub(crate) async fn connect(options: ClientBuilder) -> Result<Arc<Service>, BuildError> {
        let addresses: Vec<Address> = options
            .servers
            .iter()
            .enumerate()
            .map(|(place, server)| Address::parse(place + 1, server, &options))
            .collect::<Result<_, _>>()?;
        let members = u8::try_from(addresses.len()).map_err(|_| BuildError::TooManyServers)?;
        let quorum = Quorum::new(members).ok_or(BuildError::NoServers)?;
        let limit = options.node_timeout;
        if limit < Duration::from_millis(1) || limit > Duration::from_secs(86_400) {
            let why = format!("the time limit of a node must be 1 ms to a day, not {limit:?}");
            return Err(BuildError::Option(why));
        }
        let member_list = MemberList::new(addresses.iter().map(|address| address.name.clone()));
        let nodes = quorum.members().zip(addresses);
        let nodes: Vec<Arc<Node>> =
            nodes.map(|(member, address)| Node::new(member, address, limit, member_list.clone())).collect();
        let work = TaskTracker::new();
        // Closed is not shut: it only lets `flush` see the end.
        work.close();
        let (retry, drift, runtime) = (options.retry, options.drift, Handle::current());
        let contended = Contended::default();
        let service = Service { nodes, quorum, retry, contended, drift, runtime, work };
        service.first_connections().await?;
        Ok(Arc::new(service))
    }

    /// A master that is down may come, and a majority goes on without one that is there and cannot take part. Once there is
    /// a majority, the others are waited for no longer than for an answer: they may join later.
    async fn first_connections(&self) -> Result<(), BuildError> {
        let overdue = now() + self.nodes[0].limit;
        let opening = self.nodes.iter().map(|node| async move { (node, node.connection().await) });
        let mut opening: FuturesUnordered<_> = opening.collect();
        let mut up = 0;
        loop {
            let next = tokio::select! {
                biased;
                next = opening.next() => next,
                () = sleep_until(overdue), if up >= self.quorum.majority() => None,
            };
            match next {
                None => return Ok(()),
                Some((_, Ok(_))) => up += 1,
                Some((node, Err(ConnectError::SameAs(other)))) => {
                    return Err(BuildError::SameServer(other, node.name.clone()));
                }
                Some((_, Err(ConnectError::Failure(_)))) => {
                    let unusable = self.unusable();
                    if self.nodes.len() - unusable.0.len() < self.quorum.majority() {
                        return Err(BuildError::Unusable(unusable));
                    }
                }
            }
        }
    }

    /// The members that are there and cannot take part.
    pub(crate) fn unusable(&self) -> Report {
        let defects = self.nodes.iter().filter_map(|node| {
            let state = node.connect_error().filter(|state| matches!(state, NodeState::Failed(_)))?;
            Some(NodeReport { server: node.name.clone(), state })
        });
        Report(defects.collect())
    }

    pub(crate) fn node(&self, member: Member) -> &Arc<Node> {
        &self.nodes[usize::from(member.0)]
    }

    /// In which order masters are waited at: the same for all clients that name the same addresses, so that they meet in
    /// one line.
    pub(crate) fn line_order(&self) -> Vec<Member> {
        let mut order: Vec<Member> = self.quorum.members().collect();
        order.sort_by_key(|member| &self.node(*member).name);
        order
    }

    /// How long until so many masters are out of grace that a majority can vote, if that is what is missing.
    pub(crate) fn grace(&self, votes: &[Option<Vote>]) -> Option<Duration> {
        let able = votes.iter().filter(|vote| {
            matches!(vote, None | Some(Vote::Granted(_)))
                || matches!(vote, Some(Vote::Refused(why)) if !matches!(why, Refusal::Grace(_) | Refusal::FenceAhead))
        });
        let missing = self.quorum.majority().checked_sub(able.count())?;
        let mut graces: Vec<Duration> = votes
            .iter()
            .filter_map(|vote| match vote {
                Some(Vote::Refused(Refusal::Grace(left))) => Some(*left),
                _ => None,
            })
            .collect();
        graces.sort();
        graces.get(missing.checked_sub(1)?).copied()
    }

    pub(crate) fn channels(&self) -> Channels {
        self.nodes.iter().map(|node| Arc::new(Channel::new(node.clone()))).collect()
    }

    /// The lease of `ttl`, in whole ms as the servers count it; or what is wrong with it.
    pub(crate) fn lease_for(&self, ttl: Duration) -> Result<(Lease, Ttl), String> {
        let Some(counted) = u64::try_from(ttl.as_millis()).ok().and_then(Ttl::from_millis) else {
            return Err(format!("a lease lasts 1 ms to 49 days, not {ttl:?}"));
        };
        let ttl = Duration::from_millis(counted.millis());
        let lease = match self.drift {
            Some(drift) => Lease::with_drift(ttl, drift),
            None => Lease::new(ttl),
        };
        let lease = lease.ok_or_else(|| {
            format!("nothing is left of a lease of {ttl:?} after the drift: ask for a longer one")
        });
        lease.map(|lease| (lease, counted))
    }

    /// Begins at once (what it sends first is on its way when this returns) and goes on in the background.
    pub(crate) fn begin(&self, work: impl Future<Output = ()> + Send + 'static) {
        let _runtime = self.runtime.enter();
        let mut work = Box::pin(work);
        if work.as_mut().now_or_never().is_none() {
            self.work.spawn_on(work, &self.runtime);
        }
    }

    /// A task that lives as long as what it serves, and is not waited for.
    pub(crate) fn attend(&self, task: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(task);
    }

    pub(crate) async fn flush(&self) {
        self.work.wait().await;
    }

    /// Asks all masters one question.
    pub(crate) async fn ask_all(&self, question: redis::Cmd) -> Vec<Reply> {
        let asked = self.nodes.iter().map(|node| {
            let (channel, question) = (Channel::new(node.clone()), &question);
            async move { channel.ask(question, None, channel.node.limit).await }
        });
        join_all(asked).await
    }

    /// What each master said; None: nothing was heard of it.
    pub(crate) fn report<'a, G: 'a>(
        &self,
        channels: &Channels,
        votes: impl IntoIterator<Item = Option<&'a Vote<G>>>,
    ) -> Report {
        self.report_of(channels.iter().zip(votes).map(|(channel, vote)| match vote {
            None => channel.unheard(),
            Some(Vote::Unknown) => channel.silence(),
            Some(vote) => NodeState::from(vote),
        }))
    }

    pub(crate) fn report_of(&self, states: impl IntoIterator<Item = NodeState>) -> Report {
        let names = self.nodes.iter().map(|node| node.name.clone());
        Report(names.zip(states).map(|(server, state)| NodeReport { server, state }).collect())
    }
}
