//! The answers of masters to questions about resources.

use serde::Serialize;
use std::collections::HashMap;
use std::ops::RangeInclusive;
use std::sync::Arc;
use std::time::Duration;

use dlock_quorum::Instant;

use crate::error::NodeState;
use crate::holder::Holder;

/// The answer of one master.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspected<T> {
    /// Address of the master, without user and password.
    pub server: Arc<str>,
    /// Its answer, or the reason why there is none.
    #[serde(flatten)]
    pub answer: Answer<T>,
}

impl<T> Inspected<T> {
    /// Makes the answer of the master at this address.
    pub fn new(server: impl Into<Arc<str>>, answer: Answer<T>) -> Self {
        Inspected { server: server.into(), answer }
    }
}

/// How many servers must answer, so that their answers together are those of the lock service.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[non_exhaustive]
pub enum Needed {
    /// A majority: each server has every lock.
    Majority,
    /// All of them: each is a master of a cluster, and has the locks of its slots only.
    Every,
}

impl Needed {
    /// Returns the number of answers that are needed of this number of servers.
    pub fn of(self, servers: usize) -> usize {
        match self {
            Needed::Majority => dlock_quorum::majority(servers),
            Needed::Every => servers,
        }
    }
}

/// The state of a cluster: see [`Client::cluster`](crate::Client::cluster).
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct ClusterState {
    /// The slots that no known master has. The cluster grants nothing in them, and none of their locks is in
    /// the answers of [`Client::list`](crate::Client::list) and its like.
    pub missing_slots: Vec<RangeInclusive<u16>>,
    /// The slots of each master, by its address, without the missing ones.
    pub slots: HashMap<Arc<str>, Vec<RangeInclusive<u16>>>,
    /// The nodes of the address that are in another cluster.
    pub strangers: Vec<Arc<str>>,
}

/// An answer, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// The answer.
    Found(T),
    /// Reason why there is none.
    Unanswered(NodeState),
}

impl<T> Answer<T> {
    pub(crate) fn of(answer: Result<T, NodeState>) -> Answer<T> {
        answer.map_or_else(Answer::Unanswered, Answer::Found)
    }

    /// Returns the answer, if there is one.
    pub fn found(&self) -> Option<&T> {
        match self {
            Answer::Found(answer) => Some(answer),
            Answer::Unanswered(_) => None,
        }
    }
}

/// A resource as one master sees it.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Inspection {
    /// `exclusive`, `shared`, `permits`, or `free` without a holder.
    pub mode: String,
    /// Number of permits. 0 means that the mode is not `permits`.
    pub permits: u64,
    /// Greatest fence of its holders. 0 means that there is no holder.
    pub fence: u64,
    /// Its holders, at most 1,000.
    pub holders: Vec<Holder>,
    /// Number of waiters in its queue.
    pub waiters: u64,
    /// Remaining lock-delay in ms, in which no client is granted the lock although the lock has no holder.
    pub delay_ms: u64,
}

impl Holder {
    /// Returns the holder that the most masters have. Its fence is the one that a majority of them has, or 0
    /// if no majority has the same: each master grants a lock with a fence of its own, until the client
    /// raises them to the greatest ([`fenced`](crate::Acquire::fenced)). `None` if no master has a holder.
    pub fn of(inspected: &[Inspected<Option<Inspection>>]) -> Option<Holder> {
        let locks = inspected.iter().filter_map(|seen| seen.answer.found()?.as_ref());
        let all: Vec<&Holder> = locks.flat_map(|lock| &lock.holders).collect();
        let servers_with = |token: &str| all.iter().filter(|holder| holder.token == token).count();
        // Reversed to find the first of several greatest elements: max_by_key returns the last.
        let mut holder = (**all.iter().rev().max_by_key(|holder| servers_with(&holder.token))?).clone();
        let same_token = all.iter().filter(|other| other.token == holder.token);
        let fences: Vec<u64> = same_token.map(|other| other.fence).collect();
        let servers_with = |fence: u64| fences.iter().filter(|other| **other == fence).count();
        let majority = dlock_quorum::majority(inspected.len());
        holder.fence = fences.iter().copied().find(|fence| servers_with(*fence) >= majority).unwrap_or(0);
        Some(holder)
    }
}

impl Inspection {
    /// Returns the time until a majority of the masters is not closed by a delay. 0 if too few answered: a
    /// master without an answer may be closed or not.
    pub fn closed_for(inspected: &[Inspected<Option<Inspection>>]) -> Duration {
        let answers = inspected.iter().filter_map(|seen| seen.answer.found());
        let mut delays: Vec<u64> =
            answers.map(|lock| lock.as_ref().map_or(0, |lock| lock.delay_ms)).collect();
        delays.sort_unstable();
        let last = delays.get(dlock_quorum::majority(inspected.len()) - 1);
        Duration::from_millis(last.copied().unwrap_or(0))
    }
}

/// A lock of a master: see [`Client::list`](crate::Client::list).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Listed {
    /// The resource as bytes, so that a request can name it.
    #[serde(skip)]
    pub resource: Vec<u8>,
    /// As in [`Inspection::mode`].
    pub mode: String,
    /// Number of holders.
    pub holders: u64,
    /// Number of waiters.
    pub waiters: u64,
    /// Remaining ms of the longest lease. `None` means that there is no holder.
    pub left_ms: Option<u64>,
    /// Age of the oldest hold in ms.
    pub held_ms: u64,
    /// Remaining ms of a lock-delay.
    pub delay_ms: u64,
    /// Token of the first holder. Empty if there is none, and from a master that is older than this field, as
    /// the fields below.
    pub token: String,
    /// Fence of the first holder. 0 if there is none.
    pub fence: u64,
    /// Label of the first holder.
    pub label: String,
    /// Address of the first holder. Empty if its connection is gone.
    pub address: String,
}

/// An incident on a master: see [`Client::log`](crate::Client::log).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Logged {
    /// Number of the entry: each entry since the start of the master has a greater one than those before.
    pub id: u64,
    /// Time in ms since 1970 by the clock of the master.
    pub time_ms: u64,
    /// Kind of the incident as DLOCK.LOG names it, such as `expired`, `broken` or `deadlock`.
    pub what: String,
    /// Database.
    pub db: u64,
    /// The resource as bytes, so that a request can name it.
    #[serde(skip)]
    pub resource: Vec<u8>,
    /// First bytes of the token, as text.
    pub token: String,
    /// Label given with the request.
    pub label: String,
    /// CLIENT ID of the connection on that master. 0 means unknown.
    pub client: u64,
    /// Address of that connection. Empty means unknown.
    pub address: String,
    /// Fence of the hold. 0 means that there is none.
    pub fence: u64,
    /// Length of the hold in ms. `None` means that the entry is about a wait.
    pub held_ms: Option<u64>,
    /// Length of the wait in ms. `None` means that the entry is about a hold.
    pub waited_ms: Option<u64>,
}

/// The clock of a master: see [`Client::clocks`](crate::Client::clocks).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Clock {
    /// Time in µs since 1970, read by the master between `asked` and `answered`.
    pub unix_us: u64,
    /// Time before the request was sent.
    #[serde(skip)]
    pub asked: Instant,
    /// Time after the answer arrived.
    #[serde(skip)]
    pub answered: Instant,
}

/// What a sentinel says: see [`Client::sentinels`](crate::Client::sentinels).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Sentinel {
    /// The server that it names as the master, as `host:port`.
    pub master: String,
    /// How many sentinels must find the master dead before one of them begins a failover.
    pub quorum: u64,
    /// How many sentinels it knows, with itself, and with those that are down.
    pub sentinels: u64,
    /// After how many ms without an answer of the master it finds it dead.
    pub down_after_ms: u64,
}

/// A waiter for a resource on one master.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// CLIENT ID of the waiter's connection on that master. 0 means that it waits without one.
    pub client: u64,
    /// Token as text, escaped if it has a backslash or is not UTF-8.
    pub token: String,
    /// Requested mode: `exclusive`, `shared`, `permits`.
    pub mode: String,
    /// Time waited so far, in ms.
    pub waited_ms: u64,
    /// Remaining wait in ms. `None` means no timeout.
    pub left_ms: Option<u64>,
    /// Label given with the request.
    pub label: String,
}

/// A position in a wait queue.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The master with the queue.
    pub server: Arc<str>,
    /// Position, 1 at the head.
    pub position: u64,
    /// Time waited there so far.
    pub waited: Duration,
}
