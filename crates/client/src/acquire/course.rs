//! What follows a failed round of an attempt: the wait queue, backoff, an outage. Safety does not depend on
//! it, as each round has a token of its own: what the model checker does not see here can only cost time.

use std::time::Duration;

use crate::acquire::attempt::{Attempt, LONGEST_PAUSE};
use crate::acquire::round::Failed;
use crate::backoff::Backoff;
use dlock_quorum::{FailureReason, Member, Refusal, Vote};

/// So often one that does not wait tries again while nobody has the lock.
const MAX_SPLIT_VOTES: u8 = 20;

/// The longest pause between two rounds while masters are missing.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(2);

/// How an attempt has gone so far, which decides what follows a failed round.
pub(super) struct Course {
    pub(super) turn: Turn,
    /// The masters at whose queues it waits, or whose queues it respects.
    pub(super) order: Vec<Member>,
    split_votes: u8,
    failed_queues: u8,
    majority: Majority,
    backoff: Backoff,
    outage_backoff: Backoff,
}

/// How the next round gets its turn.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
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

pub(super) enum Next {
    Round,
    RoundAfter(Duration),
    Fail,
}

impl Course {
    pub(super) fn of(attempt: &Attempt) -> Course {
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
            failed_queues: 0,
            majority: if contended { Majority::Seen } else { Majority::NeverSeen },
            backoff: Backoff::new(service.retry.pause, LONGEST_PAUSE),
            outage_backoff: Backoff::new(service.retry.pause, LONGEST_OUTAGE_PAUSE),
        }
    }

    /// The pause before the next try of one that does not wait, if nobody has the lock: those who tried at
    /// the same time each got a part of the votes. From now on they are asked for in order, so that one wins.
    pub(super) async fn split(&mut self, failed: &Failed, attempt: &Attempt) -> Option<Duration> {
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

    pub(super) fn after(&mut self, failed: &Failed, attempt: &Attempt) -> Next {
        let service = &attempt.service;
        let was_queued = std::mem::replace(&mut self.turn, Turn::None) == Turn::Queue;
        // Others of this client have met somebody elsewhere while it waited.
        let elsewhere = service.contended.queue_of_last(failed.length, &attempt.resource);
        let moves = was_queued && elsewhere.is_some() && elsewhere != failed.queue;
        if was_queued && !moves {
            failed.next_queue.iter().for_each(|queue| service.note_queue(&attempt.resource, *queue));
        }
        // The last queue does not move either: back to the first.
        let returns = was_queued && !moves && failed.next_queue.is_none() && failed.is_refused_by_queue();
        if returns {
            service.contended.forget_queue(&attempt.resource);
        }
        self.order = service.queue_order(&attempt.resource);
        let returns = returns && self.order.first() != failed.queue.as_ref();
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
            (FailureReason::Taken, _) if moves || returns || failed.next_queue.is_some() => {
                self.turn = Turn::Queue;
                Next::Round
            }
            // Not at once, or those who lost to each other would collide again.
            (FailureReason::Taken | FailureReason::TooLate, _) => Next::RoundAfter(self.backoff.next()),
            // Grace may end earlier than was said, and a master that was missing may come back.
            (FailureReason::Impossible, Some(left)) => {
                let pause = self.outage_backoff.next();
                let spread = rand::random_range(Duration::ZERO..=service.retry.pause);
                Next::RoundAfter(if left < pause { left.saturating_add(spread) } else { pause })
            }
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
    fn is_refused_by_queue(&self) -> bool {
        let vote = self.queue.and_then(|queue| self.votes[usize::from(queue.0)].as_ref());
        vote == Some(&Vote::Refused(Refusal::Taken))
    }

    /// Whether waiting at this master makes sense.
    fn is_reachable(&self, member: Member) -> bool {
        !matches!(
            self.votes[usize::from(member.0)],
            Some(Vote::Failed(_) | Vote::Unknown | Vote::Refused(Refusal::Grace(_)))
        )
    }
}
