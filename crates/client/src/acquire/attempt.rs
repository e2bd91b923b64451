//! An acquisition from the first question to the last: rounds, the line, backoff.

use dlock_protocol::Token;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

use crate::acquire::line::{OnPosition, Queueing};
use crate::acquire::patience::Patience;
use crate::acquire::round::{Acquired, Failed, Round, Start};
use crate::backoff::Backoff;
use crate::error::{AcquireError, NodeState, Report};
use crate::lease::Lease;
use crate::node::Connection;
use crate::quorum::{Failure, Loss, Member, Plan, Refusal, Vote};
use crate::reading::shown;
use crate::request::{LockRequest, fresh_token};
use crate::service::{Channels, Service};

/// Whoever the line has let through finds some votes given away, for a moment, to those who are about to give up, or a
/// release still on its way: so many tries more, after backoff that begin with a brief one.
const BRIEF_TRIES: u8 = 8;

/// What is wanted.
pub(crate) struct Attempt {
    pub(crate) service: Arc<Service>,
    pub(crate) resource: Vec<u8>,
    /// With a token, there is one round; without, each round has a fresh one.
    pub(crate) asked: dlock_protocol::LockRequest<Option<Token>>,
    pub(crate) lease: Lease,
    pub(crate) fenced: bool,
    pub(crate) patience: Patience,
    pub(crate) told: Option<OnPosition>,
    pub(crate) outage: Option<Outage>,
}

/// Is called when too few masters can vote and that goes on to be waited for.
pub(crate) type Outage = Arc<dyn Fn(&Report) + Send + Sync>;

/// The longest pause between two rounds while masters are missing.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(2);

impl Attempt {
    pub(crate) async fn run(self) -> Result<Acquired, AcquireError> {
        let own = self.own_connection().await?;
        // Who brings a token has one round, so that must be the one in line.
        let straight = self.asked.token.is_some() || self.service.contended.contains(&self.resource);
        let mut line = (self.waits() && straight).then(|| self.service.line_order());
        let retry = self.service.retry;
        let mut backoff = Backoff::new(retry.pause, Duration::from_secs(10));
        let mut outage = Backoff::new(retry.pause, LONGEST_OUTAGE_PAUSE);
        let (mut failed_lines, mut told) = (0, false);
        // A quorum that was never there may never come: its addresses may be wrong.
        let mut seen = self.service.contended.contains(&self.resource);
        loop {
            let failed = match self.round(line.as_deref(), own.clone()).run().await {
                Ok(acquired) => return Ok(acquired),
                Err(failed) => failed,
            };
            if self.is_final(&failed) {
                return Err(self.error(failed));
            }
            let was_in_line = line.take().is_some();
            let grace = self.service.grace(&failed.votes);
            seen |= failed.loss != Loss::Impossible || grace.is_some();
            let pause = match (failed.loss, grace) {
                (Loss::Taken, _) if !was_in_line => {
                    self.service.contended.note(&self.resource);
                    line = Some(failed.line(self.service.line_order()));
                    continue;
                }
                (Loss::Impossible, Some(left)) => left + backoff.next(),
                (Loss::Impossible, None) if was_in_line && failed_lines < retry.times => {
                    failed_lines += 1;
                    outage.next()
                }
                (Loss::Impossible, None) => {
                    if !seen && self.patience.end().is_none() {
                        return Err(self.error(failed));
                    }
                    if !std::mem::replace(&mut told, true) {
                        self.outage.iter().for_each(|outage| outage(&failed.report));
                    }
                    outage.next()
                }
                // Not at once, or who lost to others would only get in their way again.
                (Loss::Taken | Loss::TooLate, _) => backoff.next(),
            };
            match self.patience.allows(pause) {
                Some(pause) => sleep(pause).await,
                None => return Err(self.error(failed)),
            }
        }
    }

    fn round(&self, line: Option<&[Member]>, own: Option<Connection>) -> Round {
        let token = self.asked.token.clone().unwrap_or_else(fresh_token);
        let asked = self.asked.with(token, self.asked.label.clone());
        let request = LockRequest { resource: self.resource.clone(), asked };
        let channels: Channels = self.service.channels();
        if let Some(own) = own {
            channels[0].take(own);
        }
        let (quorum, retries) = (self.service.quorum, self.service.retry.times);
        let mut plan = Plan { quorum, lease: self.lease, fenced: self.fenced, retries };
        let start = match line {
            Some(order) => {
                plan.retries = retries.saturating_add(BRIEF_TRIES);
                // Who brings a token has no other one to try with.
                let beside = (quorum.majority() > 1 && self.asked.token.is_none()).then_some(plan);
                let (until, told) = (self.patience.end(), self.told.clone());
                Start::InLine(order, Queueing { until, told, beside })
            }
            None => Start::AtOnce(self.service.line_order().first().copied().filter(|_| self.waits())),
        };
        Round::begin(&self.service, plan, request, channels, start, self.patience)
    }

    fn waits(&self) -> bool {
        !matches!(self.patience, Patience::None)
    }

    /// An ephemeral hold lives on a connection of its own.
    async fn own_connection(&self) -> Result<Option<Connection>, AcquireError> {
        if !self.asked.ephemeral {
            return Ok(None);
        }
        let mut backoff = Backoff::new(self.service.retry.pause, Duration::from_secs(10));
        let mut left = self.service.retry.times;
        loop {
            match self.service.nodes[0].own_connection().await {
                Ok(connection) => return Ok(Some(connection)),
                Err(_) if left > 0 => left -= 1,
                Err(connect_error) => {
                    let state = NodeState::from(&Vote::<()>::Failed(Failure::from(connect_error)));
                    let (resource, report) = (shown(&self.resource), self.service.report_of([state]));
                    return Err(AcquireError::QuorumImpossible { resource, report });
                }
            }
            sleep(backoff.next()).await;
        }
    }

    /// Whether there is no sense in another round, or no right to it.
    fn is_final(&self, failed: &Failed) -> bool {
        self.asked.token.is_some()
            || failed.loss == Loss::TooLate
            || self.patience.is_over()
            || failed.refused(|why| matches!(why, Refusal::QueueFull | Refusal::Deadlock(_)))
            || self.service.quorum.is_misuse(failed.votes.iter().flatten())
    }

    /// Another task of the same owner is acquiring it.
    pub(crate) fn taken_by_ourselves(&self) -> AcquireError {
        let unasked = self.service.nodes.iter().map(|_| NodeState::Unasked);
        AcquireError::Taken { resource: shown(&self.resource), report: self.service.report_of(unasked) }
    }

    fn error(&self, failed: Failed) -> AcquireError {
        let resource = shown(&self.resource);
        let deadlock = failed.refused(|why| matches!(why, Refusal::Deadlock(_)));
        let misuse = self.service.quorum.is_misuse(failed.votes.iter().flatten());
        let report: Report = failed.report;
        match failed.loss {
            _ if misuse => AcquireError::Misuse { resource, report },
            _ if deadlock => AcquireError::Deadlock { resource, report },
            Loss::Taken => AcquireError::Taken { resource, report },
            Loss::Impossible => AcquireError::QuorumImpossible { resource, report },
            Loss::TooLate => AcquireError::TooLate { resource, report },
        }
    }
}

impl Failed {
    fn refused(&self, which: impl Fn(&Refusal) -> bool) -> bool {
        self.votes.iter().flatten().any(|vote| matches!(vote, Vote::Refused(why) if which(why)))
    }

    /// Those of `order` at which waiting makes sense.
    fn line(&self, order: Vec<Member>) -> Vec<Member> {
        let reachable = |member: &Member| {
            !matches!(
                self.votes[usize::from(member.0)],
                Some(Vote::Failed(_) | Vote::Unknown | Vote::Refused(Refusal::Grace(_)))
            )
        };
        order.into_iter().filter(reachable).collect()
    }
}
