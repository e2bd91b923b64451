//! What a master says about a resource.

use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeState;

/// What one master says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspected<T> {
    /// Where the master is: its address without user and password.
    pub server: Arc<str>,
    /// Its answer, or why there is none.
    #[serde(flatten)]
    pub answer: Answer<T>,
}

impl<T> Inspected<T> {
    /// What the master at this address says.
    pub fn new(server: impl Into<Arc<str>>, answer: Answer<T>) -> Self {
        Inspected { server: server.into(), answer }
    }
}

/// An answer, or why there is none.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Answer<T> {
    /// The answer.
    Found(T),
    /// Why there is none.
    Unanswered(NodeState),
}

impl<T> Answer<T> {
    pub(crate) fn of(answer: Result<T, NodeState>) -> Answer<T> {
        answer.map_or_else(Answer::Unanswered, Answer::Found)
    }

    /// The answer, if there is one.
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
    /// `exclusive`, `shared`, `permits`, or `free` while nobody holds it.
    pub mode: String,
    /// How many permits there are; 0 unless the mode is `permits`.
    pub permits: u64,
    /// The greatest fence of its holders; 0 while nobody holds it.
    pub fence: u64,
    /// Who holds it, a thousand of them at most.
    pub holders: Vec<Holder>,
    /// How many wait in the queue there.
    pub waiters: u64,
    /// The lock-delay that is left, in ms: nobody is granted it although nobody holds it.
    pub delay_ms: u64,
}

/// Who holds a resource on one master.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The token, as text; bytes that are none are escaped.
    pub token: String,
    /// The hold count.
    pub count: u64,
    /// The fence of its hold.
    pub fence: u64,
    /// What is left of its lease, in ms.
    pub left_ms: u64,
    /// The free text given with it.
    pub label: String,
    /// Whether it ends with its connection.
    pub ephemeral: bool,
    /// The number of its connection on that master; 0 where it is not known.
    pub client: u64,
    /// Where that connection comes from; empty where it is not known.
    pub address: String,
    /// The ms since its grant.
    pub held_ms: u64,
}

/// A lock of a master: see [`Client::list`](crate::Client::list).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Listed {
    /// The resource. Not as text: it may be asked about.
    #[serde(skip)]
    pub resource: Vec<u8>,
    /// As in [`Inspection::mode`].
    pub mode: String,
    /// How many hold it.
    pub holders: u64,
    /// How many wait for it.
    pub waiters: u64,
    /// What is left of its longest lease, in ms; None while nobody holds it.
    pub left_ms: Option<u64>,
    /// The ms since the first grant among its holders'.
    pub held_ms: u64,
}

/// Something that went wrong on a master: see [`Client::log`](crate::Client::log).
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
#[non_exhaustive]
pub struct Logged {
    /// Its number, which rises until the master starts anew.
    pub id: u64,
    /// When, in ms since 1970 by the clock of the master.
    pub time_ms: u64,
    /// What: `expired`, `broken`, `deadlock`.. as DLOCK.LOG names it.
    pub what: String,
    /// The database.
    pub db: u64,
    /// The resource, as text; bytes that are none are escaped.
    pub resource: String,
    /// The first bytes of the token, as text.
    pub token: String,
    /// The free text given with it.
    pub label: String,
    /// The number of its connection on that master; 0 where it is not known.
    pub client: u64,
    /// Where that connection comes from; empty where it is not known.
    pub address: String,
    /// The fence of the hold; 0 where there is none.
    pub fence: u64,
    /// The ms of the hold; None for a wait.
    pub held_ms: Option<u64>,
    /// The ms of the wait; None for a hold.
    pub waited_ms: Option<u64>,
}

/// Who waits for a resource on one master.
#[non_exhaustive]
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The number of its connection on that master; 0 where it waits without one.
    pub client: u64,
    /// The token, as text; bytes that are none are escaped.
    pub token: String,
    /// What it asks for: `exclusive`, `shared`, `permits`.
    pub mode: String,
    /// How long it has waited, in ms.
    pub waited_ms: u64,
    /// When its wait times out, in ms from now; None: never.
    pub left_ms: Option<u64>,
    /// The free text given with it.
    pub label: String,
}

/// A position in a wait queue.
#[non_exhaustive]
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The master whose queue it is.
    pub server: Arc<str>,
    /// 1 at the head.
    pub position: u64,
    /// How long the wait has lasted there.
    pub waited: Duration,
}
