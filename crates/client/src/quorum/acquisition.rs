//! One acquisition with one token: the wait queue, the rounds, the confirm phase.
//!
//! The rounds are Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The
//! confirm phase is a majority register for the fence, like the write phase of the registers of Attiya,
//! Bar-Noy and Dolev: F is the greatest fence that the counted masters granted, CONFIRM raises the holds to
//! F, and a majority that answers F intersects every later majority, whose fences are therefore greater.
//! These rules are the ones that survived the model checker; `tests/model.rs` keeps those that it refuted.

use super::member_state::MemberState;
use super::turn::Begin;
use super::{Fence, Member, Outgoing, Quorum, Request, Sends, Vote, to_all};
use crate::lease::{Instant, Lease};
use smallvec::SmallVec;

/// How to acquire.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Plan {
    /// The masters.
    pub quorum: Quorum,
    /// The lease to ask of each.
    pub lease: Lease,
    /// Whether the hold needs a fence that rises over the whole quorum, which takes one more round trip.
    pub fenced: bool,
    /// How often the masters that did not grant may be asked again; what others granted meanwhile is kept.
    pub retries: u8,
}

/// An acquisition under way. It needs a token that was never used before: a RELEASE of an old one that is
/// still under way would end the new hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Acquisition {
    pub(super) plan: Plan,
    pub(super) stage: Stage,
    /// Validity counts from here: before the first send, before those that claim what was waited for, or
    /// before the send of the confirm phase.
    pub(super) since: Instant,
    pub(super) begin: Begin,
    /// Where clients queue, in the order in which they try.
    pub(super) order: SmallVec<[Member; 5]>,
    /// Whose queue decides the turn: an index of `order`.
    pub(super) queue: u8,
    /// How often the masters were asked again.
    pub(super) asked_again: u8,
    pub(super) members: SmallVec<[MemberState; 5]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Stage {
    /// The master whose queue decides has not answered.
    First,
    Asking,
    /// A majority granted and that master did not: does anybody wait there?
    Looking,
    /// In the confirm phase: the fence and number of [`Request::Confirm`].
    Confirming(Fence, u8),
    Ended,
}

/// What follows from an event.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// What to send now.
    pub sends: Sends,
    /// The state of the acquisition.
    pub verdict: Verdict,
}

/// The state of an acquisition.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Outstanding answers can still decide it.
    Open,
    /// The outstanding answers are too few. Call [`Acquisition::ask_again`] after a short random pause.
    TryAgain,
    /// The lock is held.
    Acquired(Acquired),
    /// The lock is not held; the sends clean up.
    Failed(FailureReason),
}

/// A new hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acquired {
    /// Its fence: of the whole quorum if one was asked for, of the server if there is only one, otherwise
    /// none.
    pub fence: Option<Fence>,
    /// When its validity ends.
    pub valid_until: Instant,
}

/// Why there is no hold. [`Acquisition::votes`] has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// Enough masters could vote, and too many refused.
    Taken,
    /// Too many masters are down, silent, in grace or have a wrong clock: currently nobody can acquire it.
    Impossible,
    /// A majority granted, but too late: nothing of the lease is left, or it expired before it was confirmed.
    TooLate,
}

impl Acquisition {
    /// Asks all masters at once. The first of `order`, where others queue, is heard before a majority counts,
    /// and if it refuses, nobody may wait there. Read `now` before sending anything.
    pub fn at_once(plan: Plan, order: &[Member], now: Instant) -> (Self, Sends) {
        (Self::new(plan, Begin::AtOnce, order, now), to_all(plan.quorum, Request::Acquire))
    }

    /// Asks the first reachable master of `order`, and the others once that one has granted: of several
    /// clients, only one at a time gets so far.
    pub fn in_order(plan: Plan, order: &[Member], now: Instant) -> (Self, Sends) {
        Self::first_of(plan, Begin::InOrder, order, now)
    }

    /// Waits in the queue of the first reachable master of `order`, and asks all masters once that one has
    /// granted. `order` must be the same for all clients, so that they meet in one queue; a master that it
    /// omits is only asked.
    ///
    /// It is unknown when a grant after a wait began, and its lease can be short. So it is no vote: asked
    /// again together with the others, that master renews the lease, and validity counts from there.
    pub fn queued(plan: Plan, order: &[Member], now: Instant) -> (Self, Sends) {
        Self::first_of(plan, Begin::Queued, order, now)
    }

    /// Takes over a hold of this token that was acquired elsewhere. The driver asks for its fence where it
    /// would acquire, and a master that does not have it answers
    /// [`Refusal::NotHeld`](super::Refusal::NotHeld). As such an answer says nothing about the lease, the
    /// hold is confirmed. The sends that clean up are not meant then: until it succeeds, the hold is not its
    /// own.
    pub fn adopting(plan: Plan, now: Instant) -> (Self, Sends) {
        (Self::new(plan, Begin::Adopting, &[], now), to_all(plan.quorum, Request::Acquire))
    }

    fn first_of(plan: Plan, begin: Begin, order: &[Member], now: Instant) -> (Self, Sends) {
        let Some(&to) = order.first() else { return Self::at_once(plan, order, now) };
        let mut new = Self::new(plan, begin, order, now);
        new.stage = Stage::First;
        let what = new.first_request();
        (new, SmallVec::from_slice(&[Outgoing { to, what }]))
    }

    fn new(plan: Plan, begin: Begin, order: &[Member], since: Instant) -> Self {
        let members = plan.quorum.members().map(|_| MemberState::default()).collect();
        let order = SmallVec::from_slice(order);
        Self { plan, stage: Stage::Asking, since, begin, order, queue: 0, asked_again: 0, members }
    }

    /// Takes the answer of `member` to `what`, one of the requests that were sent, received at `now`.
    pub fn answered(&mut self, member: Member, what: Request, vote: Vote, now: Instant) -> Progress {
        let Some(state) = self.members.get_mut(usize::from(member.0)) else { return self.open(Sends::new()) };
        match what {
            Request::Acquire => state.record(vote),
            Request::Confirm { fence, phase } if self.stage == Stage::Confirming(fence, phase) => {
                state.confirmed(vote, fence);
            }
            Request::Look if self.stage == Stage::Looking => return self.looked(&vote, now),
            // An answer to an earlier phase says nothing about the lease that this phase renews.
            Request::Confirm { .. } | Request::Look | Request::Extend | Request::Restore => {}
            Request::Wait | Request::Leave | Request::Release => {}
        }
        match self.stage {
            Stage::First if self.queue() == Some(member) => self.first_answered(member, now),
            Stage::First | Stage::Looking | Stage::Ended => self.open(Sends::new()),
            Stage::Asking => self.count_grants(now),
            Stage::Confirming(fence, phase) => self.count_confirmed(fence, phase, member, now),
        }
    }

    /// Asks the masters that did not grant once more. Validity still counts from the first send: a late
    /// answer to that may complete the majority.
    pub fn ask_again(&mut self) -> Sends {
        if self.stage != Stage::Asking || self.plan.retries == 0 {
            return Sends::new();
        }
        self.plan.retries -= 1;
        self.asked_again = self.asked_again.saturating_add(1);
        let mut sends = Sends::new();
        let has_turn = self.has_turn();
        for (state, to) in self.members.iter_mut().zip(self.plan.quorum.members()) {
            if state.may_be_asked_again(has_turn) {
                state.vote = None;
                sends.push(Outgoing { to, what: Request::Acquire });
            }
        }
        sends
    }

    /// Why it failed, if the driver does not ask again after [`Verdict::TryAgain`].
    pub fn why_not(&self) -> FailureReason {
        self.reason_or(FailureReason::Taken)
    }

    /// Ends it without a hold. Returns the clean-up to send; nothing if it has ended already.
    pub fn give_up(&mut self) -> Sends {
        match self.stage {
            Stage::Ended => Sends::new(),
            _ => {
                self.stage = Stage::Ended;
                to_all(self.plan.quorum, Request::Release)
            }
        }
    }

    /// The last answer of each master; `None` where none has come yet.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote>> {
        self.members.iter().map(MemberState::last_answer)
    }

    /// The masters whose fences are too far ahead of the others' clocks: check their clocks.
    pub fn ahead(&self) -> impl Iterator<Item = Member> {
        self.plan
            .quorum
            .members()
            .zip(&self.members)
            .filter(|(_, state)| state.ahead)
            .map(|(member, _)| member)
    }

    pub(super) fn open(&self, sends: Sends) -> Progress {
        Progress { sends, verdict: Verdict::Open }
    }

    pub(super) fn ask_the_others(&mut self, now: Instant) -> Progress {
        self.stage = Stage::Asking;
        let mut sends = Sends::new();
        for (state, to) in self.members.iter_mut().zip(self.plan.quorum.members()) {
            if state.fence().is_none() {
                state.vote = None;
                sends.push(Outgoing { to, what: Request::Acquire });
            }
        }
        let mut progress = self.count_grants(now);
        sends.append(&mut progress.sends);
        Progress { sends, ..progress }
    }

    pub(super) fn count_grants(&mut self, now: Instant) -> Progress {
        let majority = self.plan.quorum.majority();
        let granted = self.count(|state| state.fence().is_some());
        if self.begin == Begin::AtOnce && self.queue_vote().is_some_and(Option::is_none) {
            // The master of the queue is heard first.
            return self.open(Sends::new());
        }
        if granted >= majority {
            if let Some(progress) = self.respect_the_queue() {
                return progress;
            }
            let fence = self.members.iter().filter_map(MemberState::fence).max();
            return match fence {
                Some(fence) if self.needs_confirm() => self.confirm(fence, 0, now),
                fence => self.succeed(fence.filter(|_| self.plan.quorum.majority() == 1), now),
            };
        }
        let hoped_for = granted + self.count(|state| state.vote.is_none());
        if hoped_for >= majority {
            return self.open(Sends::new());
        }
        let again = self.count(|state| state.may_be_asked_again(self.has_turn()));
        if self.plan.retries > 0 && hoped_for + again >= majority && !self.is_out_of_turn() {
            return Progress { sends: Sends::new(), verdict: Verdict::TryAgain };
        }
        self.fail(self.why_not())
    }

    /// On a single server the fence of the grant is enough.
    fn needs_confirm(&self) -> bool {
        self.begin == Begin::Adopting || (self.plan.fenced && self.plan.quorum.majority() > 1)
    }

    pub(super) fn succeed(&mut self, fence: Option<Fence>, now: Instant) -> Progress {
        let valid_until = self.plan.lease.valid_until(self.since);
        if now >= valid_until {
            return self.fail(FailureReason::TooLate);
        }
        self.stage = Stage::Ended;
        Progress { sends: Sends::new(), verdict: Verdict::Acquired(Acquired { fence, valid_until }) }
    }

    pub(super) fn fail(&mut self, loss: FailureReason) -> Progress {
        Progress { sends: self.give_up(), verdict: Verdict::Failed(loss) }
    }

    pub(super) fn reason_or(&self, if_possible: FailureReason) -> FailureReason {
        let unavailable = self.count(MemberState::is_unavailable);
        if self.plan.quorum.possible_without(unavailable) { if_possible } else { FailureReason::Impossible }
    }

    pub(super) fn count(&self, which: impl Fn(&MemberState) -> bool) -> usize {
        self.members.iter().filter(|state| which(state)).count()
    }
}
