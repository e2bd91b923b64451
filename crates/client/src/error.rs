//! What can go wrong, and what each master had to do with it.

use serde::Serialize;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// What one master had to say, or why it said nothing.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
#[non_exhaustive]
pub enum NodeState {
    /// It granted, confirmed, extended or released what was asked.
    Agreed,
    /// Somebody else holds it there, or the wait there was over.
    Taken,
    /// It may have forgotten holds, and grants nothing for so long (in JSON: seconds and nanoseconds).
    InGrace(Duration),
    /// Too many clients wait there.
    QueueFull,
    /// Waiting there would close a cycle of tokens that wait for each other; the server's account of it.
    Deadlock(Arc<str>),
    /// Its clock, or another master's, is so far off that their fences do not fit together.
    ClockAhead,
    /// The token holds nothing there (any more).
    NotHeld,
    /// It could not be reached.
    Down(Arc<str>),
    /// It was reached, but did not answer in time: what was asked of it may have been carried out.
    Slow,
    /// It answered with an error: no module, no permission, no memory, the same server as another member.
    Failed(Arc<str>),
    /// It was asked, and its answer was not waited for: the others had decided.
    Unheard,
    /// It was not asked.
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
            NodeState::ClockAhead => f.write_str("its clock does not fit the others'"),
            NodeState::NotHeld => f.write_str("not held"),
            NodeState::Down(why) => write!(f, "down: {why}"),
            NodeState::Slow => f.write_str("no answer in time"),
            NodeState::Failed(why) => f.write_str(why),
            NodeState::Unheard => f.write_str("asked, but not waited for"),
            NodeState::Unasked => f.write_str("not asked"),
        }
    }
}

/// One master and what it had to say.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct NodeReport {
    /// Where the master is: its address without user and password.
    pub server: Arc<str>,
    /// What it said.
    pub state: NodeState,
}

/// What every master had to say, in the order of the builder's servers.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Report(pub Vec<NodeReport>);

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (place, node) in self.0.iter().enumerate() {
            let comma = if place == 0 { "" } else { ", " };
            write!(f, "{comma}{} {}", node.server, node.state)?;
        }
        Ok(())
    }
}

/// Why there is no client.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum BuildError {
    /// No server was named.
    #[error("no server was named")]
    NoServers,
    /// More than 255 servers were named.
    #[error("a quorum has at most 255 members")]
    TooManyServers,
    /// An address is none that this client can connect to. Nothing of it is repeated: it may hold a password.
    #[error("address {position}: {why}")]
    Address {
        /// Which one, counted from 1 in the order in which they were given.
        position: usize,
        /// What is wrong with it.
        why: String,
    },
    /// Two addresses lead to one server, which would vote twice.
    #[error("{0} and {1} are the same server, which would vote twice")]
    SameServer(Arc<str>, Arc<str>),
    /// So many servers were reached and cannot take part (no module, no permission) that there is no majority without
    /// them. Reported are they alone.
    #[error("cannot take part: {0}")]
    Unusable(Report),
    /// An option is out of its range.
    #[error("{0}")]
    Option(String),
}

/// Why a lock was not obtained. Nothing is held, and what some masters granted is on its way back.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AcquireError {
    /// Somebody else has it: enough masters could vote, and too many refused until the wait was over.
    #[error("{resource} is taken ({report})")]
    Taken {
        /// What was asked for.
        resource: String,
        /// What each master said in the last round.
        report: Report,
    },
    /// Waiting would close a cycle of tokens that wait for each other.
    #[error("waiting for {resource} would be a deadlock ({report})")]
    Deadlock {
        /// What was asked for.
        resource: String,
        /// What each master said; [`NodeState::Deadlock`] tells the cycle.
        report: Report,
    },
    /// Too many masters are down, silent, in grace or off the clock: nobody can get it at present.
    #[error("no quorum for {resource} ({report})")]
    QuorumImpossible {
        /// What was asked for.
        resource: String,
        /// What each master said in the last round.
        report: Report,
    },
    /// A majority granted, but so late that nothing of the lease was left: the ttl is too short for this network.
    #[error("{resource} was granted too late to be of use ({report})")]
    TooLate {
        /// What was asked for.
        resource: String,
        /// What each master said in the last round.
        report: Report,
    },
    /// What was asked for makes no sense to the servers: a ttl or a delay above their `dlock.max-ttl`, a key that holds
    /// something else.
    #[error("{resource} cannot be asked for like that ({report})")]
    Misuse {
        /// What was asked for.
        resource: String,
        /// What each master said.
        report: Report,
    },
    /// Of several locks, one was lost while the others were waited for.
    #[error("{resource} was lost while the other locks were waited for: {why}")]
    LostMeanwhile {
        /// Which one.
        resource: String,
        /// Why.
        why: Lost,
    },
    /// An option is out of its range, or does not go with the number of servers.
    #[error("{0}")]
    Option(String),
}

impl AcquireError {
    /// What each master said in the last round; None where none was asked.
    pub fn report(&self) -> Option<&Report> {
        match self {
            AcquireError::Taken { report, .. }
            | AcquireError::Deadlock { report, .. }
            | AcquireError::QuorumImpossible { report, .. }
            | AcquireError::TooLate { report, .. }
            | AcquireError::Misuse { report, .. } => Some(report),
            AcquireError::LostMeanwhile { .. } | AcquireError::Option(_) => None,
        }
    }
}

/// Why a lease was not set anew.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ExtendError {
    /// The hold is over: its validity ended, or too many masters do not hold it any more.
    #[error("the hold is over ({0})")]
    Lost(Report),
    /// What was asked for makes no sense to the servers: a ttl above their `dlock.max-ttl`. The hold goes on to the end
    /// it had.
    #[error("the lease cannot be asked for like that ({0})")]
    Misuse(Report),
    /// Too few masters answered: the hold goes on to the end it had, and extending may be tried again.
    #[error("the lease was not set anew ({0})")]
    Unconfirmed(Report),
    /// An option is out of its range.
    #[error("{0}")]
    Option(String),
}

/// Why a release is not certain.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ReleaseError {
    /// So many masters did not hold it any more that the hold was over before it was released.
    #[error("was not held any more ({0})")]
    NotHeld(Report),
    /// Too few masters answered in time. The others are told as soon as they can be reached, for as long as the
    /// client's clean-up lasts; the lease ends what they still hold.
    #[error("the release was not confirmed ({0})")]
    Unconfirmed(Report),
}

/// Why a question had no answer from a majority.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("too few servers answered ({0})")]
pub struct NoQuorum(pub Report);

/// Why a hold was lost.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Lost {
    /// Its time is about to be over: it was not to be renewed, or had been held for its longest time.
    #[error("its time is over")]
    Ended,
    /// It was not renewed in time.
    #[error("it was not renewed in time ({0})")]
    NotRenewed(Report),
    /// So many masters do not hold it any more that no majority can: broken by an operator, deleted, forgotten.
    #[error("it was taken away ({0})")]
    TakenAway(Report),
    /// The connection that an ephemeral hold lives on has closed.
    #[error("its connection closed")]
    Disconnected,
}
