//! What a master tells about a resource.

use serde::Serialize;
use std::sync::Arc;
use std::time::Duration;

use crate::error::NodeState;

/// What one master tells.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Inspected<T> {
    /// Where the master is: its address without user and password.
    pub server: Arc<str>,
    /// Its answer, or why there is none.
    #[serde(flatten)]
    pub answer: Answer<T>,
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
    /// The answer, if there is one.
    pub fn found(&self) -> Option<&T> {
        match self {
            Answer::Found(answer) => Some(answer),
            Answer::Unanswered(_) => None,
        }
    }
}

/// A resource as one master sees it.
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
    /// How many wait in line there.
    pub waiters: u64,
    /// For how long nobody is granted it although nobody holds it, in ms.
    pub delay_ms: u64,
}

/// Who holds a resource on one master.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The token, as text; bytes that are none are escaped.
    pub token: String,
    /// How often it entered.
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
}

/// Who waits in line for a resource on one master.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Waiting {
    /// The number of its connection on that master.
    pub client: u64,
    /// The token, as text; bytes that are none are escaped.
    pub token: String,
    /// What it asks for: `exclusive`, `shared`, `permits`.
    pub mode: String,
    /// For how long it has waited, in ms.
    pub waited_ms: u64,
    /// For how long it goes on waiting, in ms; None: for ever.
    pub left_ms: Option<u64>,
    /// The free text given with it.
    pub label: String,
}

/// A place in a line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Position {
    /// The master whose line it is.
    pub server: Arc<str>,
    /// 1 for who is next.
    pub position: u64,
    /// For how long it has been waited there.
    pub waited: Duration,
}
