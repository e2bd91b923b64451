//! A wait in line at one master, on a connection of its own.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::inspect::{Place, Waiting};
use crate::lease::Instant;
use crate::node::{Connection, Lane, Reply};
use crate::quorum::{Failure, Vote};
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
        let connection = match self.connect().await {
            Ok(connection) => connection,
            Err(failure) => return Vote::Failed(failure),
        };
        let command = self.wish.acquire(Some(block(queueing.until)));
        let connection = self.own.get_or_init(|| connection);
        let answer = tokio::select! {
            answer = connection.ask(&command) => answer,
            () = self.look_on(&queueing) => None,
        };
        self.answered.store(answer.is_some(), Ordering::Relaxed);
        let vote = answer.map_or(Reply::Silence, Reply::Said).acquired();
        self.lane.note(&vote);
        vote
    }

    /// An ephemeral hold lives on the connection that waited for it; any other leaves that when it has been granted.
    async fn connect(&self) -> Result<Connection, Failure> {
        match self.lane.connection().filter(|_| self.wish.ephemeral) {
            Some(connection) => Ok(connection),
            None => self.lane.node.own_connection().await.map_err(Failure::from),
        }
    }

    /// Returns when the master has been silent for too long, or its answer is overdue.
    async fn look_on(&self, queueing: &Queueing) {
        let node = &self.lane.node;
        let mut misses = 0;
        let mut place = None;
        while misses < MISSES {
            sleep(LOOK).await;
            if queueing.until.is_some_and(|until| now().saturating_since(until) > node.limit) {
                return;
            }
            let shared = Lane::new(node.clone());
            let reply = match &queueing.told {
                Some(_) => {
                    shared.ask(&request::waiters(&self.wish.resource, LOOKED_AT), None, node.limit).await
                }
                None => {
                    shared.ask(&request::holds(&self.wish.resource, &self.wish.token), None, node.limit).await
                }
            };
            misses = if matches!(reply, Reply::Said(_)) { 0 } else { misses + 1 };
            if let (Some(told), Ok(line)) = (&queueing.told, reply.found(reading::line)) {
                self.tell(told, &line, &mut place);
            }
        }
    }

    fn tell(&self, told: &Told, line: &[Waiting], place: &mut Option<u64>) {
        let me = reading::shown(self.wish.token.as_bytes());
        let Some(index) = line.iter().position(|waiting| waiting.token == me) else { return };
        let position = index as u64 + 1;
        if place.replace(position) != Some(position) {
            let waited = Duration::from_millis(line[index].waited_ms);
            told(Place { server: self.lane.node.name.clone(), position, waited });
        }
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
                _ = own.ask(&release) => {}
                () = out_of_line => {}
            }
        };
        let _ = timeout(self.lane.node.connection_limit(), behind).await;
    }
}

/// BLOCK's argument for a wait `until` then: at least 1 ms, since 0 is for ever.
fn block(until: Option<Instant>) -> dlock_core::Wait {
    let Some(until) = until else { return dlock_core::Wait::Forever };
    let ms = until.saturating_since(now()).as_millis().clamp(1, dlock_core::Wait::MAX_MILLIS.into());
    dlock_core::Wait::Millis(ms as u64)
}
