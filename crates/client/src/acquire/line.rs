//! A wait in line at one master, on a connection of its own.

use futures_util::future::OptionFuture;
use redis::Cmd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{sleep, timeout};

use crate::clock::{now, sleep_until};
use crate::error::NodeState;
use crate::inspect::Position;
use crate::lease::Instant;
use crate::node::{Channel, Connection, Reply};
use crate::quorum::{Failure, Plan, Vote};
use crate::reading;
use crate::request::{self, LockRequest};

/// So often is the master looked at during a wait: it may have fallen silent, and the place in line changes.
const LOOK: Duration = Duration::from_millis(500);
/// So many looks in vain, and the master counts as silent.
const MISSES: u32 = 2;
/// How much of a line is looked at for one's place.
const LOOKED_AT: u32 = 1000;

/// How long to wait, and who is told about the place in line.
#[derive(Clone)]
pub(crate) struct Queueing {
    /// None: for ever.
    pub(crate) until: Option<Instant>,
    pub(crate) told: Option<OnPosition>,
    /// How the next in line tries beside it; None: not at all.
    pub(crate) beside: Option<Plan>,
}

/// Is called with the place in line.
pub(crate) type OnPosition = Arc<dyn Fn(Position) + Send + Sync>;

/// A place in the line of one master.
pub(crate) struct Stand {
    channel: Arc<Channel>,
    request: Arc<LockRequest>,
    own: OnceLock<Connection>,
    answered: AtomicBool,
}

impl Stand {
    pub(crate) fn new(channel: Arc<Channel>, request: Arc<LockRequest>) -> Stand {
        Stand { channel, request, own: OnceLock::new(), answered: AtomicBool::new(false) }
    }

    /// Waits until it is granted, or the wait is over, or the master does not answer any more.
    pub(crate) async fn wait(&self, queueing: Queueing) -> Vote {
        let overdue = queueing.until.map(|until| sleep_until(until + self.channel.node.limit));
        let connected = tokio::select! {
            connected = self.connect() => connected,
            Some(()) = OptionFuture::from(overdue) => Err(self.channel.node.not_yet().into()),
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(failure) => return Vote::Failed(failure),
        };
        let command = self.request.acquire(Some(block(queueing.until)));
        let connection = self.own.get_or_init(|| connection);
        let answer = tokio::select! {
            answer = connection.ask(&command) => answer,
            () = self.look_on(&queueing) => None,
        };
        if answer.is_some() {
            self.answered.store(true, Ordering::Relaxed);
            self.give_back(connection);
        }
        let vote = answer.map_or(Reply::Silence, Reply::Said).acquired();
        self.channel.note(&vote);
        vote
    }

    /// An ephemeral hold lives on the connection that waited for it; any other leaves that when it has been granted.
    async fn connect(&self) -> Result<Connection, Failure> {
        // Whoever does not answer others is not waited at.
        self.channel.node.reach().await?;
        match self.channel.connection().filter(|_| self.request.ephemeral) {
            Some(connection) => Ok(connection),
            None => self.channel.node.own_connection().await.map_err(Failure::from),
        }
    }

    fn give_back(&self, own: &Connection) {
        if !self.request.ephemeral {
            self.channel.node.give_back(own.clone());
        }
    }

    /// Returns when the master has been silent for too long, or its answer is overdue.
    async fn look_on(&self, queueing: &Queueing) {
        let limit = self.channel.node.limit;
        let mut misses = 0;
        let mut place = None;
        while misses < MISSES && queueing.until.is_none_or(|until| now().saturating_since(until) < limit) {
            sleep(LOOK).await;
            let waits = match &queueing.told {
                Some(told) => self.tell(told, &mut place).await,
                None => self.still_waits().await,
            };
            misses = if waits { 0 } else { misses + 1 };
        }
    }

    /// Whether the master answers, and has not granted it: that answer may have been lost with the connection.
    async fn still_waits(&self) -> bool {
        let question = request::holds(&self.request.resource, &self.request.token);
        match self.look(&question).await.found(reading::number) {
            Ok(counts) => counts == 0,
            // An error is an answer too: its user may have no right to look.
            Err(state) => !matches!(state, NodeState::Slow | NodeState::Down(_)),
        }
    }

    /// [`still_waits`](Self::still_waits), and tells at which place.
    async fn tell(&self, told: &OnPosition, place: &mut Option<u64>) -> bool {
        let question = request::waiters(&self.request.resource, LOOKED_AT);
        let Ok(line) = self.look(&question).await.found(reading::queue) else {
            return self.still_waits().await;
        };
        let me = reading::shown(self.request.token.as_bytes());
        let Some(index) = line.iter().position(|waiting| waiting.token == me) else {
            return self.still_waits().await;
        };
        let position = index as u64 + 1;
        if place.replace(position) != Some(position) {
            let waited = Duration::from_millis(line[index].waited_ms);
            told(Position { server: self.channel.node.name.clone(), position, waited });
        }
        true
    }

    async fn look(&self, question: &Cmd) -> Reply {
        Channel::new(self.channel.node.clone()).ask(question, None, self.channel.node.limit).await
    }

    /// Leaves the line of a master that does not answer: the connection closes with this.
    pub(crate) fn give_up(&self) {
        if self.own.get().is_some() && !self.answered.load(Ordering::Relaxed) {
            self.channel.lost_sight();
        }
    }

    /// Leaves the line for good: the token is not used any more.
    ///
    /// To close the connection would do for a waiter. But whoever is granted it while that is under way would hold it
    /// until the lease ends, so a RELEASE goes behind the ACQUIRE. It is carried out when the wait is over, which a RELEASE by
    /// another way brings about, once the ACQUIRE has arrived before it.
    pub(crate) async fn abandon(self: Arc<Self>) {
        let Some(own) = self.own.get().filter(|_| !self.answered.load(Ordering::Relaxed)) else { return };
        let release = self.request.release();
        let shared = Channel::new(self.channel.node.clone());
        let out_of_line = async {
            loop {
                shared.ask(&release, None, shared.node.limit).await;
                sleep(Duration::from_millis(5)).await;
            }
        };
        let behind = async {
            tokio::select! {
                answer = own.ask(&release) => answer.iter().for_each(|_| self.give_back(own)),
                () = out_of_line => {}
            }
        };
        let _ = timeout(self.channel.node.connection_limit(), behind).await;
    }
}

/// BLOCK's argument for a wait `until` then: at least 1 ms, since 0 is for ever.
fn block(until: Option<Instant>) -> dlock_protocol::Wait {
    let Some(until) = until else { return dlock_protocol::Wait::Forever };
    let ms = until.saturating_since(now()).as_millis().clamp(1, dlock_protocol::Wait::MAX_MILLIS.into());
    dlock_protocol::Wait::Millis(ms as u64)
}
