//! An attempt to acquire a lock, from the first request to the last: one round after the other.

use dlock_protocol::Token;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

use crate::acquire::course::{Course, Next, Turn};
use crate::acquire::deadline::Deadline;
use crate::acquire::durable::Durable;
use crate::acquire::queue::{OnPosition, Queueing, Stay};
use crate::acquire::round::{Failed, NewHold, Round, Start};
use crate::backoff::Backoff;
use crate::error::{AcquireError, NodeState, Report};
use crate::guard::release::Releases;
use crate::node::{ConnectError, Connection};
use crate::reading::shown;
use crate::request::{LockRequest, fresh_token};
use crate::service::Service;
use dlock_quorum::Lease;
use dlock_quorum::{FailureReason, Plan, Refusal, Vote};

/// A granted waiter may find that some votes are briefly held by clients about to give up, or that a release
/// is still on its way: it gets this many more tries, with a backoff of brief pauses.
const BRIEF_TRIES: u8 = 8;

/// The longest pause between two rounds.
pub(super) const LONGEST_PAUSE: Duration = Duration::from_secs(10);

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
            let failed = match self.try_once(&course, &mut own).await {
                Ok(hold) => {
                    match hold.next_queue {
                        Some(queue) if hold.refused_there => {
                            self.service.look_for_others(hold.request.clone(), queue);
                        }
                        Some(queue) => self.service.note_queue(&self.resource, queue),
                        None => {}
                    }
                    return Ok(hold);
                }
                Err(failed) => failed,
            };
            if let Some(pause) = course.split(&failed, &self).await {
                sleep(pause).await;
                continue;
            }
            if self.is_final(&failed) {
                return self.last_round(failed).await.map_err(|failed| self.error(failed));
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

    /// Asks all members once more after a wait that ended in the queue of one, whose answer is no majority's:
    /// "taken" is said only if a majority could vote. A hold that the caller gave a token for is not acquired
    /// by another one.
    async fn last_round(&self, failed: Failed) -> Result<NewHold, Failed> {
        let service = &self.service;
        let answered = failed.votes.iter().flatten().count();
        let is_decided = answered >= service.quorum.majority()
            || failed.refused(|why| matches!(why, Refusal::QueueFull | Refusal::Deadlock(_)));
        if failed.reason != FailureReason::Taken || !self.waits() || is_decided {
            return Err(failed);
        }
        let asked = self.asked.with(fresh_token(), self.asked.label.clone(), self.asked.owner.clone());
        let request = LockRequest { resource: self.resource.clone(), asked };
        let plan = Plan { quorum: service.quorum, lease: self.lease, fenced: self.fenced, retries: 0 };
        let (order, channels) = (service.queue_order(&self.resource), service.channels());
        let round = Round::begin(service, plan, request, channels, &order, Start::AtOnce, self.deadline);
        match round.run().await {
            Ok(hold) if self.asked.token.is_some() => {
                let release = hold.request.release();
                drop(Releases::new(service, &hold.channels, release, hold.request.ttl()));
                Err(failed)
            }
            ended => ended,
        }
    }

    /// A round, over the connection that an ephemeral hold lives on.
    async fn try_once(&self, course: &Course, own: &mut Option<Connection>) -> Result<NewHold, Failed> {
        if self.asked.ephemeral && !own.as_ref().is_some_and(Connection::is_good) {
            let opened = self.own_connection().await;
            *own = Some(opened.map_err(|why| Failed::unreached(&self.service, why))?);
        }
        self.round(course, own.clone()).run().await
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
                let stay = if may_move_on { Stay::WhileItMoves } else { Stay::Always };
                let (until, on_position) = (self.deadline.instant(), self.on_position.clone());
                Start::Queued(Queueing { until, on_position, stay })
            }
        };
        Round::begin(&self.service, plan, request, channels, &course.order, start, self.deadline)
    }

    pub(super) fn waits(&self) -> bool {
        !matches!(self.deadline, Deadline::NoWait)
    }

    /// As often as a round would ask.
    async fn own_connection(&self) -> Result<Connection, ConnectError> {
        let mut backoff = Backoff::new(self.service.retry.pause, LONGEST_PAUSE);
        let mut left = self.service.retry.times;
        loop {
            let opened = self.service.nodes[0].own_connection().await;
            let pause = self.deadline.limit(backoff.next()).filter(|_| opened.is_err() && left > 0);
            let Some(pause) = pause else { return opened };
            left -= 1;
            sleep(pause).await;
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

impl Failed {
    /// There was no connection to the only master.
    fn unreached(service: &Service, why: ConnectError) -> Failed {
        Failed {
            reason: FailureReason::Impossible,
            votes: vec![Some(Vote::Failed(why.clone().into()))],
            report: service.report_of([why.into()]),
            queue: None,
            next_queue: None,
            length: Duration::ZERO,
        }
    }

    pub(super) fn refused(&self, which: impl Fn(&Refusal) -> bool) -> bool {
        self.votes.iter().flatten().any(|vote| matches!(vote, Vote::Refused(why) if which(why)))
    }
}
