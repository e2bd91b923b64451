//! An attempt to acquire a lock, from the first request to a hold or an error, in one or more rounds.

use crate::backoff::Random;
use crate::queue_choice::{Contention, QueueOrder, Stay};
use crate::retry_state::{FailedRound, RetryState};
use crate::{
    Acquired, AttemptOptions, Backoff, Deadline, FailureReason, Holders, Instant, Member, Progress, Refusal,
    Request, Round, Sends, Start, Verdict, Vote,
};
use std::time::Duration;

/// Retries in addition to [`Plan::retries`](crate::Plan), for a round that asks one member before the others
/// ([`Start::InOrder`], [`Start::Queued`]). The others may refuse the request for a short time: until the
/// RELEASE of the previous holder arrives, or until another client without a majority gives up.
const EXTRA_RETRIES: u8 = 8;

/// The first and the longest pause between the tries of a round that asks one member before the others.
const FIRST_SHORT_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_SHORT_PAUSE: Duration = Duration::from_millis(32);

/// The longest pause before any other round asks again.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// An attempt under way. A driver that drops an attempt before its end must release the token of the current
/// round at the members that it asked.
///
/// ```text
///  new ──> begin_round ──> answered, waited, timed_out ──> Acquired
///              ^                        │
///              │                        v
///              └──── timed_out <──── review ──> Failed
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    options: AttemptOptions,
    retry_state: RetryState,
    round: Option<Round>,
    /// The time just before the first send of the round.
    round_begun: Instant,
    /// The pauses before the round asks again.
    backoff: Backoff,
    /// The end of the current pause, within a round or before the next one; `None` without a pause.
    pause_end: Option<Instant>,
    /// The reason why the round failed, and the duration of the round. Set until [`Attempt::review`].
    failure: Option<(FailureReason, Duration)>,
    /// Whether the current round only finds out if a majority can vote: see [`needs_last_round`].
    is_last_round: bool,
    random: Random,
}

/// The consequences of an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Step {
    /// The requests to send now.
    pub sends: Sends,
    /// Whether to report an outage to the caller: too few members can vote, and the attempt waits for them.
    pub reports_outage: bool,
    /// The member where the attempt waits next. The driver must end the waits of this client for the
    /// same lock in other queues. Their attempts then wait in this queue. `None` if those waits stay where
    /// they are.
    pub moves_to: Option<Member>,
    /// The next action of the driver.
    pub next: Next,
}

/// The next action of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Pass on each answer, and call [`Attempt::timed_out`] at the instant [`Attempt::timeout`].
    Wait,
    /// Draw a token that was never used before, and call [`Attempt::begin_round`].
    BeginRound,
    /// The round failed. Release its token at the members that were asked, read the holders of the lock if
    /// `needs_holders`, and call [`Attempt::review`].
    Review {
        /// Whether the decision depends on the holders of the lock.
        needs_holders: bool,
    },
    /// The lock is held. Call [`Attempt::next_queue`], and pass outstanding answers to
    /// [`Attempt::must_look_for_others`]: both show where other clients wait.
    Acquired(Acquired),
    /// The attempt has failed. [`Attempt::votes`] has the details.
    Failed(FailureReason),
}

/// The queue for the client's next waits for a lock that an attempt has acquired.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum NextQueue {
    /// The first queue of the [`QueueOrder`]. The attempt has noticed no other clients in a later queue.
    First,
    /// The queue of this member, where other clients wait. Call [`Contention::move_to`].
    MoveTo(Member),
    /// Perhaps the queue of this member, which refused the attempt. Read the holders there to find out if
    /// other clients wait there ([`OtherHolds`](crate::OtherHolds)): the member may also have refused because
    /// the RELEASE of the previous holder had not arrived.
    LookForOthersAt(Member),
}

impl Attempt {
    /// Prepares an attempt. `seed` determines its random pauses; `contention` is the client's record of the
    /// contention for the lock. The driver calls [`begin_round`](Self::begin_round) next.
    pub fn new(
        options: AttemptOptions,
        seed: u64,
        contention: &Contention,
        order: &QueueOrder,
        now: Instant,
    ) -> Attempt {
        Attempt {
            options,
            retry_state: RetryState::new(&options, contention, order, now),
            round: None,
            round_begun: now,
            backoff: Backoff::new(options.first_pause, LONGEST_PAUSE),
            pause_end: None,
            failure: None,
            is_last_round: false,
            random: Random::new(seed),
        }
    }

    /// Begins a round with a new token. Read `now` before sending anything.
    pub fn begin_round(&mut self, now: Instant) -> Step {
        let (mut plan, pause) = (self.options.plan, self.options.first_pause);
        let start = self.retry_state.start;
        self.backoff = match start {
            Start::AtOnce | Start::Adopting => Backoff::new(pause, LONGEST_PAUSE),
            Start::InOrder | Start::Queued => {
                plan.retries = plan.retries.saturating_add(EXTRA_RETRIES);
                Backoff::new(pause.min(FIRST_SHORT_PAUSE), LONGEST_SHORT_PAUSE)
            }
        };
        if self.is_last_round {
            plan.retries = 0;
        }
        let (round, sends) = Round::begin(plan, start, &self.retry_state.order, now);
        (self.round, self.round_begun, self.pause_end, self.failure) = (Some(round), now, None, None);
        Step::new(sends, Next::Wait)
    }

    /// Takes the answer of `member` to `what`, one of the requests of this round, received at `now`.
    pub fn answered(&mut self, member: Member, what: Request, vote: Vote, now: Instant) -> Step {
        let Some(round) = &mut self.round else { return Step::wait() };
        let progress = round.answered(member, what, vote, now);
        self.apply(progress, now)
    }

    /// Takes the outcome of [`Request::Wait`] at `member`.
    pub fn waited(&mut self, member: Member, outcome: Vote<()>, now: Instant) -> Step {
        let Some(round) = &mut self.round else { return Step::wait() };
        let progress = round.waited(member, outcome, now);
        self.apply(progress, now)
    }

    /// Takes a grant that ended [`Request::Wait`] at `member`: see [`Round::granted_in_queue`].
    pub fn granted_in_queue(&mut self, member: Member, grant: Acquired, now: Instant) -> Step {
        let Some(round) = &mut self.round else { return Step::wait() };
        let progress = round.granted_in_queue(member, grant, now);
        self.apply(progress, now)
    }

    /// Returns the instant at which to call [`timed_out`](Self::timed_out); `None` without a pause.
    pub fn timeout(&self) -> Option<Instant> {
        self.pause_end
    }

    /// Continues after a pause. Does nothing before the end of the pause.
    pub fn timed_out(&mut self, now: Instant) -> Step {
        if self.pause_end.is_none_or(|end| now < end) {
            return Step::wait();
        }
        self.pause_end = None;
        match &mut self.round {
            Some(round) => Step::new(round.ask_again(), Next::Wait),
            None => Step::new(Sends::new(), Next::BeginRound),
        }
    }

    /// Decides what follows a failed round. `contention` is the client's record of the contention for the
    /// lock, which all its attempts for this lock share. `holders` is required if the step had
    /// `needs_holders`.
    pub fn review(
        &mut self,
        contention: &mut Contention,
        order: &QueueOrder,
        holders: Option<&Holders>,
        now: Instant,
    ) -> Step {
        let (Some(round), Some((reason, duration))) = (&self.round, self.failure.take()) else {
            return Step::wait();
        };
        let failed = FailedRound { options: &self.options, round, reason, duration, now };
        let pause_after_split = holders.and_then(|holders| {
            let order = order.starting_at(contention.start_queue(now));
            self.retry_state.after_split_vote(failed, holders, order, &mut self.random)
        });
        if let Some(pause) = pause_after_split {
            return self.pause_before_round(pause, now);
        }
        if is_final(failed) || self.is_last_round {
            if self.is_last_round || !needs_last_round(failed) {
                return Step::new(Sends::new(), Next::Failed(reason));
            }
            self.is_last_round = true;
            self.retry_state.ask_all_at_once(order.starting_at(contention.start_queue(now)));
            return self.pause_before_round(Duration::ZERO, now);
        }
        let decision = self.retry_state.after_failure(failed, contention, order, &mut self.random);
        let pause = decision.pause.and_then(|pause| self.options.deadline.limit_pause(pause, now));
        let step = match pause {
            Some(pause) => self.pause_before_round(pause, now),
            None => Step::new(Sends::new(), Next::Failed(reason)),
        };
        Step { reports_outage: decision.reports_outage, moves_to: decision.moves_to, ..step }
    }

    /// Returns the queue for the client's next waits. Call this once the attempt has acquired the lock.
    pub fn next_queue(&self) -> NextQueue {
        let next = self.round.as_ref().and_then(|round| Some((round, round.next_queue()?)));
        match next {
            None => NextQueue::First,
            Some((round, queue)) if round.is_refused_by(queue) => NextQueue::LookForOthersAt(queue),
            Some((_, queue)) => NextQueue::MoveTo(queue),
        }
    }

    /// Returns whether the driver must look for other clients at `member`, which answered with `vote` after
    /// the lock was acquired. True if the member refused and its queue is later than that of this attempt:
    /// other clients may have moved there. Always false after [`NextQueue::LookForOthersAt`], because the
    /// driver then looks at one member already.
    pub fn must_look_for_others(&self, member: Member, vote: &Vote) -> bool {
        let already_looks = matches!(self.next_queue(), NextQueue::LookForOthersAt(_));
        !already_looks
            && self.round.as_ref().is_some_and(|round| round.is_refusal_of_later_queue(member, vote))
    }

    /// Returns the rule by which a waiter leaves the current queue.
    pub fn stay(&self) -> Stay {
        if self.options.plan.quorum.majority() == 1 || self.options.one_round {
            Stay::Always
        } else if self.round.as_ref().is_some_and(Round::has_later_queue) {
            Stay::WhileQueueMoves
        } else {
            Stay::UntilHoldersAreStale
        }
    }

    /// Iterates over the last answer of each member in the last round; `None` for a member without an answer.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote>> {
        self.round.iter().flat_map(Round::votes)
    }

    /// Iterates over the members with clocks that are too far ahead: see [`Round::members_ahead`].
    pub fn members_ahead(&self) -> impl Iterator<Item = Member> {
        self.round.iter().flat_map(Round::members_ahead)
    }

    fn apply(&mut self, progress: Progress, now: Instant) -> Step {
        match progress.verdict {
            Verdict::Open => Step::new(progress.sends, Next::Wait),
            Verdict::TryAgain if self.pause_end.is_some() => Step::wait(),
            Verdict::TryAgain => {
                let pause = self.backoff.next(self.random.number());
                match (self.options.deadline.limit_pause(pause, now), &self.round) {
                    (None, Some(round)) => self.fail(round.failure_reason(), Sends::new(), now),
                    (pause, _) => {
                        self.pause_end = pause.map(|pause| now + pause);
                        Step::new(progress.sends, Next::Wait)
                    }
                }
            }
            // With `one_round`, the caller chose the token of the first round. The last round has another
            // token and only finds out if a majority can vote, so its grants do not count.
            Verdict::Acquired(_) if self.is_last_round && self.options.one_round => {
                Step::new(Sends::new(), Next::Failed(FailureReason::Taken))
            }
            Verdict::Acquired(acquired) => {
                self.pause_end = None;
                Step::new(Sends::new(), Next::Acquired(acquired))
            }
            Verdict::Failed(reason) => self.fail(reason, progress.sends, now),
        }
    }

    fn fail(&mut self, reason: FailureReason, clean_up: Sends, now: Instant) -> Step {
        self.pause_end = None;
        self.failure = Some((reason, now.saturating_since(self.round_begun)));
        let needs_holders = self.retry_state.may_be_split_vote(&self.options, reason);
        Step::new(clean_up, Next::Review { needs_holders })
    }

    fn pause_before_round(&mut self, pause: Duration, now: Instant) -> Step {
        self.round = None;
        if pause.is_zero() {
            return Step::new(Sends::new(), Next::BeginRound);
        }
        self.pause_end = Some(now + pause);
        Step::wait()
    }
}

impl Step {
    fn new(sends: Sends, next: Next) -> Step {
        Step { sends, reports_outage: false, moves_to: None, next }
    }

    fn wait() -> Step {
        Step::new(Sends::new(), Next::Wait)
    }
}

/// Returns whether no further round is allowed or can succeed.
fn is_final(failed: FailedRound<'_>) -> bool {
    failed.options.one_round
        || failed.options.deadline.has_passed(failed.now)
        || is_queue_full(failed.round)
        || matches!(failed.reason, FailureReason::Deadlock | FailureReason::Misuse | FailureReason::TooLate)
}

/// Returns whether to ask all members once more before the attempt fails. True if the wait in the queue of
/// one member ended before a majority voted. An attempt must not fail with "taken" unless a majority can
/// vote.
fn needs_last_round(failed: FailedRound<'_>) -> bool {
    let able_to_vote = failed.round.votes().flatten().filter(|vote| !vote.is_unavailable()).count();
    failed.reason == FailureReason::Taken
        && failed.options.deadline != Deadline::NoWait
        && able_to_vote < failed.options.plan.quorum.majority()
        && !is_queue_full(failed.round)
}

fn is_queue_full(round: &Round) -> bool {
    round.votes().flatten().any(|vote| *vote == Vote::Refused(Refusal::QueueFull))
}
