//! Decides how an attempt to acquire a lock continues after a failed round: whether another round follows,
//! and after which pause. That round either waits in a queue, or asks the members without a wait.
//!
//! A wrong decision only costs time. Each round is safe by itself, because it has its own token.

use crate::backoff::Random;
use crate::queue_choice::{Contention, QueueOrder};
use crate::{
    AttemptOptions, Backoff, Deadline, Failure, FailureReason, Holders, Instant, Member, Refusal, Round,
    Start, Vote,
};
use std::time::Duration;

/// Maximum number of rounds that follow split votes in an attempt without a wait. A vote is split if clients
/// asked at the same time, each got a part of the votes, and none has a majority.
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
    /// The members where clients queue, the first choice first ([`Round::begin`]). If empty, the next round
    /// does not ask whether clients wait there, and may overtake them.
    pub(crate) order: Vec<Member>,
    split_votes: u8,
    /// How many rounds with a wait failed because too few members could vote.
    impossible_waits: u8,
    /// Whether, in a round of this attempt, a majority of the members could vote, were in a grace period, or
    /// refused every request for the moment.
    /// Also true if the client found the lock taken within the last second before this attempt began.
    majority_seen: bool,
    outage_reported: bool,
    backoff: Backoff,
    outage_backoff: Backoff,
}

/// A failed round of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FailedRound<'a> {
    pub(crate) options: &'a AttemptOptions,
    pub(crate) round: &'a Round,
    pub(crate) reason: FailureReason,
    /// The time from just before the first send to the end of the round.
    pub(crate) duration: Duration,
    pub(crate) now: Instant,
}

/// The decision after a failed round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Decision {
    /// The pause before the next round; `None` means that the attempt has failed.
    pub(crate) pause: Option<Duration>,
    /// Whether to report an outage to the caller.
    pub(crate) reports_outage: bool,
    /// See [`Step::moves_to`](crate::Step::moves_to).
    pub(crate) moves_to: Option<Member>,
}

impl RetryState {
    pub(crate) fn new(
        options: &AttemptOptions,
        contention: &Contention,
        order: &QueueOrder,
        now: Instant,
    ) -> RetryState {
        let is_contended = contention.is_contended(now);
        let waits = options.deadline != Deadline::NoWait;
        let start = match options.adopts {
            true => Start::Adopting,
            // If there is no second round, the first one must wait in the queue.
            false if waits && (options.one_round || is_contended) => Start::Queued,
            false => Start::AtOnce,
        };
        RetryState {
            start,
            // An attempt without a wait may overtake waiters: it ends too soon to delay them for long.
            order: if waits { order.starting_at(contention.start_queue(now)) } else { Vec::new() },
            split_votes: 0,
            impossible_waits: 0,
            majority_seen: is_contended,
            outage_reported: false,
            backoff: Backoff::new(options.first_pause, LONGEST_PAUSE),
            outage_backoff: Backoff::new(options.first_pause, LONGEST_OUTAGE_PAUSE),
        }
    }

    /// Returns whether a round that failed for this reason may be repeated if its vote was split. If true,
    /// the caller reads the holders of the lock, which show whether the vote was split.
    pub(crate) fn may_be_split_vote(&self, options: &AttemptOptions, reason: FailureReason) -> bool {
        reason == FailureReason::Taken
            && options.deadline == Deadline::NoWait
            && options.plan.quorum.majority() > 1
            && !options.one_round
            && self.split_votes < MAX_SPLIT_VOTES
    }

    /// Returns the pause before the next round if the vote was split. Otherwise `None`: a client has the
    /// lock, or a delay keeps it closed. The next rounds of this attempt ask the first member of `order`,
    /// and the other members only after its grant. If all competing clients do so, only one of them asks
    /// the other members.
    pub(crate) fn after_split_vote(
        &mut self,
        failed: FailedRound<'_>,
        holders: &Holders,
        order: Vec<Member>,
        random: &mut Random,
    ) -> Option<Duration> {
        let quorum = failed.options.plan.quorum;
        if !self.may_be_split_vote(failed.options, failed.reason) || holders.is_taken(quorum) {
            return None;
        }
        self.split_votes += 1;
        (self.start, self.order) = (Start::InOrder, order);
        Some(random.up_to(failed.duration))
    }

    /// Lets the next round ask all members at once.
    pub(crate) fn ask_all_at_once(&mut self, order: Vec<Member>) {
        (self.start, self.order) = (Start::AtOnce, order);
    }

    /// Decides what follows a failed round. The caller has already handled two cases: split votes, and rounds
    /// after which the attempt must end (for example because it may not wait).
    pub(crate) fn after_failure(
        &mut self,
        failed: FailedRound<'_>,
        contention: &mut Contention,
        queue_order: &QueueOrder,
        random: &mut Random,
    ) -> Decision {
        let FailedRound { options, round, now, .. } = failed;
        let (queue, next_queue) = (round.queue(), round.next_queue());
        let was_queued = std::mem::replace(&mut self.start, Start::AtOnce) == Start::Queued;
        let (mut moves_to, mut waits_again) = (None, false);
        if was_queued {
            let start_queue = contention.start_queue_set_within(failed.duration, now);
            if start_queue.is_some() && start_queue != queue {
                // Another wait of this client has moved to another queue meanwhile: follow it there.
                waits_again = true;
            } else if let Some(next) = next_queue {
                moves_to = contention.move_to(next, queue_order, now).then_some(next);
                waits_again = true;
            } else if queue.is_some_and(|queue| round.is_refused_by(queue)) {
                // The client got no grant in the last queue either: start over with the first one.
                contention.forget_start_queue();
                waits_again = queue_order.starting_at(None).first() != queue.as_ref();
            }
        }
        self.order = queue_order.starting_at(contention.start_queue(now));
        let grace = grace_left(options, round);
        if failed.reason != FailureReason::Impossible || grace.is_some() || has_answered(options, round) {
            self.majority_seen = true;
        }
        let mut reports_outage = false;
        let pause = match (failed.reason, grace) {
            (FailureReason::Impossible, Some(left)) => {
                // The pause may be shorter than the grace periods, because an operator can end them early,
                // and a missing member may return.
                let pause = self.outage_backoff.next(random.number());
                let spread = random.up_to(options.first_pause);
                Some(if left < pause { left.saturating_add(spread) } else { pause })
            }
            (FailureReason::Impossible, None) => {
                let may_repeat = was_queued && self.impossible_waits < options.plan.retries;
                // An attempt without a deadline waits only if it has met a majority before. Otherwise the
                // addresses of the members may be wrong, and the wait would not end.
                let waits_for_majority = self.majority_seen || options.deadline != Deadline::Never;
                if may_repeat {
                    self.impossible_waits += 1;
                } else if waits_for_majority {
                    reports_outage = !std::mem::replace(&mut self.outage_reported, true);
                }
                (may_repeat || waits_for_majority).then(|| self.outage_backoff.next(random.number()))
            }
            _ if !was_queued => {
                contention.note_taken(now);
                self.start = Start::Queued;
                // At least one member must remain: a round with an empty order could overtake waiters.
                let can_wait_at = |member: &Member| may_wait_at(round, *member);
                if self.order.iter().any(can_wait_at) {
                    self.order.retain(can_wait_at);
                }
                Some(Duration::ZERO)
            }
            _ if waits_again => {
                self.start = Start::Queued;
                Some(Duration::ZERO)
            }
            // Clients that took votes from each other would collide again without a random pause.
            _ => Some(self.backoff.next(random.number())),
        };
        Decision { pause, reports_outage, moves_to }
    }
}

/// Returns the time until enough grace periods have ended for a majority to vote. `None` if a majority can
/// vote now, or if too many members are missing for a majority even after all grace periods.
fn grace_left(options: &AttemptOptions, round: &Round) -> Option<Duration> {
    let (mut able_to_vote, mut graces) = (0, Vec::new());
    for vote in round.votes() {
        match vote {
            Some(Vote::Refused(Refusal::Grace(left))) => graces.push(*left),
            Some(Vote::Refused(Refusal::FenceAhead) | Vote::Failed(_) | Vote::Unknown) => {}
            None | Some(Vote::Granted(_) | Vote::Refused(_)) => able_to_vote += 1,
        }
    }
    graces.sort();
    let missing = options.plan.quorum.majority().checked_sub(able_to_vote)?;
    graces.get(missing.checked_sub(1)?).copied()
}

/// Returns whether a majority has answered as members do, also with an error that passes: the addresses are
/// right, so a wait may outlast the errors.
fn has_answered(options: &AttemptOptions, round: &Round) -> bool {
    let is_from_member = |vote: &&Vote| match vote {
        Vote::Granted(_) | Vote::Refused(_) | Vote::Failed(Failure::NotNow(_)) => true,
        Vote::Failed(_) | Vote::Unknown => false,
    };
    round.votes().flatten().filter(is_from_member).count() >= options.plan.quorum.majority()
}

/// Returns whether the round found no reason why a wait at `member` would fail.
fn may_wait_at(round: &Round, member: Member) -> bool {
    let vote = round.votes().nth(usize::from(member.0)).flatten();
    !matches!(vote, Some(Vote::Failed(_) | Vote::Unknown | Vote::Refused(Refusal::Grace(_))))
}
