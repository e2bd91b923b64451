//! An attempt to acquire a lock, from the first request to the last: rounds, the wait queue, backoff.

use dlock_protocol::Token;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

use crate::acquire::deadline::Deadline;
use crate::acquire::durable::Durable;
use crate::acquire::queue::{OnPosition, Queueing};
use crate::acquire::round::{Failed, NewHold, Round, Start};
use crate::backoff::Backoff;
use crate::error::{AcquireError, NodeState, Report};
use crate::lease::Lease;
use crate::node::Connection;
use crate::quorum::{Failure, FailureReason, Member, Plan, Refusal, Vote};
use crate::reading::shown;
use crate::request::{LockRequest, fresh_token};
use crate::service::Service;

/// A granted waiter may find that some votes are briefly held by clients about to give up, or that a release
/// is still on its way: it gets this many more tries, with a backoff of brief pauses.
const BRIEF_TRIES: u8 = 8;

/// So often one that does not wait tries again while nobody has the lock.
const MAX_SPLIT_VOTES: u8 = 20;

/// The longest pause between two rounds.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause between two rounds while masters are missing.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(2);

/// What to acquire, with every option checked.
pub(crate) struct Attempt {
    pub(crate) service: Arc<Service>,
    pub(crate) resource: Vec<u8>,
    /// Each round has a token of its own, unless the caller gave one: then there is one round.
    pub(crate) asked: dlock_protocol::LockRequest<Option<Token>>,
    pub(crate) lease: Lease,
    pub(crate) fenced: bool,
    pub(crate) durable: Option<Durable>,
    pub(crate) deadline: Deadline,
    pub(crate) on_position: Option<OnPosition>,
    pub(crate) on_outage: Option<OnOutage>,
}

/// Called when too few masters can vote and the attempt keeps waiting for them.
pub(crate) type OnOutage = Arc<dyn Fn(&Report) + Send + Sync>;

impl Attempt {
    pub(crate) async fn run(self) -> Result<NewHold, AcquireError> {
        let mut own = None;
        let mut course = Course::of(&self);
        loop {
            if !own.as_ref().is_some_and(Connection::is_open) {
                own = self.own_connection().await?;
            }
            let failed = match self.round(&course, own.clone()).run().await {
                Ok(hold) => {
                    self.service.contended.note_queue(&self.resource, hold.next_queue);
                    return Ok(hold);
                }
                Err(failed) => failed,
            };
            if let Some(pause) = course.split(&failed, &self).await {
                sleep(pause).await;
                continue;
            }
            if course.may_be_own(&failed, &self).await {
                continue;
            }
            if self.is_final(&failed) {
                return Err(self.error(failed));
            }
            match course.after(&failed, &self) {
                Next::Round => {}
                Next::RoundAfter(pause) => match self.deadline.limit(pause) {
                    Some(pause) => sleep(pause).await,
                    None => return Err(self.error(failed)),
                },
                Next::Fail => return Err(self.error(failed)),
            }
        }
    }

    fn round(&self, course: &Course, own: Option<Connection>) -> Round {
        let token = self.asked.token.clone().unwrap_or_else(fresh_token);
        let asked = self.asked.with(token, self.asked.label.clone(), self.asked.owner.clone());
        let request = LockRequest { resource: self.resource.clone(), asked };
        let channels = self.service.channels();
        if let Some(own) = own {
            channels[0].pin(own);
        }
        let (quorum, retries) = (self.service.quorum, self.service.retry.times);
        let mut plan = Plan { quorum, lease: self.lease, fenced: self.fenced, retries };
        if !matches!(course.turn, Turn::None) {
            plan.retries = retries.saturating_add(BRIEF_TRIES);
        }
        let start = match course.turn {
            Turn::None => Start::AtOnce,
            Turn::InOrder => Start::InOrder,
            Turn::Queue => {
                // With a given token there is no second round.
                let may_move_on = quorum.majority() > 1 && self.asked.token.is_none();
                let (until, on_position) = (self.deadline.instant(), self.on_position.clone());
                Start::Queued(Queueing { until, on_position, may_move_on, is_upgrade: false })
            }
        };
        Round::begin(&self.service, plan, request, channels, &course.order, start, self.deadline)
    }

    fn waits(&self) -> bool {
        !matches!(self.deadline, Deadline::NoWait)
    }

    /// The connection that an ephemeral hold lives on.
    async fn own_connection(&self) -> Result<Option<Connection>, AcquireError> {
        if !self.asked.ephemeral {
            return Ok(None);
        }
        let mut backoff = Backoff::new(self.service.retry.pause, LONGEST_PAUSE);
        let mut left = self.service.retry.times;
        loop {
            match self.service.nodes[0].own_connection().await {
                Ok(connection) => return Ok(Some(connection)),
                Err(_) if left > 0 => left -= 1,
                Err(connect_error) => {
                    let state = NodeState::from(&Vote::<()>::Failed(Failure::from(connect_error)));
                    let (resource, report) = (self.resource(), self.service.report_of([state]));
                    return Err(AcquireError::QuorumImpossible { resource, report });
                }
            }
            sleep(backoff.next()).await;
        }
    }

    /// Whether another round makes no sense, or is not allowed.
    fn is_final(&self, failed: &Failed) -> bool {
        self.asked.token.is_some()
            || failed.reason == FailureReason::TooLate
            || self.deadline.has_passed()
            || failed.refused(|why| matches!(why, Refusal::QueueFull | Refusal::Deadlock(_)))
            || self.service.quorum.is_misuse(failed.votes.iter().flatten())
    }

    /// Another task of the same owner is acquiring it.
    pub(crate) fn taken_by_ourselves(&self) -> AcquireError {
        let unasked = self.service.nodes.iter().map(|_| NodeState::Unasked);
        AcquireError::Taken { resource: self.resource(), report: self.service.report_of(unasked) }
    }

    fn error(&self, failed: Failed) -> AcquireError {
        let resource = self.resource();
        let deadlock = failed.refused(|why| matches!(why, Refusal::Deadlock(_)));
        let misuse = self.service.quorum.is_misuse(failed.votes.iter().flatten());
        let report = failed.report;
        match failed.reason {
            _ if misuse => AcquireError::Misuse { resource, report },
            _ if deadlock => AcquireError::Deadlock { resource, report },
            FailureReason::Taken => AcquireError::Taken { resource, report },
            FailureReason::Impossible => AcquireError::QuorumImpossible { resource, report },
            FailureReason::TooLate => AcquireError::TooLate { resource, report },
        }
    }

    fn resource(&self) -> String {
        shown(&self.resource)
    }
}

/// How an attempt has gone so far, which decides what follows a failed round.
struct Course {
    turn: Turn,
    /// The masters at whose queues it waits, or whose queues it respects.
    order: Vec<Member>,
    split_votes: u8,
    /// Whether the client may still hold what it is giving back: what was granted to its earlier rounds, or
    /// to earlier locks of its.
    has_leftovers: bool,
    failed_queues: u8,
    majority: Majority,
    backoff: Backoff,
    outage_backoff: Backoff,
}

/// How the next round gets its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Turn {
    /// Not at all: it asks all masters at once.
    None,
    InOrder,
    Queue,
}

/// What is known of the majority of the masters.
enum Majority {
    /// It has never answered, and may never do so: the addresses may be wrong.
    NeverSeen,
    Seen,
    /// It was missing, and `on_outage` has been called.
    OutageReported,
}

enum Next {
    Round,
    RoundAfter(Duration),
    Fail,
}

impl Course {
    fn of(attempt: &Attempt) -> Course {
        let service = &attempt.service;
        let contended = service.contended.contains(&attempt.resource);
        // With a given token there is one round, so that one has to wait in the queue.
        let queued = attempt.waits() && (attempt.asked.token.is_some() || contended);
        // Who does not wait, overtakes nobody for long.
        let has_order = attempt.waits() || queued;
        Course {
            turn: if queued { Turn::Queue } else { Turn::None },
            order: if has_order { service.queue_order(&attempt.resource) } else { Vec::new() },
            split_votes: 0,
            has_leftovers: service.is_cleaning_up(),
            failed_queues: 0,
            majority: if contended { Majority::Seen } else { Majority::NeverSeen },
            backoff: Backoff::new(service.retry.pause, LONGEST_PAUSE),
            outage_backoff: Backoff::new(service.retry.pause, LONGEST_OUTAGE_PAUSE),
        }
    }

    /// The pause before the next try of one that does not wait, if nobody has the lock: those who tried at
    /// the same time each got a part of the votes. From now on they are asked for in order, so that one wins.
    async fn split(&mut self, failed: &Failed, attempt: &Attempt) -> Option<Duration> {
        let service = &attempt.service;
        let may_be_split = failed.reason == FailureReason::Taken
            && !attempt.waits()
            && service.quorum.majority() > 1
            && attempt.asked.token.is_none()
            && self.split_votes < MAX_SPLIT_VOTES;
        if !may_be_split || service.quorum.has_holder(&service.holders(&attempt.resource).await) {
            return None;
        }
        self.split_votes += 1;
        (self.turn, self.order) = (Turn::InOrder, service.queue_order(&attempt.resource));
        Some(rand::random_range(Duration::ZERO..=failed.length))
    }

    /// Whether a deadlock may be of the client's own making: what it was granted before bears the name of its
    /// owner until the release has arrived. Then the next round tells.
    async fn may_be_own(&mut self, failed: &Failed, attempt: &Attempt) -> bool {
        let deadlock = failed.refused(|why| matches!(why, Refusal::Deadlock(_)));
        let has_owner = attempt.asked.owner.is_some() && attempt.asked.token.is_none();
        if !deadlock || !has_owner || !self.has_leftovers {
            self.has_leftovers |= failed.votes.iter().any(|vote| !matches!(vote, Some(Vote::Refused(_))));
            return false;
        }
        self.has_leftovers = false;
        let limit = attempt.service.nodes[0].connection_limit();
        let _ = timeout(limit, attempt.service.flush()).await;
        true
    }

    fn after(&mut self, failed: &Failed, attempt: &Attempt) -> Next {
        let service = &attempt.service;
        let was_queued = std::mem::replace(&mut self.turn, Turn::None) == Turn::Queue;
        if was_queued {
            service.contended.note_queue(&attempt.resource, failed.next_queue);
        }
        self.order = service.queue_order(&attempt.resource);
        let grace = service.grace(&failed.votes);
        let answered = failed.reason != FailureReason::Impossible || grace.is_some();
        if answered && matches!(self.majority, Majority::NeverSeen) {
            self.majority = Majority::Seen;
        }
        match (failed.reason, grace) {
            (FailureReason::Taken, _) if !was_queued => {
                service.contended.note(&attempt.resource);
                self.turn = Turn::Queue;
                let is_reachable = |member: &Member| failed.is_reachable(*member);
                if self.order.iter().any(is_reachable) {
                    self.order.retain(is_reachable);
                }
                Next::Round
            }
            (FailureReason::Taken, _) if failed.next_queue.is_some() => {
                self.turn = Turn::Queue;
                Next::Round
            }
            // Not at once, or those who lost to each other would collide again.
            (FailureReason::Taken | FailureReason::TooLate, _) => Next::RoundAfter(self.backoff.next()),
            (FailureReason::Impossible, Some(left)) => Next::RoundAfter(left + self.backoff.next()),
            (FailureReason::Impossible, None) => {
                if was_queued && self.failed_queues < service.retry.times {
                    self.failed_queues += 1;
                } else if !self.report_outage(failed, attempt) {
                    return Next::Fail;
                }
                Next::RoundAfter(self.outage_backoff.next())
            }
        }
    }

    /// Reports the outage once. Returns false if there is no use in waiting for its end.
    fn report_outage(&mut self, failed: &Failed, attempt: &Attempt) -> bool {
        match self.majority {
            Majority::NeverSeen if attempt.deadline.instant().is_none() => return false,
            Majority::NeverSeen | Majority::Seen => {
                attempt.on_outage.iter().for_each(|on_outage| on_outage(&failed.report));
                self.majority = Majority::OutageReported;
            }
            Majority::OutageReported => {}
        }
        true
    }
}

impl Failed {
    fn refused(&self, which: impl Fn(&Refusal) -> bool) -> bool {
        self.votes.iter().flatten().any(|vote| matches!(vote, Vote::Refused(why) if which(why)))
    }

    /// Whether waiting at this master makes sense.
    fn is_reachable(&self, member: Member) -> bool {
        !matches!(
            self.votes[usize::from(member.0)],
            Some(Vote::Failed(_) | Vote::Unknown | Vote::Refused(Refusal::Grace(_)))
        )
    }
}
