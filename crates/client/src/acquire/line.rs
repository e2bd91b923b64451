//! A wait in line at one master, on a connection of its own.

use futures_util::future::OptionFuture;
use redis::Cmd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{sleep, timeout};

use crate::clock::{now, sleep_until};
use crate::error::NodeState;
use crate::inspect::Place;
use crate::lease::Instant;
use crate::node::{Connection, Lane, Reply};
use crate::quorum::{Failure, Plan, Vote};
use crate::reading;
use crate::request::{self, Wish};

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
    pub(crate) told: Option<Told>,
    /// How the next in line tries beside it; None: not at all.
    pub(crate) beside: Option<Plan>,
}

/// Is called with the place in line.
pub(crate) type Told = Arc<dyn Fn(Place) + Send + Sync>;

/// A place in the line of one master.
pub(crate) struct Stand {
    lane: Arc<Lane>,
    wish: Arc<Wish>,
    own: OnceLock<Connection>,
    answered: AtomicBool,
}

impl Stand {
    pub(crate) fn new(lane: Arc<Lane>, wish: Arc<Wish>) -> Stand {
        Stand { lane, wish, own: OnceLock::new(), answered: AtomicBool::new(false) }
    }

    /// Waits until it is granted, or the wait is over, or the master does not answer any more.
    pub(crate) async fn wait(&self, queueing: Queueing) -> Vote {
        let overdue = queueing.until.map(|until| sleep_until(until + self.lane.node.limit));
        let connected = tokio::select! {
            connected = self.connect() => connected,
            Some(()) = OptionFuture::from(overdue) => Err(self.lane.node.not_yet().into()),
        };
        let connection = match connected {
            Ok(connection) => connection,
            Err(failure) => return Vote::Failed(failure),
        };
        let command = self.wish.acquire(Some(block(queueing.until)));
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
        self.lane.note(&vote);
        vote
    }

    /// An ephemeral hold lives on the connection that waited for it; any other leaves that when it has been granted.
    async fn connect(&self) -> Result<Connection, Failure> {
        // Whoever does not answer others is not waited at.
        self.lane.node.reach().await?;
        match self.lane.connection().filter(|_| self.wish.ephemeral) {
            Some(connection) => Ok(connection),
            None => self.lane.node.own_connection().await.map_err(Failure::from),
        }
    }

    fn give_back(&self, own: &Connection) {
        if !self.wish.ephemeral {
            self.lane.node.give_back(own.clone());
        }
    }

    /// Returns when the master has been silent for too long, or its answer is overdue.
    async fn look_on(&self, queueing: &Queueing) {
        let limit = self.lane.node.limit;
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
        let question = request::holds(&self.wish.resource, &self.wish.token);
        match self.look(&question).await.found(reading::number) {
            Ok(counts) => counts == 0,
            // An error is an answer too: its user may have no right to look.
            Err(state) => !matches!(state, NodeState::Slow | NodeState::Down(_)),
        }
    }

    /// [`still_waits`](Self::still_waits), and tells at which place.
    async fn tell(&self, told: &Told, place: &mut Option<u64>) -> bool {
        let question = request::waiters(&self.wish.resource, LOOKED_AT);
        let Ok(line) = self.look(&question).await.found(reading::line) else {
            return self.still_waits().await;
        };
        let me = reading::shown(self.wish.token.as_bytes());
        let Some(index) = line.iter().position(|waiting| waiting.token == me) else {
            return self.still_waits().await;
        };
        let position = index as u64 + 1;
        if place.replace(position) != Some(position) {
            let waited = Duration::from_millis(line[index].waited_ms);
            told(Place { server: self.lane.node.name.clone(), position, waited });
        }
        true
    }

    async fn look(&self, question: &Cmd) -> Reply {
        Lane::new(self.lane.node.clone()).ask(question, None, self.lane.node.limit).await
    }

    /// Leaves the line of a master that does not answer: the connection closes with this.
    pub(crate) fn give_up(&self) {
        if self.own.get().is_some() && !self.answered.load(Ordering::Relaxed) {
            self.lane.lost_sight();
        }
    }

    /// Leaves the line for good: the token is not used any more.
    ///
    /// To close the connection would do for a waiter. But whoever is granted it while that is under way would hold it
    /// until the lease ends, so a RELEASE goes behind the ACQUIRE. It is carried out when the wait is over, which a RELEASE by
    /// another way brings about, once the ACQUIRE has arrived before it.
    pub(crate) async fn abandon(self: Arc<Self>) {
        let Some(own) = self.own.get().filter(|_| !self.answered.load(Ordering::Relaxed)) else { return };
        let release = self.wish.release();
        let shared = Lane::new(self.lane.node.clone());
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
        let _ = timeout(self.lane.node.connection_limit(), behind).await;
    }
}

/// BLOCK's argument for a wait `until` then: at least 1 ms, since 0 is for ever.
fn block(until: Option<Instant>) -> dlock_protocol::Wait {
    let Some(until) = until else { return dlock_protocol::Wait::Forever };
    let ms = until.saturating_since(now()).as_millis().clamp(1, dlock_protocol::Wait::MAX_MILLIS.into());
    dlock_protocol::Wait::Millis(ms as u64)
}
