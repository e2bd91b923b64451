//! A waiter in the queue of one master, on a connection of its own.

use futures_util::future::OptionFuture;
use redis::Cmd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::time::{sleep, timeout};

use crate::backoff::Backoff;
use crate::clock::{now, sleep_until};
use crate::error::NodeState;
use crate::inspect::Position;
use crate::lease::Instant;
use crate::node::{Channel, Connection, Reply};
use crate::quorum::{Failure, Refusal, Vote};
use crate::reading;
use crate::request::{self, LockRequest};
use crate::service::Service;

/// How often, at least, a waiter checks on the master: it may have fallen silent, and the position changes.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);
/// After so many checks that find a hold, the grant was lost with the connection.
const MAX_GRANTED: u32 = 2;
/// How many waiters to read in search of one's position.
const MAX_WAITERS_READ: u32 = 1000;

/// How to wait in the queue.
#[derive(Clone)]
pub(crate) struct Queueing {
    /// `None`: for ever.
    pub(crate) until: Option<Instant>,
    pub(crate) on_position: Option<OnPosition>,
    /// Whether to leave a queue that does not move.
    pub(crate) may_move_on: bool,
}

/// Called with the position in the queue.
pub(crate) type OnPosition = Arc<dyn Fn(Position) + Send + Sync>;

/// A waiter in the queue of one master.
pub(crate) struct Waiter {
    service: Arc<Service>,
    channel: Arc<Channel>,
    request: Arc<LockRequest>,
    own: OnceLock<Connection>,
    answered: AtomicBool,
}

/// What a check finds.
enum Seen {
    Waiting,
    /// It was granted, and the answer should be on its way.
    Holding,
    Silence,
}

impl Waiter {
    pub(crate) fn new(service: Arc<Service>, channel: Arc<Channel>, request: Arc<LockRequest>) -> Waiter {
        Waiter { service, channel, request, own: OnceLock::new(), answered: AtomicBool::new(false) }
    }

    /// Waits until the lock is granted, the wait times out, the master stops answering, or its queue does not
    /// move.
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
            () = self.watch(&queueing) => None,
            () = self.until_stuck(), if queueing.may_move_on => return Vote::Refused(Refusal::Taken),
        };
        if answer.is_some() {
            self.answered.store(true, Ordering::Relaxed);
            self.give_back(connection);
        }
        let vote = answer.map_or(Reply::Silence, Reply::Said).acquired();
        self.channel.note(&vote);
        vote
    }

    /// An ephemeral hold lives on the connection that waited for it; any other leaves it once granted.
    async fn connect(&self) -> Result<Connection, Failure> {
        // No use in waiting at a master that does not answer others.
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
    async fn watch(&self, queueing: &Queueing) {
        let limit = self.channel.node.limit;
        let mut granted = 0;
        let mut position = None;
        let is_due = || queueing.until.is_none_or(|until| now().saturating_since(until) < limit);
        while granted < MAX_GRANTED && is_due() {
            sleep(CHECK_INTERVAL.min(limit)).await;
            let seen = match &queueing.on_position {
                Some(on_position) => self.report_position(on_position, &mut position).await,
                None => self.still_waits().await,
            };
            match seen {
                Seen::Waiting => granted = 0,
                Seen::Holding => granted += 1,
                Seen::Silence => return,
            }
        }
    }

    /// Returns when those who hold the lock there hold it nowhere else. Found twice in a row: a hold begins
    /// and ends at one master after the other.
    async fn until_stuck(&self) {
        let limit = self.channel.node.limit;
        let mut backoff = Backoff::new(limit / 8, CHECK_INTERVAL * 2);
        let mut before: Option<Vec<String>> = None;
        loop {
            sleep(backoff.next()).await;
            let mut holders = self.service.holders(&self.request.resource).await;
            let queue = self.channel.node.member;
            let stuck = !self.service.quorum.may_move(queue, &holders);
            let there = holders[usize::from(queue.0)].take().filter(|_| stuck);
            if there.is_some() && there == before {
                return;
            }
            before = there;
        }
    }

    async fn still_waits(&self) -> Seen {
        let question = request::holds(&self.request.resource, &self.request.token);
        match self.read(&question).await.found(reading::number) {
            Ok(0) => Seen::Waiting,
            Ok(_) => Seen::Holding,
            Err(NodeState::Slow | NodeState::Down(_)) => Seen::Silence,
            // An error is an answer too: the user may lack the permission.
            Err(_) => Seen::Waiting,
        }
    }

    /// [`still_waits`](Self::still_waits), and reports the position if it has changed.
    async fn report_position(&self, on_position: &OnPosition, last: &mut Option<u64>) -> Seen {
        let question = request::waiters(&self.request.resource, MAX_WAITERS_READ);
        let Ok(queue) = self.read(&question).await.found(reading::queue) else {
            return self.still_waits().await;
        };
        let me = reading::shown(self.request.token.as_bytes());
        let Some(index) = queue.iter().position(|waiting| waiting.token == me) else {
            return self.still_waits().await;
        };
        let position = index as u64 + 1;
        if last.replace(position) != Some(position) {
            let waited = Duration::from_millis(queue[index].waited_ms);
            on_position(Position { server: self.channel.node.name.clone(), position, waited });
        }
        Seen::Waiting
    }

    async fn read(&self, question: &Cmd) -> Reply {
        Channel::new(self.channel.node.clone()).ask(question, None, self.channel.node.limit).await
    }

    /// Leaves the queue of a master that does not answer: the connection closes when this is dropped.
    pub(crate) fn give_up(&self) {
        if self.own.get().is_some() && !self.answered.load(Ordering::Relaxed) {
            self.channel.note_orphan();
        }
    }

    /// Leaves the queue for good: the token is not used again.
    ///
    /// Closing the connection would remove a waiter. But a grant made meanwhile would last until the lease
    /// ends, so a RELEASE follows the ACQUIRE on the same connection. It runs once the wait has ended, which
    /// a RELEASE on another connection brings about as soon as the ACQUIRE has arrived.
    pub(crate) async fn abandon(self: Arc<Self>) {
        let Some(own) = self.own.get().filter(|_| !self.answered.load(Ordering::Relaxed)) else { return };
        let release = self.request.release();
        let shared = Channel::new(self.channel.node.clone());
        let leave_queue = async {
            loop {
                shared.ask(&release, None, shared.node.limit).await;
                sleep(Duration::from_millis(5)).await;
            }
        };
        let release_after_acquire = async {
            tokio::select! {
                answer = own.ask(&release) => answer.iter().for_each(|_| self.give_back(own)),
                () = leave_queue => {}
            }
        };
        let _ = timeout(self.channel.node.connection_limit(), release_after_acquire).await;
    }
}

/// The argument of BLOCK for a wait `until` then: at least 1 ms, since 0 means for ever.
fn block(until: Option<Instant>) -> dlock_protocol::Wait {
    let Some(until) = until else { return dlock_protocol::Wait::Forever };
    let ms = until.saturating_since(now()).as_millis().clamp(1, dlock_protocol::Wait::MAX_MILLIS.into());
    dlock_protocol::Wait::Millis(ms as u64)
}
