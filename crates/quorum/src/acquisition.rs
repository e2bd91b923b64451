//! One acquisition with one token: the wait queue, the rounds, the confirm phase.
//!
//! The rounds are Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The
//! confirm phase is a majority register for the fence, like the write phase of the registers of Attiya,
//! Bar-Noy and Dolev: F is the greatest fence that the counted masters granted, CONFIRM raises the holds to
//! F, and a majority that answers F intersects every later majority, whose fences are therefore greater.
//! These rules are the ones that survived the model checker; `tests/model.rs` keeps those that it refuted.

use crate::member_state::{Confirm, MemberState};
use crate::{Fence, Member, Outgoing, Quorum, Refusal, Request, Sends, Vote, to_all};
use crate::{Instant, Lease};
use smallvec::SmallVec;
use std::time::Duration;

/// So often a granted waiter asks those again that refuse: what its predecessor releases may be on the way.
const BRIEF_TRIES: u8 = 5;

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
    plan: Plan,
    stage: Stage,
    /// Validity counts from here: before the first send, before those that claim what was waited for, or
    /// before the send of the confirm phase.
    since: Instant,
    begin: Begin,
    /// Where clients queue, in the order in which they try.
    order: SmallVec<[Member; 5]>,
    /// Whose queue decides the turn: an index of `order`.
    queue: u8,
    /// How often the masters were asked again.
    asked_again: u8,
    members: SmallVec<[MemberState; 5]>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// The master whose queue decides has not answered.
    First,
    Asking,
    /// A majority granted and that master did not: does anybody wait there?
    Looking,
    /// In the confirm phase: the fence and number of [`Request::Confirm`].
    Confirming(Fence, u8),
    Ended,
}

/// How an acquisition begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Begin {
    /// All masters are asked at once, and nobody who waits is overtaken.
    AtOnce,
    /// So they were, and there is nobody to overtake.
    NobodyWaits,
    /// The first master that can be reached is asked before the others.
    InOrder,
    /// So it is, and its queue is waited in.
    Queued,
    /// All masters are asked for a hold that exists.
    Adopting,
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
    /// [`Refusal::NotHeld`](crate::Refusal::NotHeld). As such an answer says nothing about the lease, the
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

    fn open(&self, sends: Sends) -> Progress {
        Progress { sends, verdict: Verdict::Open }
    }

    fn ask_the_others(&mut self, now: Instant) -> Progress {
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

    fn count_grants(&mut self, now: Instant) -> Progress {
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
        if self.is_reason_open() {
            return self.open(Sends::new());
        }
        self.fail(self.why_not())
    }

    /// On a single server the fence of the grant is enough.
    fn needs_confirm(&self) -> bool {
        self.begin == Begin::Adopting || (self.plan.fenced && self.plan.quorum.majority() > 1)
    }

    fn succeed(&mut self, fence: Option<Fence>, now: Instant) -> Progress {
        let valid_until = self.plan.lease.valid_until(self.since);
        if now >= valid_until {
            return self.fail(FailureReason::TooLate);
        }
        self.stage = Stage::Ended;
        Progress { sends: Sends::new(), verdict: Verdict::Acquired(Acquired { fence, valid_until }) }
    }

    fn fail(&mut self, loss: FailureReason) -> Progress {
        Progress { sends: self.give_up(), verdict: Verdict::Failed(loss) }
    }

    fn reason_or(&self, if_possible: FailureReason) -> FailureReason {
        let unavailable = self.count(MemberState::is_unavailable);
        if self.plan.quorum.possible_without(unavailable) { if_possible } else { FailureReason::Impossible }
    }

    /// True while outstanding answers decide between "taken" and "no quorum": too few members have voted for
    /// the first, and too few are unavailable for the second.
    fn is_reason_open(&self) -> bool {
        let outstanding = self.count(|state| state.last_answer().is_none());
        let unavailable = self.count(MemberState::is_unavailable);
        let voted = self.members.len() - outstanding - unavailable;
        outstanding > 0
            && voted < self.plan.quorum.majority()
            && self.plan.quorum.possible_without(unavailable)
    }

    fn count(&self, which: impl Fn(&MemberState) -> bool) -> usize {
        self.members.iter().filter(|state| which(state)).count()
    }
}

impl Acquisition {
    /// Where to queue next, if not at the first master as ever. One whose turn came, and who is refused by a
    /// later master, meets others who queue there, as the earlier ones are out of their reach; it goes to
    /// them, for they cannot come. The queue of a master that refuses, while others grant or nobody has a
    /// majority, does not move: the next one does. And whoever has waited in a later queue than the first
    /// stays there, as the others do: each that went back alone would keep their head from a majority.
    pub fn next_queue(&self) -> Option<Member> {
        let refused = |member: &Member| self.is_refused_by(*member);
        let (tried, later) = self.order.split_at_checked(usize::from(self.queue) + 1)?;
        let queue = tried.last()?;
        if refused(queue) {
            return later.first().copied();
        }
        let is_earlier = |member: &Member| !tried.contains(member) && !later.contains(member);
        let mut earlier = self.plan.quorum.members().filter(is_earlier);
        let stays = earlier.any(|member| self.begin == Begin::Queued || refused(&member));
        later.iter().find(|member| refused(member)).or(stays.then_some(queue)).copied()
    }

    /// The masters at which others queue, if they refuse one who has the lock: see `next_queue`.
    pub fn later_queues(&self) -> SmallVec<[Member; 5]> {
        self.order.iter().skip(usize::from(self.queue) + 1).copied().collect()
    }

    /// Whether there is another queue to go to.
    pub fn has_next_queue(&self) -> bool {
        usize::from(self.queue) + 1 < self.order.len()
    }

    /// Whether somebody else held it there at the last answer.
    pub fn is_refused_by(&self, member: Member) -> bool {
        self.members[usize::from(member.0)].vote == Some(Vote::Refused(Refusal::Taken))
    }

    /// The master whose queue decides the turn.
    pub fn queue(&self) -> Option<Member> {
        self.order.get(usize::from(self.queue)).copied()
    }

    fn queue_vote(&self) -> Option<&Option<Vote>> {
        self.queue().map(|queue| &self.members[usize::from(queue.0)].vote)
    }

    /// Whether it may hold a part of the quorum while it is refused the rest.
    fn has_turn(&self) -> bool {
        matches!(self.begin, Begin::InOrder | Begin::Queued)
    }

    fn first_request(&self) -> Request {
        if self.begin == Begin::Queued { Request::Wait } else { Request::Acquire }
    }

    /// Takes the end of [`Request::Wait`] at `member`: granted, its turn has come.
    pub fn waited(&mut self, member: Member, ended: Vote<()>, now: Instant) -> Progress {
        if self.stage != Stage::First || self.begin != Begin::Queued || self.queue() != Some(member) {
            return self.open(Sends::new());
        }
        let vote = match ended {
            Vote::Granted(()) => {
                self.since = now;
                return self.ask_the_others(now);
            }
            Vote::Refused(why) => Vote::Refused(why),
            Vote::Failed(why) => Vote::Failed(why),
            Vote::Unknown => Vote::Unknown,
        };
        self.members[usize::from(member.0)].record(vote);
        self.first_answered(member, now)
    }

    fn first_answered(&mut self, member: Member, now: Instant) -> Progress {
        let leave = match &self.members[usize::from(member.0)].vote {
            None => return self.open(Sends::new()),
            Some(Vote::Granted(_)) => return self.ask_the_others(now),
            Some(Vote::Refused(Refusal::Grace(_)) | Vote::Failed(_)) => None,
            Some(Vote::Unknown) => {
                (self.begin == Begin::Queued).then_some(Outgoing { to: member, what: Request::Leave })
            }
            Some(Vote::Refused(_)) => return self.fail(FailureReason::Taken),
        };
        self.queue += 1;
        let what = self.first_request();
        match self.queue() {
            None => self.fail(FailureReason::Impossible),
            Some(to) => self.open(leave.into_iter().chain([Outgoing { to, what }]).collect()),
        }
    }

    fn looked(&mut self, vote: &Vote, now: Instant) -> Progress {
        if *vote != Vote::Refused(Refusal::NotHeld) {
            return self.fail(FailureReason::Taken);
        }
        self.stage = Stage::Asking;
        self.begin = Begin::NobodyWaits;
        self.count_grants(now)
    }

    /// By a majority of the others a newcomer could overtake the whole queue. Where nobody waits, what its
    /// master alone still holds keeps nobody out.
    fn respect_the_queue(&mut self) -> Option<Progress> {
        let to = self.queue().filter(|_| self.begin == Begin::AtOnce)?;
        match self.queue_vote()? {
            Some(Vote::Refused(why)) if !matches!(why, Refusal::Grace(_)) => {
                self.stage = Stage::Looking;
                Some(self.open(SmallVec::from_slice(&[Outgoing { to, what: Request::Look }])))
            }
            _ => None,
        }
    }

    /// Whether it should give back what it has instead of asking again: its turn has come in another queue
    /// than that of those who have the rest, or it has not come. Two that each kept a part until a missing
    /// master is back would keep everybody from a majority.
    fn is_out_of_turn(&self) -> bool {
        let refused = Some(Vote::Refused(Refusal::Taken));
        match self.begin {
            Begin::AtOnce => {
                let has_a_part = self.count(|state| state.fence().is_some()) > 0;
                let is_refused = self.count(|state| state.vote == refused) > 0;
                self.queue_vote() == Some(&refused) || (has_a_part && is_refused)
            }
            Begin::NobodyWaits | Begin::InOrder | Begin::Adopting => false,
            Begin::Queued => {
                let goes_on = || self.next_queue().is_some_and(|next| Some(next) != self.queue());
                self.asked_again >= BRIEF_TRIES && goes_on()
            }
        }
    }
}

impl Acquisition {
    /// Begins a confirm phase for `fence`, with no answer counted. It asks the masters whose grant counts. A
    /// grant with a greater fence is left out rather than waited for: that would cost another phase.
    fn confirm(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        self.stage = Stage::Confirming(fence, phase);
        self.since = now;
        self.members.iter_mut().for_each(|state| state.confirm = Confirm::Uncounted);
        let asked = self.ask_counted(fence, phase);
        self.decide(fence, phase, asked, now)
    }

    /// Numbers each phase; a quorum that still disagrees after all of them never will agree.
    fn next_phase(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        match phase.checked_add(1) {
            Some(next) => self.confirm(fence, next, now),
            None => self.fail(FailureReason::TooLate),
        }
    }

    fn ask_counted(&mut self, fence: Fence, phase: u8) -> Sends {
        let what = Request::Confirm { fence, phase };
        let counted = |state: &MemberState| state.fence().is_some_and(|granted| granted <= fence);
        let mut sends = Sends::new();
        for (state, to) in self.members.iter_mut().zip(self.plan.quorum.members()) {
            if state.confirm == Confirm::Uncounted && counted(state) {
                state.confirm = Confirm::Asked;
                sends.push(Outgoing { to, what });
            }
        }
        sends
    }

    fn count_confirmed(&mut self, fence: Fence, phase: u8, member: Member, now: Instant) -> Progress {
        let state = &self.members[usize::from(member.0)];
        if let Confirm::No(Vote::Granted(greater)) = state.confirm
            && greater > fence
        {
            return self.next_phase(greater, phase, now);
        }
        // A grant that comes during the phase counts if its fence is not greater.
        let joined = self.ask_counted(fence, phase);
        self.decide(fence, phase, joined, now)
    }

    fn decide(&mut self, fence: Fence, phase: u8, asked: Sends, now: Instant) -> Progress {
        let majority = self.plan.quorum.majority();
        let yes = self.count(|state| state.confirm == Confirm::Yes);
        if yes >= majority {
            // A fence that was not asked for would depend on whether there was a wait.
            return self.succeed(Some(fence).filter(|_| self.plan.fenced || majority == 1), now);
        }
        let hoped_for = yes + self.count(|state| state.confirm == Confirm::Asked || state.vote.is_none());
        if hoped_for >= majority {
            return self.open(asked);
        }
        match self.next_fence(fence) {
            Some(next) => self.next_phase(next, phase, now),
            None => {
                let loss = self.reason_or(FailureReason::TooLate);
                self.fail(loss)
            }
        }
    }

    /// The next fence to try if too few masters can confirm `fence`, while a majority still grants.
    fn next_fence(&mut self, fence: Fence) -> Option<Fence> {
        let too_far_ahead = Confirm::No(Vote::Refused(Refusal::FenceAhead));
        let lower = self.members.iter().any(|state| state.confirm == too_far_ahead);
        if lower {
            // The fence came from a clock that is ahead: go on without the masters that granted it.
            for state in &mut self.members {
                state.ahead |= state.fence().is_some_and(|granted| granted >= fence);
            }
        }
        let greatest = self.members.iter().filter_map(MemberState::fence).max();
        let majority_grants = self.count(|state| state.fence().is_some()) >= self.plan.quorum.majority();
        greatest.filter(|&greatest| majority_grants && (lower || greatest > fence))
    }
}

/// For the model checker, which treats states as equal that differ only in the time of day or in the
/// numbering of the members.
#[doc(hidden)]
impl Acquisition {
    /// Moves every remembered instant into the past by `by`.
    pub fn age(&mut self, by: Duration) {
        self.since = self.since.saturating_sub(by);
    }

    /// Renumbers the masters: index `i` becomes what `order[i]` was. Not while queued, as the queues have an
    /// order.
    pub fn relabel(&mut self, order: &[usize]) {
        self.members = order.iter().map(|&from| self.members[from].clone()).collect();
    }

    /// All that is known of one master, only to be compared.
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.members[index]
    }
}
