//! One master: its shared connection, and whether it can be reached. It does not count votes: `dlock-quorum`
//! does.

use dlock_quorum::{Instant, Member, Quorum};
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use redis::{PushInfo, PushKind};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::Notify;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::background::Background;
use crate::clock::{now, sleep_until};
use crate::error::NodeState;
use crate::inspect::{Inspected, Sentinel};
use crate::sync::Mutex;
use crate::topology::member_list::MemberList;
use crate::topology::waits::Waits;
use crate::topology::watched::Watched;
use crate::transport::{Address, ConnectError, Connection, Expected, MasterLocator};
use crate::wait::Backoff;

/// First pause after a failed connection; pauses grow up to [`LONGEST_PAUSE`].
pub(super) const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// Longest pause, and so the longest time until a client notices that a master is back.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// Pause before a connection is opened again if the last one, which was young, led to a replica.
const REPLICA_PAUSE: Duration = Duration::from_millis(250);
/// Time limit for opening a connection, as a multiple of the limit of an answer. Opening takes several round
/// trips, and a TLS handshake takes computing time.
const CONNECT_FACTOR: u32 = 4;

/// What all nodes of a client share.
#[derive(Debug)]
pub(crate) struct Settings {
    /// Time limit of one answer.
    pub(crate) limit: Duration,
    pub(crate) background: Arc<Background>,
    pub(crate) watched: Arc<Watched>,
}

/// Where a node is.
pub(crate) enum Place {
    Server(Address),
    ClusterNode(Address),
    /// Wherever the sentinels say. The text is the name of the node.
    Sentinel(Arc<str>, Arc<MasterLocator>),
}

/// One master.
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) member: Member,
    place: Place,
    /// Time limit of one answer.
    pub(crate) limit: Duration,
    member_list: Arc<MemberList>,
    link: Mutex<Link>,
    /// The address of the server of the last connection, if the sentinels named it.
    located: Mutex<Option<Arc<str>>>,
    pub(super) background: Arc<Background>,
    watched: Arc<Watched>,
    pub(crate) waits: Arc<Waits>,
    /// RELEASE requests without an answer.
    pub(crate) releases: TaskTracker,
    /// Notified when the master answers again: releases that are repeated in the background are sent at once.
    pub(crate) repeat_releases: Notify,
}

/// The connection that all holds share, except ephemeral ones.
#[derive(Debug)]
enum Link {
    /// Not opened yet.
    None,
    /// Being opened since `since`. `failed` is the error of the previous connection, if that one failed.
    Opening {
        opening: Opening,
        since: Instant,
        failed: Option<ConnectError>,
    },
    Up(Connection),
    /// Failed, and not opened again before `until`.
    Down {
        why: ConnectError,
        until: Instant,
        backoff: Backoff,
    },
}

type Opening = Shared<BoxFuture<'static, Result<Connection, ConnectError>>>;

/// Shows neither the user nor the password of the address.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { name, member, limit, link, .. } = self;
        let mut debug = f.debug_struct("Node");
        debug.field("name", name).field("member", member).field("limit", limit).field("link", link);
        debug.finish_non_exhaustive()
    }
}

impl Node {
    pub(crate) fn new(
        member: Member,
        place: Place,
        member_list: Arc<MemberList>,
        settings: Arc<Settings>,
    ) -> Arc<Node> {
        let name = match &place {
            Place::Server(address) | Place::ClusterNode(address) => address.name.clone(),
            Place::Sentinel(name, _) => name.clone(),
        };
        let Settings { limit, background, watched } = &*settings;
        let (limit, background, watched) = (*limit, background.clone(), watched.clone());
        let (waits, releases) = (Waits::new(), TaskTracker::new());
        // A closed tracker still accepts tasks; this only lets `wait` return.
        releases.close();
        Arc::new(Node {
            name,
            member,
            place,
            limit,
            member_list,
            link: Mutex::new(Link::None),
            located: Mutex::default(),
            background,
            watched,
            waits,
            releases,
            repeat_releases: Notify::new(),
        })
    }

    /// Returns the address. `None` for a master that the sentinels name.
    pub(crate) fn address(&self) -> Option<&Address> {
        match &self.place {
            Place::Server(address) | Place::ClusterNode(address) => Some(address),
            Place::Sentinel(..) => None,
        }
    }

    /// Returns where the master is looked for, if the sentinels name it.
    pub(super) fn locator(&self) -> Option<&MasterLocator> {
        match &self.place {
            Place::Sentinel(_, locator) => Some(locator),
            Place::Server(_) | Place::ClusterNode(_) => None,
        }
    }

    /// Asks the sentinels, if there are any, what they say about the master.
    pub(crate) fn survey(&self) -> Option<impl Future<Output = Vec<Inspected<Sentinel>>>> {
        Some(self.locator()?.survey(self.limit))
    }

    /// Returns the replica of this master at `host:port`, which has the same login.
    pub(super) fn replica(&self, place: &str, settings: &Arc<Settings>) -> Option<Arc<Node>> {
        let (login, is_cluster) = match &self.place {
            Place::Server(address) => (address, false),
            Place::ClusterNode(address) => (address, true),
            Place::Sentinel(_, locator) => (&locator.master, false),
        };
        let address = login.at_node(place)?;
        let one = Quorum::new(1).expect("a quorum of one");
        let list = MemberList::new(one, [address.name.clone()]);
        let place = if is_cluster { Place::ClusterNode(address) } else { Place::Server(address) };
        Some(Node::new(Member(0), place, list, settings.clone()))
    }

    /// Returns the address of the server, without user and password: of a master that the sentinels name, the
    /// last one that they named, and their own address before that.
    pub(crate) fn server_name(&self) -> Arc<str> {
        self.located.lock().clone().unwrap_or_else(|| self.name.clone())
    }

    /// Returns the shared connection, and opens it if necessary. Fails at once while the last failure is
    /// recent.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let opening = {
            let mut link = self.link.lock();
            let mut subscribe = true;
            if let Link::Up(connection) = &*link
                && let Some(why) = connection.fault()
            {
                // The server has sent too much. If the connection was subscribed to the channel on which the
                // server publishes the ends of waits, other clients may have flooded this channel. So the
                // next connection is opened at once, without the subscription. If it was not subscribed, a
                // new connection would probably receive the same flood, so a pause comes first.
                subscribe = !connection.is_subscribed();
                if subscribe {
                    let (why, until) = (ConnectError::error(why), now() + LONGEST_PAUSE);
                    *link = Link::Down { why, until, backoff: fresh_backoff() };
                }
            }
            let backoff = match &*link {
                Link::Up(connection) if connection.is_good() => return Ok(connection.clone()),
                Link::Down { why, until, .. } if now() < *until => return Err(why.clone()),
                // After the time limit of an answer, callers no longer wait for the connection.
                Link::Opening { since, failed, .. } if now() >= *since + self.limit => {
                    return Err(failed.clone().unwrap_or_else(|| self.too_slow()));
                }
                Link::Down { backoff, .. } => *backoff,
                Link::None | Link::Up(_) | Link::Opening { .. } => fresh_backoff(),
            };
            let opening = match &*link {
                Link::Opening { opening, .. } => opening.clone(),
                _ => self.begin_opening(&mut link, backoff, subscribe),
            };
            match &*link {
                // If the previous connection to this master failed, callers do not wait for the next one
                // while a majority of the masters answers.
                Link::Opening { failed: Some(why), .. } if self.member_list.has_majority() => {
                    return Err(why.clone());
                }
                _ => opening,
            }
        };
        opening.await
    }

    /// Closes a connection to a server that has answered that it is no master any more, for example after a
    /// failover behind one address. If it is the shared connection, the next request opens another one
    /// through the address, and resolves its name again. All waits and holds then ask the new master. A young
    /// connection is replaced only after a pause, because the address still leads to the old master.
    pub(crate) fn leave(&self, connection: &Connection) {
        connection.close();
        {
            let mut link = self.link.lock();
            match &*link {
                Link::Up(current) if current.is_same(connection) => {}
                _ => return,
            }
            *link = if connection.age() < LONGEST_PAUSE {
                let why = ConnectError::replica(connection);
                Link::Down { why, until: now() + REPLICA_PAUSE, backoff: fresh_backoff() }
            } else {
                Link::None
            };
        }
        self.watched.check_all();
        self.waits.wake_all();
    }

    /// While the shared connection is open, waits until the sentinels name a successor of its master, and
    /// then closes all connections to this master. Keeps neither the node nor the connection.
    fn leave_once_succeeded(
        self: &Arc<Self>,
        locator: &Arc<MasterLocator>,
        present: Address,
        connection: &Connection,
    ) {
        let (node, locator, limit) = (Arc::downgrade(self), locator.clone(), self.limit);
        let closed = connection.closed().clone();
        tokio::spawn(async move {
            let succeeded = closed.run_until_cancelled(locator.until_succeeded(&present, limit)).await;
            if let (Some(()), Some(node)) = (succeeded, node.upgrade()) {
                locator.end_term();
                {
                    let mut link = node.link.lock();
                    if matches!(&*link, Link::Up(connection) if !connection.is_open()) {
                        *link = Link::None;
                    }
                }
                node.watched.check_all();
                node.waits.wake_all();
            }
        });
    }

    /// Returns true if the master seems to be down: its last request had no answer, or the last attempt to
    /// connect has failed, or takes longer than the time limit of an answer. Clients queue at the other
    /// masters first.
    pub(crate) fn is_missing(&self) -> bool {
        match &*self.link.lock() {
            Link::Up(connection) => !connection.answers(),
            Link::Opening { since, failed, .. } => failed.is_some() || now() >= *since + self.limit,
            Link::Down { .. } => true,
            Link::None => false,
        }
    }

    /// Returns true if the master is connected and does not answer.
    pub(crate) fn is_silent(&self) -> bool {
        matches!(&*self.link.lock(), Link::Up(connection) if connection.is_open() && !connection.answers())
    }

    /// Returns true if the master can publish the end of a wait to this client.
    pub(crate) fn is_subscribed(&self) -> bool {
        matches!(&*self.link.lock(), Link::Up(connection) if connection.is_open() && connection.is_subscribed())
    }

    /// Returns true if the master is known to allow a RELEASE with this delay.
    pub(crate) fn allows_delay(&self, delay: Duration) -> bool {
        matches!(&*self.link.lock(), Link::Up(connection) if connection.is_open() && connection.allows_delay(delay))
    }

    /// Returns the reason why there is no connection, if it is known.
    pub(crate) fn connect_error(&self) -> Option<NodeState> {
        match &*self.link.lock() {
            Link::Down { why, .. } | Link::Opening { failed: Some(why), .. } => Some(why.clone().into()),
            Link::None | Link::Opening { failed: None, .. } | Link::Up(_) => None,
        }
    }

    /// Returns the reason why there is no connection after the time limit of an answer. If the previous
    /// connection failed, that is the reason.
    pub(crate) fn no_connection_yet(&self) -> ConnectError {
        match &*self.link.lock() {
            Link::Opening { failed: Some(why), .. } => why.clone(),
            _ => self.too_slow(),
        }
    }

    fn too_slow(&self) -> ConnectError {
        ConnectError::down(format!("no connection within {:?}", self.limit))
    }

    /// Waits until the master is connected or an attempt to connect has failed. After an earlier failure,
    /// first waits for the end of the pause. Returns true if the master is connected.
    pub(crate) async fn wait_until_reached(self: &Arc<Self>) -> bool {
        let pause = match &*self.link.lock() {
            Link::Down { until, .. } => Some(*until),
            _ => None,
        };
        if let Some(until) = pause {
            sleep_until(until).await;
            // This call returns early if a majority works without this master.
            let _ = self.connection().await;
        }
        let opening = match &*self.link.lock() {
            Link::Opening { opening, .. } => opening.clone(),
            Link::Up(connection) => return connection.is_good(),
            Link::Down { .. } | Link::None => return false,
        };
        opening.await.is_ok()
    }

    /// Opens a separate connection: for an ephemeral hold, for WAIT, for an answer of unbounded length.
    pub(crate) async fn separate_connection(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let node = self.clone();
        // Opened on the client's thread, because the task that drives the connection must run there.
        let opening = self
            .background
            .run_on_thread(async move { node.open(&node.member_list.library_name(), None, false).await });
        opening.await.unwrap_or_else(|| Err(ConnectError::thread_ended()))
    }

    /// Returns the time limit for opening a connection.
    pub(crate) fn connection_limit(&self) -> Duration {
        self.limit.saturating_mul(CONNECT_FACTOR)
    }

    /// Begins to open the shared connection. The task continues when its caller gives up: the next caller
    /// finds the connection open.
    fn begin_opening(self: &Arc<Self>, link: &mut Link, mut backoff: Backoff, subscribe: bool) -> Opening {
        let node = self.clone();
        let task = self.background.runtime.spawn(async move {
            let name = node.member_list.library_name();
            let opened = node.open(&name, Some(node.waits.clone()), subscribe).await.and_then(|connection| {
                node.member_list.register(node.member, &connection, name)?;
                Ok(connection)
            });
            // The library name contains a digest of the run ids of all servers, so a new connection can
            // change it.
            for (connection, set_name) in node.member_list.take_outdated_names() {
                // The answer is not needed, and may never come.
                tokio::spawn(timeout(node.limit, async move { connection.ask(&set_name).await }));
            }
            *node.link.lock() = match &opened {
                Ok(connection) => Link::Up(connection.clone()),
                Err(why) => Link::Down { why: why.clone(), until: now() + backoff.next(), backoff },
            };
            opened
        });
        let opening =
            task.map(|opened| opened.unwrap_or_else(|_| Err(ConnectError::thread_ended()))).boxed().shared();
        let failed = match &*link {
            Link::Down { why, .. } => Some(why.clone()),
            // An open connection is replaced because the server was silent several times in a row.
            Link::Up(connection) => connection.is_open().then(|| self.too_slow()),
            Link::None | Link::Opening { .. } => None,
        };
        *link = Link::Opening { opening: opening.clone(), since: now(), failed };
        opening
    }

    /// Opens a connection. `waits` is given for the shared connection only.
    async fn open(
        self: &Arc<Self>,
        library_name: &str,
        waits: Option<Arc<Waits>>,
        subscribe: bool,
    ) -> Result<Connection, ConnectError> {
        let limit = self.connection_limit();
        let (watched, waiting) = (&self.watched, &waits);
        let on_push = || {
            let (watched, waiting) = (watched.clone(), waiting.clone());
            move |push: &PushInfo| {
                // A separate connection belongs to one hold or question: its end is no reason to check the
                // other holds.
                if waiting.is_some() || push.kind != PushKind::Disconnection {
                    watched.on_push(push);
                }
                waiting.iter().for_each(|waits| waits.on_push(push));
            }
        };
        let channel = waits.as_ref().filter(|_| subscribe).map(|waits| &*waits.channel);
        // For the error after the time limit: what the server has not done yet. `Connection::open` updates
        // it.
        let mut missing = "no connection";
        let opening = async {
            let (address, expected) = match &self.place {
                Place::Server(address) => (address, Expected::Server),
                Place::ClusterNode(address) => (address, Expected::ClusterNode),
                Place::Sentinel(_, locator) => {
                    let mut search = locator.search();
                    while let Some(address) = search.next(self.limit).await {
                        let opening = Connection::open(
                            &address,
                            Expected::Master,
                            library_name,
                            on_push(),
                            channel,
                            locator.term(),
                            &mut missing,
                        );
                        match opening.await {
                            Ok(connection) => {
                                *self.located.lock() = Some(address.name.clone());
                                if waits.is_some() {
                                    self.leave_once_succeeded(locator, address, &connection);
                                }
                                return Ok(connection);
                            }
                            Err(why) => search.note_failure(&address, why),
                        }
                    }
                    return Err(search.error());
                }
            };
            let closed = CancellationToken::new();
            Connection::open(address, expected, library_name, on_push(), channel, closed, &mut missing).await
        };
        let opened = timeout(limit, opening).await;
        let connection =
            opened.unwrap_or_else(|_| Err(ConnectError::down(format!("{missing} within {limit:?}"))))?;
        self.member_list.check(self.member, &connection)?;
        Ok(connection)
    }
}

pub(crate) fn fresh_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}
