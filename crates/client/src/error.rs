//! Errors, with the state of each master.

use dlock_quorum::Fault;
use serde::{Serialize, Serializer};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::holder::Holder;

/// The answer of one master, or the reason why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeState {
    /// The master granted, confirmed, extended or released as requested.
    Agreed,
    /// Another token holds the lock there, or the wait timed out there.
    Taken,
    /// The master may have forgotten holds, and grants nothing for this long (in JSON: seconds and
    /// nanoseconds).
    InGrace(Duration),
    /// The wait queue of the master is full.
    QueueFull,
    /// Waiting there would be a deadlock; the server describes the cycle.
    Deadlock(Arc<str>),
    /// The clock of this master is too far ahead, so other masters refused its fence. Or this master refused
    /// the fence of another one as too far ahead of its clock.
    ClockAhead,
    /// The master granted, but only this number of its replicas have the grant. If the request was
    /// [`durable(0, ..)`](crate::Acquire::durable), the number is 0: the master's own append only file does
    /// not have the grant.
    NotDurable(u64),
    /// The token holds nothing there.
    NotHeld,
    /// The master could not be reached.
    Down(Arc<str>),
    /// The master was reached, but did not answer in time: the request may have been carried out.
    Slow,
    /// The master answered with an error: no module, no permission, out of memory, a key that holds data, a
    /// cluster node, the same server as another member.
    #[serde(serialize_with = "text_of")]
    Failed(Fault),
    /// The master was asked, but the answers of others decided before it answered.
    Unheard,
    /// The master was not asked.
    Unasked,
}

impl fmt::Display for NodeState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeState::Agreed => f.write_str("agreed"),
            NodeState::Taken => f.write_str("taken"),
            NodeState::InGrace(left) => {
                write!(f, "in grace for {} ms more: it may have forgotten holds", left.as_millis())
            }
            NodeState::QueueFull => f.write_str("its queue is full"),
            NodeState::Deadlock(cycle) => write!(f, "deadlock: {cycle}"),
            NodeState::ClockAhead => f.write_str("its clock and that of another master are too far apart"),
            NodeState::NotDurable(copies) => write!(f, "only {copies} durable copies of the grant"),
            NodeState::NotHeld => f.write_str("not held"),
            NodeState::Down(why) => write!(f, "down: {why}"),
            NodeState::Slow => f.write_str("no answer in time"),
            NodeState::Failed(why) => f.write_str(&why.text),
            NodeState::Unheard => f.write_str("asked, answer not needed"),
            NodeState::Unasked => f.write_str("not asked"),
        }
    }
}

fn text_of<S: Serializer>(fault: &Fault, serializer: S) -> Result<S::Ok, S::Error> {
    serializer.serialize_str(&fault.text)
}

/// One master and its answer.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// The address of the master, without user and password.
    pub server: Arc<str>,
    /// Its answer.
    pub state: NodeState,
}

/// The answers of all masters, in the order of the builder's servers.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report(pub Vec<NodeReport>);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, node) in self.0.iter().enumerate() {
            let comma = if index == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", node.server, node.state)?;
        }
        Ok(())
    }
}

/// Reason why the client could not be built.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No server was given.
    #[error("no server was given")]
    NoServers,
    /// More than 255 servers were given.
    #[error("a quorum has at most 255 members")]
    TooManyServers,
    /// An address is invalid. The error repeats no part of the address, which may contain a password.
    #[error("address {position}: {why}")]
    Address {
        /// Position of the address among the builder's servers, counted from 1.
        position: usize,
        /// Reason.
        why: String,
    },
    /// Two addresses lead to the same server, which would vote twice.
    #[error("{0} and {1} are the same server: it would vote twice")]
    SameServer(Arc<str>, Arc<str>),
    /// So many servers cannot take part (no module, no permission, a cluster node) that the others are no
    /// majority. The report has only the servers that cannot take part.
    #[error("cannot take part: {0}")]
    Unusable(Report),
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
    /// The thread of the client could not be started: raise the limit of threads or of memory.
    #[error("cannot start the client's thread: {0}")]
    Thread(String),
}

/// Reason why an acquisition or an upgrade failed. After a failed acquisition, nothing is held; the grants of
/// some masters are being released. A failed upgrade leaves the hold shared, unless the hold was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Another client holds the lock, or it is closed after a release: a majority could vote, and too many
    /// masters refused until the wait timed out.
    #[error("{resource} is taken{} ({report})", obstacles(holder, *closed))]
    Taken {
        /// The requested resource.
        resource: String,
        /// The answers in the last round.
        report: Report,
        /// The holder, or the first of several, as the masters showed it afterwards. `None` if
        /// they show none any more, the user may not ask (`+dlock.inspect`), or an upgrade failed.
        holder: Option<Box<Holder>>,
        /// How long the lock stays closed although no client holds it, or although sharers or permits are
        /// left: see [`at_least`](crate::Acquire::at_least). 0 if it does not, or as for the holder.
        closed: Duration,
    },
    /// Waiting would be a deadlock: tokens would wait for each other in a cycle.
    #[error("waiting for {resource} would be a deadlock{} ({report})", described(holder))]
    Deadlock {
        /// The requested resource.
        resource: String,
        /// The answers; [`NodeState::Deadlock`] describes the cycle.
        report: Report,
        /// As in [`AcquireError::Taken`].
        holder: Option<Box<Holder>>,
    },
    /// The wait queue of a master is full (`dlock.max-waiters-per-key`, `dlock.max-queued`).
    #[error("the queue for {resource} is full ({report})")]
    QueueFull {
        /// The requested resource.
        resource: String,
        /// The answers in the last round.
        report: Report,
    },
    /// Too many masters are down, silent, in grace or have a wrong clock: currently no client can acquire the
    /// lock.
    #[error("no quorum for {resource} ({report})")]
    QuorumImpossible {
        /// The requested resource.
        resource: String,
        /// The answers in the last round.
        report: Report,
    },
    /// A majority granted, but too late: nothing of the lease was left. The ttl is too short for this
    /// network.
    #[error("{resource} was granted too late: nothing of the lease was left ({report})")]
    TooLate {
        /// The requested resource.
        resource: String,
        /// The answers in the last round.
        report: Report,
    },
    /// The servers reject the request: a ttl or a delay above their `dlock.max-ttl`, or a key that holds
    /// data.
    #[error("invalid request for {resource} ({report})")]
    Misuse {
        /// The requested resource.
        resource: String,
        /// The answers. [`NodeState::Failed`] names the type of the data.
        report: Report,
    },
    /// A hold was lost during the acquisition: that of an earlier lock of
    /// [`lock_all`](crate::Client::lock_all), the hold to be upgraded, or the new hold while the client
    /// waited for [`durable`](crate::Acquire::durable) copies.
    #[error("{resource} was lost while waiting: {why}")]
    LostMeanwhile {
        /// The lost resource.
        resource: String,
        /// Reason of the loss.
        why: Lost,
    },
    /// A majority granted, but too few grants are as [`durable`](crate::Acquire::durable) as requested.
    #[error("{resource} was granted, but not durably enough ({report})")]
    NotDurable {
        /// The requested resource.
        resource: String,
        /// Durability of the grant at each master.
        report: Report,
    },
    /// An option is out of range, or does not fit the number of servers.
    #[error("{0}")]
    Option(String),
}

/// The part of an error's text about the holder.
fn described(holder: &Option<Box<Holder>>) -> String {
    holder.as_ref().map(|holder| format!(": {holder}")).unwrap_or_default()
}

/// The part of an error's text about the holder and the delay.
fn obstacles(holder: &Option<Box<Holder>>, closed: Duration) -> String {
    let holder = holder.as_ref().map(ToString::to_string);
    let closed = (!closed.is_zero()).then(|| format!("closed for another {closed:?}"));
    let all: Vec<String> = holder.into_iter().chain(closed).collect();
    if all.is_empty() { String::new() } else { format!(": {}", all.join("; ")) }
}

impl AcquireError {
    /// Returns the answers in the last round. `None` for [`AcquireError::LostMeanwhile`] and
    /// [`AcquireError::Option`].
    pub fn report(&self) -> Option<&Report> {
        match self {
            AcquireError::Taken { report, .. }
            | AcquireError::QueueFull { report, .. }
            | AcquireError::Deadlock { report, .. }
            | AcquireError::QuorumImpossible { report, .. }
            | AcquireError::TooLate { report, .. }
            | AcquireError::NotDurable { report, .. }
            | AcquireError::Misuse { report, .. } => Some(report),
            AcquireError::LostMeanwhile { .. } | AcquireError::Option(_) => None,
        }
    }
}

/// Reason why a lease was not extended.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The hold is lost: its validity ended, or too many masters no longer have it.
    #[error("the hold is lost ({0})")]
    Lost(Report),
    /// The servers reject the request: a ttl above their `dlock.max-ttl`. The hold keeps its lease.
    #[error("invalid request ({0})")]
    Misuse(Report),
    /// Too few masters answered. The hold keeps its lease, and extending can be retried.
    #[error("the lease was not extended ({0})")]
    Unconfirmed(Report),
    /// An option is out of range.
    #[error("{0}")]
    Option(String),
}

/// Reason why a release is not confirmed.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// Too many masters no longer had the hold: it had ended before the release.
    #[error("the token did not hold the lock ({0})")]
    NotHeld(Report),
    /// Too few masters answered in time. The client repeats the release in the background until the lease
    /// ends.
    #[error("the release was not confirmed ({0})")]
    Unconfirmed(Report),
}

/// Fewer servers than a majority answered.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("too few servers answered ({0})")]
#[non_exhaustive]
pub struct NoQuorum(pub Report);

/// Reason why a hold was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// The longest time of the hold ([`max_hold`](crate::Acquire::max_hold)) has passed, or its lease is
    /// about to end and renewal is off.
    #[error("its time is up, and it is not renewed")]
    Ended,
    /// The hold was not renewed in time.
    #[error("it was not renewed in time ({0})")]
    NotRenewed(Report),
    /// Too many masters no longer have the hold: an operator broke it, its key was deleted, or the masters
    /// forgot it.
    #[error("it was taken away ({0})")]
    TakenAway(Report),
    /// The connection of an ephemeral hold closed.
    #[error("its connection closed")]
    Disconnected,
}
