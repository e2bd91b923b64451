//! One master: how it is reached, and asked. What its answers come to together is not decided here.

mod address;
mod channel;
mod connection;
mod member_list;
mod reply;

pub(crate) use address::Address;
pub(crate) use channel::Channel;
pub(crate) use connection::Connection;
pub(crate) use member_list::MemberList;
pub(crate) use reply::Reply;

use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::time::timeout;

use crate::backoff::Backoff;
use crate::clock::now;
use crate::error::NodeState;
use crate::lease::Instant;
use crate::quorum::{Failure, Member, Vote};

/// The first pause after a connection that failed; they grow up to [`LONGEST_PAUSE`].
const FIRST_PAUSE: Duration = Duration::from_millis(50);
/// So late, at most, does a client find out that a master is back.
const LONGEST_PAUSE: Duration = Duration::from_secs(2);
/// So many connections are kept for the next who wants one alone.
const MOST_IDLE: usize = 8;
/// A connection takes some round trips and, with TLS, some arithmetic.
const CONNECTING: u32 = 4;

/// One master.
pub(crate) struct Node {
    pub(crate) name: Arc<str>,
    pub(crate) member: Member,
    redis: redis::Client,
    /// How long it may take for one answer.
    pub(crate) limit: Duration,
    member_list: Arc<MemberList>,
    link: Mutex<Link>,
    /// Connections that somebody had alone, with nothing under way on them.
    idle: Mutex<Vec<Connection>>,
    runtime: Handle,
}

/// The connection that all share who do not block it.
#[derive(Debug)]
enum Link {
    /// There is none, and nothing is against opening one.
    None,
    /// Since when.
    Opening(Opening, Instant),
    Up(Connection),
    /// It failed, and is not tried again before `until`.
    Down {
        why: ConnectError,
        until: Instant,
        backoff: Backoff,
    },
}

type Opening = Shared<BoxFuture<'static, Result<Connection, ConnectError>>>;

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) enum ConnectError {
    Failure(Failure),
    /// The address leads to the server that is this member already.
    SameAs(Arc<str>),
}

impl ConnectError {
    fn down(why: impl Into<Arc<str>>) -> Self {
        ConnectError::Failure(Failure::Down(why.into()))
    }

    fn error(why: impl Into<Arc<str>>) -> Self {
        ConnectError::Failure(Failure::Error(why.into()))
    }
}

impl From<ConnectError> for Failure {
    fn from(connect_error: ConnectError) -> Failure {
        match connect_error {
            ConnectError::Failure(failure) => failure,
            ConnectError::SameAs(other) => {
                Failure::Error(format!("the same server as {other}, which would vote twice").into())
            }
        }
    }
}

/// Without the address's user and password.
impl fmt::Debug for Node {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Node { name, member, limit, link, .. } = self;
        let mut shown = f.debug_struct("Node");
        shown.field("name", name).field("member", member).field("limit", limit).field("link", link);
        shown.finish_non_exhaustive()
    }
}

impl Node {
    pub(crate) fn new(
        member: Member,
        address: Address,
        limit: Duration,
        member_list: Arc<MemberList>,
    ) -> Arc<Node> {
        let (name, redis, link) = (address.name, address.redis, Mutex::new(Link::None));
        let (idle, runtime) = (Mutex::default(), Handle::current());
        Arc::new(Node { name, member, redis, limit, member_list, link, idle, runtime })
    }

    /// The shared connection. Opened where there is none; at once an error while the last failure is fresh.
    pub(crate) async fn connection(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        let opening = {
            let mut link = self.link();
            let backoff = match &*link {
                Link::Up(connection) if connection.is_good() => return Ok(connection.clone()),
                Link::Down { why, until, .. } if now() < *until => return Err(why.clone()),
                // Whoever has been waited for so long is silent, and is not waited for by each one anew.
                Link::Opening(_, since) if now() >= *since + self.limit => return Err(self.not_yet()),
                Link::Down { backoff, .. } => *backoff,
                Link::None | Link::Up(_) | Link::Opening(..) => fresh_backoff(),
            };
            match &*link {
                Link::Opening(opening, _) => opening.clone(),
                _ => self.begin_opening(&mut link, backoff),
            }
        };
        opening.await
    }

    /// Whether there is a connection, or one can be had in the time of an answer.
    pub(crate) async fn reach(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        timeout(self.limit, self.connection()).await.unwrap_or_else(|_| Err(self.not_yet()))
    }

    /// What is wrong with it, as far as is known at present.
    pub(crate) fn connect_error(&self) -> Option<NodeState> {
        match &*self.link() {
            Link::Down { why, .. } => Some(NodeState::from(&Vote::<()>::Failed(Failure::from(why.clone())))),
            Link::None | Link::Opening(..) | Link::Up(_) => None,
        }
    }

    pub(crate) fn not_yet(&self) -> ConnectError {
        ConnectError::down(format!("no connection within {:?} yet", self.limit))
    }

    /// A connection for one caller alone, who may block it.
    pub(crate) async fn own_connection(self: &Arc<Self>) -> Result<Connection, ConnectError> {
        if let Some(idle) = self.idle_one() {
            return Ok(idle);
        }
        let node = self.clone();
        // On the client's own runtime, where the connection's driver has to live.
        let opened = self.runtime.spawn(async move { node.open().await }).await;
        opened.unwrap_or_else(|_| Err(gone()))
    }

    /// Takes back a connection that was one caller's own. Nothing may be under way on it.
    pub(crate) fn give_back(&self, connection: Connection) {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        if idle.len() < MOST_IDLE {
            idle.push(connection);
        }
    }

    fn idle_one(&self) -> Option<Connection> {
        let mut idle = self.idle.lock().unwrap_or_else(PoisonError::into_inner);
        idle.retain(Connection::is_open);
        idle.pop()
    }

    /// How long a connection to it may take.
    pub(crate) fn connection_limit(&self) -> Duration {
        self.limit.saturating_mul(CONNECTING)
    }

    /// The task goes on when whoever asked for it has lost patience: the next one finds the connection open.
    fn begin_opening(self: &Arc<Self>, link: &mut Link, mut backoff: Backoff) -> Opening {
        let node = self.clone();
        let task = self.runtime.spawn(async move {
            let opened = node.open().await.and_then(|connection| {
                node.member_list.seat(node.member, &connection)?;
                Ok(connection)
            });
            *node.link() = match &opened {
                Ok(connection) => Link::Up(connection.clone()),
                Err(why) => Link::Down { why: why.clone(), until: now() + backoff.next(), backoff },
            };
            opened
        });
        let opening = task.map(|opened| opened.unwrap_or_else(|_| Err(gone()))).boxed().shared();
        *link = Link::Opening(opening.clone(), now());
        opening
    }

    async fn open(&self) -> Result<Connection, ConnectError> {
        let limit = self.connection_limit();
        let opened = timeout(limit, Connection::open(&self.redis)).await;
        let connection =
            opened.unwrap_or_else(|_| Err(ConnectError::down(format!("no connection within {limit:?}"))))?;
        self.member_list.check(self.member, &connection)?;
        Ok(connection)
    }

    fn link(&self) -> MutexGuard<'_, Link> {
        self.link.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn fresh_backoff() -> Backoff {
    Backoff::new(FIRST_PAUSE, LONGEST_PAUSE)
}

fn gone() -> ConnectError {
    ConnectError::down("the runtime that the client was built on has shut down")
}
