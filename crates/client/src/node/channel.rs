//! The way of one hold to one master.

use redis::{Cmd, Value};
use smallvec::SmallVec;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::time::{sleep, timeout};

use super::{ConnectError, Connection, Node, Reply, fresh_backoff};
use crate::error::NodeState;
use crate::quorum::{Refusal, Vote};

/// All requests of a hold to a master go over one connection as long as it lasts, so that none overtakes another: a
/// RELEASE that did would leave the hold behind.
#[derive(Debug)]
pub(crate) struct Channel {
    pub(crate) node: Arc<Node>,
    way: Mutex<Way>,
}

#[derive(Debug, Default)]
struct Way {
    connection: Option<Connection>,
    /// It is not to be replaced: the hold ends with it.
    only: bool,
    /// What was sent over it and has no answer yet.
    open: SmallVec<[Sent; 2]>,
    sent: u32,
    /// An earlier connection ended or fell silent before an answer: the master may still get to what it carried.
    adrift: bool,
    /// The shortest lease that the master may set when it does.
    may_yet_set: Option<Duration>,
    /// Whether the master held something for the token when it last answered.
    held: bool,
}

#[derive(Debug, Clone, Copy)]
struct Sent {
    number: u32,
    sets: Option<Duration>,
}

impl Channel {
    pub(crate) fn new(node: Arc<Node>) -> Channel {
        Channel { node, way: Mutex::default() }
    }

    /// Goes over this connection and no other one.
    pub(crate) fn take(&self, connection: Connection) {
        let mut way = self.way();
        (way.connection, way.only) = (Some(connection), true);
    }

    pub(crate) fn connection(&self) -> Option<Connection> {
        self.way().connection.clone()
    }

    /// Sends a request, which would set a lease of `sets`, and waits for the answer: `limit` at most for both.
    pub(crate) async fn ask(&self, command: &Cmd, sets: Option<Duration>, limit: Duration) -> Reply {
        let mut over = None;
        let asked = timeout(limit, async {
            let connection = self.current().await?;
            over = Some(connection.clone());
            Ok::<_, ConnectError>(self.ask_over(&connection, command, sets).await)
        });
        let asked = asked.await;
        match (asked, over) {
            (Ok(Ok(Some(answer))), _) => Reply::Said(answer),
            (Ok(Ok(None)), _) => Reply::Silence,
            (Ok(Err(connect_error)), _) => Reply::Unasked(connect_error.into()),
            (Err(_), Some(connection)) => {
                connection.was_silent();
                Reply::Silence
            }
            (Err(_), None) => Reply::Unasked(self.node.not_yet().into()),
        }
    }

    /// Sends the RELEASE behind what it takes back, and over another connection if that one hangs: for as long as a
    /// connection may take.
    pub(crate) async fn release(&self, command: &Cmd) -> Reply {
        let adrift = self.way().adrift;
        let first = self.release_once(command).await;
        if !adrift {
            return first;
        }
        // What came by another way may have been read in the same turn, behind this RELEASE. A next one is behind it.
        let second = self.release_once(command).await;
        if matches!(first, Reply::Said(Value::Int(1..))) { first } else { second }
    }

    async fn release_once(&self, command: &Cmd) -> Reply {
        if let Some(connection) = self.connection().filter(Connection::is_open)
            && let Ok(Some(answer)) =
                timeout(self.node.limit, self.ask_over(&connection, command, None)).await
        {
            return Reply::Said(answer);
        }
        self.way().only = false;
        let again = timeout(self.node.connection_limit(), async {
            let mut backoff = fresh_backoff();
            loop {
                match self.ask(command, None, self.node.limit).await {
                    said @ Reply::Said(_) => return said,
                    Reply::Unasked(_) | Reply::Silence => sleep(backoff.next()).await,
                }
            }
        });
        again.await.unwrap_or(Reply::Silence)
    }

    /// Whether the master may hold something for the token, or come to hold it by what is under way.
    pub(crate) fn may_hold(&self) -> bool {
        let way = self.way();
        way.held || way.adrift || !way.open.is_empty()
    }

    /// Takes note of what an answer said about the hold.
    pub(crate) fn note<G>(&self, vote: &Vote<G>) {
        match vote {
            Vote::Granted(_) => self.way().held = true,
            Vote::Refused(Refusal::Taken | Refusal::NotHeld) => self.way().held = false,
            // Says nothing about the hold: it may be there and only not to be confirmed.
            Vote::Refused(_) | Vote::Failed(_) | Vote::Unknown => {}
        }
    }

    /// Takes note that the token may hold something there, from some other time.
    pub(crate) fn assume_held(&self) {
        self.way().held = true;
    }

    /// Takes note that something was asked by another way, whose answer nobody waits for any more.
    pub(crate) fn lost_sight(&self) {
        self.way().adrift = true;
    }

    /// Whether a lease of `ttl` that the master has confirmed is certain to last so long: not where an older request
    /// that would set a shorter one may yet reach it by another connection.
    pub(crate) fn is_certain(&self, ttl: Duration) -> bool {
        self.way().may_yet_set.is_none_or(|shorter| ttl <= shorter)
    }

    /// How it is that no answer came.
    pub(crate) fn silence(&self) -> NodeState {
        match self.connection() {
            Some(connection) if !connection.is_open() => {
                NodeState::Down("the connection broke before the answer".into())
            }
            Some(_) => NodeState::Slow,
            None => self.node.connect_error().unwrap_or(NodeState::Slow),
        }
    }

    /// How it is that nothing was heard of it.
    pub(crate) fn unheard(&self) -> NodeState {
        let otherwise = if self.way().sent > 0 { NodeState::Unheard } else { NodeState::Unasked };
        self.node.connect_error().unwrap_or(otherwise)
    }

    async fn current(&self) -> Result<Connection, ConnectError> {
        {
            let way = self.way();
            match &way.connection {
                Some(connection) if connection.is_good() || (way.only && connection.is_open()) => {
                    return Ok(connection.clone());
                }
                Some(_) if way.only => return Err(ConnectError::down("its connection closed")),
                _ => {}
            }
        }
        let new = self.node.connection().await?;
        let mut way = self.way();
        if way.connection.as_ref().is_none_or(|old| !old.is(&new)) {
            let drifting = std::mem::take(&mut way.open);
            way.adrift |= !drifting.is_empty();
            way.may_yet_set = drifting.iter().filter_map(|sent| sent.sets).chain(way.may_yet_set).min();
            way.connection = Some(new.clone());
        }
        Ok(new)
    }

    async fn ask_over(
        &self,
        connection: &Connection,
        command: &Cmd,
        sets: Option<Duration>,
    ) -> Option<Value> {
        let number = {
            let mut way = self.way();
            way.sent += 1;
            let number = way.sent;
            way.open.push(Sent { number, sets });
            number
        };
        let answer = connection.ask(command).await?;
        // What was sent before it over the same connection was carried out before it.
        self.way().open.retain(|sent| sent.number > number);
        Some(answer)
    }

    fn way(&self) -> MutexGuard<'_, Way> {
        self.way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
