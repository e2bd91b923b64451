//! Decides how an attempt continues after a failed round: in the wait queue, after a pause, with another
//! round, or not at all.
//!
//! Safety does not depend on this decision, as each round has its own token: a wrong one only costs time.

use crate::backoff::Random;
use crate::queue_choice::{Contention, QueueOrder};
use crate::{Backoff, Deadline, FailureReason, Holders, Instant, Member, Refusal, Round, Start, Terms, Vote};
use std::time::Duration;

/// The number of rounds that an attempt without a wait repeats while no client has the lock.
const MAX_SPLIT_VOTES: u8 = 20;

/// The longest pause between two rounds.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The longest pause between two rounds while members are missing.
const LONGEST_OUTAGE_PAUSE: Duration = Duration::from_secs(2);

/// The state of an attempt between its rounds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct RetryState {
    /// How the next round begins.
    pub(crate) start: Start,
    /// The queues of the next round; empty if it overtakes waiters.
    pub(crate) order: Vec<Member>,
    split_votes: u8,
    failed_queues: u8,
    majority: Majority,
    backoff: Backoff,
    outage_backoff: Backoff,
}

/// Whether a majority of the members has answered this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Majority {
    /// No majority has ever answered. The addresses may be wrong.
    NeverSeen,
    Seen,
    /// No majority answered, and the outage was reported.
    OutageReported,
}

/// A failed round of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Failed<'a> {
    pub(crate) terms: &'a Terms,
    pub(crate) round: &'a Round,
    pub(crate) reason: FailureReason,
    /// From before its first send to its end.
    pub(crate) length: Duration,
    pub(crate) now: Instant,
}

/// The decision after a failed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Decision {
    /// The pause before the next round; `None`: the attempt has failed.
    pub(crate) pause: Option<Duration>,
    /// Whether an outage begins that the caller must know of.
    pub(crate) reports_outage: bool,
    /// The queue where other clients were met.
    pub(crate) met_at: Option<Member>,
}

impl RetryState {
    pub(crate) fn new(terms: &Terms, memory: &Contention, order: &QueueOrder, now: Instant) -> RetryState {
        let is_contended = memory.is_contended(now);
        let waits = terms.deadline != Deadline::NoWait;
        let start = match terms.adopts {
            true => Start::Adopting,
            // If there is no second round, the first one must wait in the queue.
            false if waits && (terms.one_round || is_contended) => Start::Queued,
            false => Start::AtOnce,
        };
        RetryState {
            start,
            // An attempt without a wait respects no queue: it cannot delay waiters for long.
            order: if waits { order.starting_at(memory.queue(now)) } else { Vec::new() },
            split_votes: 0,
            failed_queues: 0,
            majority: if is_contended { Majority::Seen } else { Majority::NeverSeen },
            backoff: Backoff::new(terms.first_pause, LONGEST_PAUSE),
            outage_backoff: Backoff::new(terms.first_pause, LONGEST_OUTAGE_PAUSE),
        }
    }

    /// Returns whether the round may have failed because each of several clients got a part of the votes.
    /// Only the holders of the lock show whether it did.
    pub(crate) fn may_be_split(&self, terms: &Terms, reason: FailureReason) -> bool {
        reason == FailureReason::Taken
            && terms.deadline == Deadline::NoWait
            && terms.plan.quorum.majority() > 1
            && !terms.one_round
            && self.split_votes < MAX_SPLIT_VOTES
    }

    /// Returns the pause before the next round of an attempt without a wait if no client has the lock. From
    /// now on the members are asked in order, so that one client wins.
    pub(crate) fn after_split(
        &mut self,
        failed: Failed<'_>,
        holders: &Holders,
        order: Vec<Member>,
        random: &mut Random,
    ) -> Option<Duration> {
        let quorum = failed.terms.plan.quorum;
        if !self.may_be_split(failed.terms, failed.reason) || holders.has_majority(quorum) {
            return None;
        }
        self.split_votes += 1;
        (self.start, self.order) = (Start::InOrder, order);
        Some(random.up_to(failed.length))
    }

    /// Lets the next round ask all members at once.
    pub(crate) fn ask_all(&mut self, order: Vec<Member>) {
        (self.start, self.order) = (Start::AtOnce, order);
    }

    /// Decides after a round that failed for a reason that may pass.
    pub(crate) fn after(
        &mut self,
        failed: Failed<'_>,
        memory: &mut Contention,
        common: &QueueOrder,
        random: &mut Random,
    ) -> Decision {
        let Failed { terms, round, now, .. } = failed;
        let (queue, next_queue) = (round.queue(), round.next_queue());
        let was_queued = std::mem::replace(&mut self.start, Start::AtOnce) == Start::Queued;
        let elsewhere = memory.queue_met_within(failed.length, now);
        let follows_others = was_queued && elsewhere.is_some() && elsewhere != queue;
        let moves_on = was_queued && !follows_others;
        let met_at = next_queue.filter(|next| moves_on && memory.meet(*next, common, now));
        // True if even the last queue does not move.
        let gives_up = moves_on && next_queue.is_none() && queue.is_some_and(|at| round.is_refused_by(at));
        if gives_up {
            memory.forget_queue();
        }
        self.order = common.starting_at(memory.queue(now));
        let returns = gives_up && self.order.first() != queue.as_ref();
        let grace = grace_left(terms, round);
        if self.majority == Majority::NeverSeen
            && (failed.reason != FailureReason::Impossible || grace.is_some())
        {
            self.majority = Majority::Seen;
        }
        let mut reports_outage = false;
        let pause = match (failed.reason, grace) {
            (FailureReason::Impossible, Some(left)) => {
                // Grace may end earlier than announced, and a missing member may return.
                let pause = self.outage_backoff.next(random.number());
                let spread = random.up_to(terms.first_pause);
                Some(if left < pause { left.saturating_add(spread) } else { pause })
            }
            (FailureReason::Impossible, None) => {
                let tries_again = was_queued && self.failed_queues < terms.plan.retries;
                if tries_again {
                    self.failed_queues += 1;
                }
                let waits = tries_again || self.waits_for_majority(terms, &mut reports_outage);
                waits.then(|| self.outage_backoff.next(random.number()))
            }
            _ if !was_queued => {
                memory.note_taken(now);
                self.start = Start::Queued;
                let can_wait_at = |member: &Member| is_place_to_wait(round, *member);
                if self.order.iter().any(can_wait_at) {
                    self.order.retain(can_wait_at);
                }
                Some(Duration::ZERO)
            }
            _ if follows_others || returns || next_queue.is_some() => {
                self.start = Start::Queued;
                Some(Duration::ZERO)
            }
            // A pause, because clients that lost to each other would otherwise collide again.
            _ => Some(self.backoff.next(random.number())),
        };
        Decision { pause, reports_outage, met_at }
    }

    /// Returns whether to wait for the end of an outage, which is reported once.
    fn waits_for_majority(&mut self, terms: &Terms, reports_outage: &mut bool) -> bool {
        match self.majority {
            Majority::NeverSeen if terms.deadline == Deadline::Never => return false,
            Majority::NeverSeen | Majority::Seen => {
                *reports_outage = true;
                self.majority = Majority::OutageReported;
            }
            Majority::OutageReported => {}
        }
        true
    }
}

/// Returns the time until a majority can vote if only members in grace are missing for it.
fn grace_left(terms: &Terms, round: &Round) -> Option<Duration> {
    let (mut able, mut graces) = (0, Vec::new());
    for vote in round.votes() {
        match vote {
            Some(Vote::Refused(Refusal::Grace(left))) => graces.push(*left),
            Some(Vote::Refused(Refusal::FenceAhead) | Vote::Failed(_) | Vote::Unknown) => {}
            None | Some(Vote::Granted(_) | Vote::Refused(_)) => able += 1,
        }
    }
    graces.sort();
    let missing = terms.plan.quorum.majority().checked_sub(able)?;
    graces.get(missing.checked_sub(1)?).copied()
}

fn is_place_to_wait(round: &Round, member: Member) -> bool {
    let vote = round.votes().nth(usize::from(member.0)).flatten();
    !matches!(vote, Some(Vote::Failed(_) | Vote::Unknown | Vote::Refused(Refusal::Grace(_))))
}
