//! An attempt to acquire a lock, from the first request to a hold or an error: one round after the other.

use crate::backoff::Random;
use crate::queue_choice::{Contention, QueueOrder, Stay};
use crate::retry_state::{Failed, RetryState};
use crate::{
    Acquired, Backoff, Deadline, FailureReason, Holders, Instant, Member, Progress, Refusal, Request, Round,
    Sends, Start, Terms, Verdict, Vote,
};
use std::time::Duration;

/// Additional tries of a round in which it is this client's turn ([`Start::InOrder`], [`Start::Queued`]). The
/// missing members may be held for a short time by clients that are about to give up, or by the predecessor
/// in the queue until its RELEASE arrives.
const EXTRA_TRIES: u8 = 8;

/// The first and the longest pause between the tries of a round with extra tries.
const BRIEF_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_BRIEF_PAUSE: Duration = Duration::from_millis(32);

/// The longest pause between the tries of any other round.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// An attempt under way. A driver that drops it before its end must release its token at the members that it
/// asked.
///
/// ```text
///  new ──> begin_round ──> answered, waited, timed_out ──> Acquired
///              ^                        │
///              └── timed_out <── review <┘──> Failed
/// ```
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Attempt {
    terms: Terms,
    retry_state: RetryState,
    round: Option<Round>,
    /// The time just before the first send of the round.
    begun: Instant,
    /// The pauses between the tries of the round.
    backoff: Backoff,
    /// The end of the current pause.
    pause: Option<Instant>,
    /// The reason why the round failed, and the length of the round. Set until the failure is reviewed.
    failed: Option<(FailureReason, Duration)>,
    /// Whether the only purpose of this round is to find out if a majority can vote: see
    /// [`needs_last_round`].
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
    /// A queue where this attempt met other clients. The client's other waits for the lock must move there.
    pub met_at: Option<Member>,
    /// The next action of the driver.
    pub next: Next,
}

/// The next action of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Next {
    /// Pass on each answer, and call [`Attempt::timed_out`] at [`Attempt::timeout`].
    Wait,
    /// Draw a token that was never used before, and call [`Attempt::begin_round`].
    BeginRound,
    /// The round failed. Release its token at the members that were asked, read the holders of the lock if
    /// `needs_holders`, and call [`Attempt::review`].
    Review {
        /// Whether the decision depends on the holders of the lock.
        needs_holders: bool,
    },
    /// The lock is held. Pass outstanding answers to [`Attempt::answered_late`]: they may show where other
    /// clients wait.
    Acquired(Acquired),
    /// The attempt has failed. [`Attempt::votes`] has the details.
    Failed(FailureReason),
}

/// Where a successful attempt met other clients.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Meeting {
    /// At no queue other than the first.
    None,
    /// At this queue. Record it with [`Contention::meet`].
    At(Member),
    /// Perhaps at this queue, as its member refused the attempt. Look there: the cause of the refusal may
    /// also be a predecessor, if its RELEASE was in flight.
    LookAt(Member),
}

impl Attempt {
    /// Prepares an attempt. `seed` determines its random pauses. The driver calls
    /// [`begin_round`](Self::begin_round) next.
    pub fn new(terms: Terms, seed: u64, memory: &Contention, order: &QueueOrder, now: Instant) -> Attempt {
        Attempt {
            terms,
            retry_state: RetryState::new(&terms, memory, order, now),
            round: None,
            begun: now,
            backoff: Backoff::new(terms.first_pause, LONGEST_PAUSE),
            pause: None,
            failed: None,
            is_last_round: false,
            random: Random::new(seed),
        }
    }

    /// Begins a round with a new token. Read `now` before sending anything.
    pub fn begin_round(&mut self, now: Instant) -> Step {
        let (mut plan, pause) = (self.terms.plan, self.terms.first_pause);
        let start = self.retry_state.start;
        self.backoff = match start {
            Start::AtOnce | Start::Adopting => Backoff::new(pause, LONGEST_PAUSE),
            Start::InOrder | Start::Queued => {
                plan.retries = plan.retries.saturating_add(EXTRA_TRIES);
                Backoff::new(pause.min(BRIEF_PAUSE), LONGEST_BRIEF_PAUSE)
            }
        };
        if self.is_last_round {
            plan.retries = 0;
        }
        let (round, sends) = Round::begin(plan, start, &self.retry_state.order, now);
        (self.round, self.begun, self.pause, self.failed) = (Some(round), now, None, None);
        Step::new(sends, Next::Wait)
    }

    /// Takes the answer of `member` to `what`, one of the requests of this round, received at `now`.
    pub fn answered(&mut self, member: Member, what: Request, vote: Vote, now: Instant) -> Step {
        match &mut self.round {
            Some(round) => {
                let progress = round.answered(member, what, vote, now);
                self.follow(progress, now)
            }
            None => Step::wait(),
        }
    }

    /// Takes the outcome of [`Request::Wait`] at `member`.
    pub fn waited(&mut self, member: Member, ended: Vote<()>, now: Instant) -> Step {
        match &mut self.round {
            Some(round) => {
                let progress = round.waited(member, ended, now);
                self.follow(progress, now)
            }
            None => Step::wait(),
        }
    }

    /// Returns the instant at which to call [`timed_out`](Self::timed_out).
    pub fn timeout(&self) -> Option<Instant> {
        self.pause
    }

    /// Continues after a pause. Does nothing before the end of the pause.
    pub fn timed_out(&mut self, now: Instant) -> Step {
        if self.pause.is_none_or(|end| now < end) {
            return Step::wait();
        }
        self.pause = None;
        match &mut self.round {
            Some(round) => Step::new(round.ask_again(), Next::Wait),
            None => Step::new(Sends::new(), Next::BeginRound),
        }
    }

    /// Decides what follows the failed round. `memory` is the client's record of the contention for this
    /// lock, shared with its other attempts. `holders` is required if the step had `needs_holders`.
    pub fn review(
        &mut self,
        memory: &mut Contention,
        order: &QueueOrder,
        holders: Option<&Holders>,
        now: Instant,
    ) -> Step {
        let (Some(round), Some((reason, length))) = (&self.round, self.failed.take()) else {
            return Step::wait();
        };
        let failed = Failed { terms: &self.terms, round, reason, length, now };
        let split = holders.and_then(|holders| {
            let order = order.starting_at(memory.queue(now));
            self.retry_state.after_split(failed, holders, order, &mut self.random)
        });
        if let Some(pause) = split {
            return self.pause_before_round(pause, now);
        }
        if is_final(failed) || self.is_last_round {
            if self.is_last_round || !needs_last_round(failed) {
                return Step::new(Sends::new(), Next::Failed(reason));
            }
            self.is_last_round = true;
            self.retry_state.ask_all(order.starting_at(memory.queue(now)));
            return self.pause_before_round(Duration::ZERO, now);
        }
        let decision = self.retry_state.after(failed, memory, order, &mut self.random);
        let pause = match decision.pause {
            Some(Duration::ZERO) => Some(Duration::ZERO),
            Some(pause) => self.terms.deadline.limit(pause, now),
            None => None,
        };
        let step = match pause {
            Some(pause) => self.pause_before_round(pause, now),
            None => Step::new(Sends::new(), Next::Failed(reason)),
        };
        Step { reports_outage: decision.reports_outage, met_at: decision.met_at, ..step }
    }

    /// Returns where the attempt met other clients. Call this once it has acquired the lock.
    pub fn meeting(&self) -> Meeting {
        let next = self.round.as_ref().and_then(|round| Some((round, round.next_queue()?)));
        match next {
            None => Meeting::None,
            Some((round, queue)) if round.is_refused_by(queue) => Meeting::LookAt(queue),
            Some((_, queue)) => Meeting::At(queue),
        }
    }

    /// Takes an answer that arrives after the lock was acquired. Returns whether other clients may wait at
    /// `member`, a later queue, so that the driver has to look there. It looks even if this attempt waited in
    /// a later queue itself, because the clients of that queue may have moved on.
    pub fn answered_late(&self, member: Member, vote: &Vote) -> bool {
        !matches!(self.meeting(), Meeting::LookAt(_))
            && self.round.as_ref().is_some_and(|round| round.is_refusal_of_later_queue(member, vote))
    }

    /// Returns how long to stay in the current queue.
    pub fn stay(&self) -> Stay {
        if self.terms.plan.quorum.majority() == 1 || self.terms.one_round {
            Stay::Always
        } else if self.round.as_ref().is_some_and(Round::has_later_queue) {
            Stay::WhileItMoves
        } else {
            Stay::UntilHoldersAreStale
        }
    }

    /// Iterates over the last answer of each member in the last round; `None` where none has arrived.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote>> {
        self.round.iter().flat_map(Round::votes)
    }

    /// Iterates over the members with fences too far ahead of the clocks of the others.
    pub fn ahead(&self) -> impl Iterator<Item = Member> {
        self.round.iter().flat_map(Round::ahead)
    }

    fn follow(&mut self, progress: Progress, now: Instant) -> Step {
        match progress.verdict {
            Verdict::Open => Step::new(progress.sends, Next::Wait),
            Verdict::TryAgain if self.pause.is_some() => Step::wait(),
            Verdict::TryAgain => {
                let pause = self.backoff.next(self.random.number());
                match (self.terms.deadline.limit(pause, now), &self.round) {
                    (None, Some(round)) => self.fail(round.why_not(), Sends::new(), now),
                    (pause, _) => {
                        self.pause = pause.map(|pause| now + pause);
                        Step::new(progress.sends, Next::Wait)
                    }
                }
            }
            // The last round has a new token, but the caller wants a hold under its own token only.
            Verdict::Acquired(_) if self.is_last_round && self.terms.one_round => {
                Step::new(Sends::new(), Next::Failed(FailureReason::Taken))
            }
            Verdict::Acquired(acquired) => {
                self.pause = None;
                Step::new(Sends::new(), Next::Acquired(acquired))
            }
            Verdict::Failed(reason) => self.fail(reason, progress.sends, now),
        }
    }

    fn fail(&mut self, reason: FailureReason, clean_up: Sends, now: Instant) -> Step {
        self.pause = None;
        self.failed = Some((reason, now.saturating_since(self.begun)));
        let needs_holders = self.retry_state.may_be_split(&self.terms, reason);
        Step::new(clean_up, Next::Review { needs_holders })
    }

    fn pause_before_round(&mut self, pause: Duration, now: Instant) -> Step {
        self.round = None;
        if pause.is_zero() {
            return Step::new(Sends::new(), Next::BeginRound);
        }
        self.pause = Some(now + pause);
        Step::wait()
    }
}

impl Step {
    fn new(sends: Sends, next: Next) -> Step {
        Step { sends, reports_outage: false, met_at: None, next }
    }

    fn wait() -> Step {
        Step::new(Sends::new(), Next::Wait)
    }
}

/// Returns whether no further round is allowed or can succeed.
fn is_final(failed: Failed<'_>) -> bool {
    failed.terms.one_round
        || failed.terms.deadline.has_passed(failed.now)
        || is_full(failed.round)
        || matches!(failed.reason, FailureReason::Deadlock | FailureReason::Misuse | FailureReason::TooLate)
}

/// Returns whether to ask all members once more before the attempt fails. Its wait has ended in the queue of
/// one member without votes of a majority, and "taken" must only be reported if a majority can vote.
fn needs_last_round(failed: Failed<'_>) -> bool {
    let votes = failed.round.votes().flatten().filter(|vote| !vote.is_unavailable()).count();
    failed.reason == FailureReason::Taken
        && failed.terms.deadline != Deadline::NoWait
        && votes < failed.terms.plan.quorum.majority()
        && !is_full(failed.round)
}

fn is_full(round: &Round) -> bool {
    round.votes().flatten().any(|vote| *vote == Vote::Refused(Refusal::QueueFull))
}
