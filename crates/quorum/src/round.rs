//! One round of an acquisition, under one token: it waits in a queue (if it must), asks all members, and
//! confirms the fence.
//!
//! Asking all members is Redlock
//! (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The confirm phase gives a
//! fence to the whole quorum: CONFIRM raises the holds to the greatest fence that a member granted, and a
//! majority must confirm it. Every later majority contains a member of this one, so later fences are greater.
//! (The majority registers of Attiya, Bar-Noy and Dolev work in this way.) `tests/model.rs` model-checks
//! these rules.

use crate::{Failure, Fence, Instant, Member, Outgoing, Plan, Refusal, Request, Sends, Vote, to_all};
use smallvec::SmallVec;
use std::time::Duration;

/// How many times a waiter asks the refusing members again after the grant in its queue. The RELEASE of the
/// previous holder may not have reached them yet. If they still refuse after that, the waiter moves to the
/// queue of one of them.
const RETRIES_BEFORE_NEXT_QUEUE: u8 = 5;

/// A round under way. It needs a token that was never used before: a RELEASE of an earlier use that is still
/// in flight would end the new hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round {
    plan: Plan,
    stage: Stage,
    /// The instant from which validity counts. It is set before the first request is sent, again after a wait
    /// in the queue, and again before the first CONFIRM of each confirm phase.
    valid_from: Instant,
    start: Start,
    /// Whether the member of the current queue has answered that no client waits there.
    queue_is_empty: bool,
    /// The members where clients queue, the first choice first. See [`Round::begin`].
    order: SmallVec<[Member; 5]>,
    /// The index in `order` of the current queue.
    queue_index: u8,
    /// How many times [`Round::ask_again`] has asked.
    asked_again: u8,
    members: SmallVec<[MemberState; 5]>,
}

/// How a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Start {
    /// Asks all members at once. The client must not overtake waiters: a majority counts only once the first
    /// member of `order`, where clients queue, has answered, too. If that member refuses, the majority counts
    /// only if no client waits there.
    AtOnce,
    /// Asks the first reachable member of `order`, and the other members after its grant. If all clients do
    /// so, the other members are asked only by the client to which the first member granted the lock.
    InOrder,
    /// Waits in the queue of the first reachable member of `order`, and asks all members after its grant.
    ///
    /// The grant that ends the wait is no vote. The client does not know when the lease of this grant began,
    /// so the lease may end soon. The client asks that member again together with the others. This renews the
    /// lease, and validity counts from before these requests.
    Queued,
    /// Takes over a hold of this token that was acquired elsewhere. The driver (the code that sends the
    /// requests) sends a request for the fence of the hold in place of each ACQUIRE. A member without the
    /// hold answers [`Refusal::NotHeld`]. The answers do not say how long the lease lasts, so a confirm phase
    /// follows, which renews it. The driver must not send the releases of a failed round: until the round
    /// succeeds, the hold belongs to another owner.
    Adopting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// The round waits for the answer of the member of the current queue.
    AskingQueue,
    /// The round waits for answers to ACQUIRE from other members, too.
    Asking,
    /// A majority granted, but the member of the queue refused. The round asks it whether any client waits
    /// there.
    CheckingQueue,
    /// The confirm phase, with the fence and the number of [`Request::Confirm`].
    Confirming(Fence, u8),
    Ended,
}

/// The result of [`Round::answered`] or [`Round::waited`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Progress {
    /// The requests to send now.
    pub sends: Sends,
    /// The state of the round.
    pub verdict: Verdict,
}

/// The state of a round.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Outstanding answers can still decide it.
    Open,
    /// The outstanding answers cannot complete a majority, but the answers to further requests can. Call
    /// [`Round::ask_again`] after a short random pause.
    TryAgain,
    /// The lock is held.
    Acquired(Acquired),
    /// The round has failed. [`Progress::sends`] has a RELEASE of its token for every member.
    Failed(FailureReason),
}

/// A new hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acquired {
    /// The fence of the whole quorum, or of the single server. `None` for a quorum without [`Plan::fenced`].
    pub fence: Option<Fence>,
    /// The end of its validity.
    pub valid_until: Instant,
}

/// The reason why a round failed. [`Round::votes`] has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// A majority could vote, but too many members refused.
    Taken,
    /// Waiting would be a deadlock.
    Deadlock,
    /// Too many members are down, silent, in a grace period, or have a wrong clock: currently no client can
    /// acquire the lock.
    Impossible,
    /// Too many members reject the request as invalid.
    Misuse,
    /// A majority granted, but the validity ended before the round could succeed, or holds ended before the
    /// members confirmed them.
    TooLate,
}

impl Round {
    /// Begins a round. `order` has the members where clients queue, the first choice first. Clients that
    /// compete should use the same order, so that they share one queue ([`QueueOrder`](crate::QueueOrder)). A
    /// member that is not in `order` gets ACQUIRE like the others, but no wait. Read `now` before sending
    /// anything.
    pub fn begin(plan: Plan, start: Start, order: &[Member], now: Instant) -> (Self, Sends) {
        let (start, order) = match start {
            Start::Adopting => (start, &[][..]),
            Start::InOrder | Start::Queued if order.is_empty() => (Start::AtOnce, order),
            _ => (start, order),
        };
        let mut new = Self {
            plan,
            stage: Stage::Asking,
            valid_from: now,
            start,
            queue_is_empty: false,
            order: SmallVec::from_slice(order),
            queue_index: 0,
            asked_again: 0,
            members: plan.quorum.members().map(|_| MemberState::default()).collect(),
        };
        let Some(to) = new.queue().filter(|_| new.asks_queue_first()) else {
            return (new, to_all(plan.quorum, Request::Acquire));
        };
        new.stage = Stage::AskingQueue;
        let what = new.queue_request();
        (new, SmallVec::from_slice(&[Outgoing { to, what }]))
    }

    /// Takes the answer of `member` to the request `what`. The answer arrived at `now`.
    pub fn answered(&mut self, member: Member, what: Request, vote: Vote, now: Instant) -> Progress {
        let Some(state) = self.members.get_mut(usize::from(member.0)) else { return self.open(Sends::new()) };
        match what {
            Request::Acquire => state.record(vote),
            Request::Confirm { fence, phase } if self.stage == Stage::Confirming(fence, phase) => {
                state.record_confirm(vote, fence);
            }
            Request::HasWaiters if self.stage == Stage::CheckingQueue => {
                return self.waiters_checked(&vote, now);
            }
            // Validity counts from the first CONFIRM of the current phase, so the answers to earlier phases
            // do not count.
            Request::Confirm { .. } | Request::HasWaiters | Request::Extend | Request::Restore => {}
            Request::Wait | Request::Leave | Request::Release => {}
        }
        match self.stage {
            Stage::AskingQueue if self.queue() == Some(member) => self.queue_member_answered(member, now),
            Stage::AskingQueue | Stage::CheckingQueue | Stage::Ended => self.open(Sends::new()),
            Stage::Asking => self.count_grants(now),
            Stage::Confirming(fence, phase) => self.count_confirmed(fence, phase, member, now),
        }
    }

    /// Takes the outcome of [`Request::Wait`] at `member`.
    pub fn waited(&mut self, member: Member, outcome: Vote<()>, now: Instant) -> Progress {
        if self.stage != Stage::AskingQueue || self.start != Start::Queued || self.queue() != Some(member) {
            return self.open(Sends::new());
        }
        let Err(vote) = outcome.into_grant() else {
            self.valid_from = now;
            return self.ask_members_without_grant(now);
        };
        self.members[usize::from(member.0)].record(vote);
        self.queue_member_answered(member, now)
    }

    /// Takes a grant that ended [`Request::Wait`] at `member`. On a single server, the grant is the hold,
    /// valid as `grant` says. Over a quorum, it begins the requests to all members, like a grant passed to
    /// [`waited`](Self::waited).
    pub fn granted_in_queue(&mut self, member: Member, grant: Acquired, now: Instant) -> Progress {
        let is_waiting = self.stage == Stage::AskingQueue && self.queue() == Some(member);
        let is_single = self.plan.quorum.majority() == 1;
        if !is_waiting || !is_single || now >= grant.valid_until {
            return self.waited(member, Vote::Granted(()), now);
        }
        if let (Some(fence), Some(state)) = (grant.fence, self.members.get_mut(usize::from(member.0))) {
            state.record(Vote::Granted(fence));
        }
        self.stage = Stage::Ended;
        Progress { sends: Sends::new(), verdict: Verdict::Acquired(grant) }
    }

    /// Sends ACQUIRE again to members that did not grant. Validity still counts from before the first send,
    /// because a late answer to the first request may complete the majority.
    pub fn ask_again(&mut self) -> Sends {
        if self.stage != Stage::Asking || self.plan.retries == 0 {
            return Sends::new();
        }
        self.plan.retries -= 1;
        self.asked_again = self.asked_again.saturating_add(1);
        let mut sends = Sends::new();
        let asks_queue_first = self.asks_queue_first();
        for (state, to) in self.members.iter_mut().zip(self.plan.quorum.members()) {
            if state.may_be_asked_again(asks_queue_first) {
                state.vote = None;
                sends.push(Outgoing { to, what: Request::Acquire });
            }
        }
        sends
    }

    /// Returns the reason of the failure if the driver does not ask again after [`Verdict::TryAgain`].
    pub fn failure_reason(&self) -> FailureReason {
        self.failure_reason_or(FailureReason::Taken)
    }

    /// Ends the round without a hold. Returns the releases to send: none if the round has already ended.
    pub fn give_up(&mut self) -> Sends {
        match self.stage {
            Stage::Ended => Sends::new(),
            _ => {
                self.stage = Stage::Ended;
                to_all(self.plan.quorum, Request::Release)
            }
        }
    }

    /// Iterates over the last answer of each member; `None` for a member that has not answered.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote>> {
        self.members.iter().map(MemberState::last_answer)
    }

    /// Iterates over the members with clocks that are too far ahead: other members refused to confirm their
    /// fences, which are times in µs.
    pub fn members_ahead(&self) -> impl Iterator<Item = Member> {
        let members = self.plan.quorum.members().zip(&self.members);
        members.filter(|(_, state)| state.is_clock_ahead).map(|(member, _)| member)
    }

    /// Returns the member of the current queue.
    pub fn queue(&self) -> Option<Member> {
        self.order.get(usize::from(self.queue_index)).copied()
    }

    /// Returns the members of `order` up to and including that of the current queue, and those after it.
    /// `None` if the round has tried all queues, or `order` is empty.
    pub(crate) fn tried_and_later_queues(&self) -> Option<(&[Member], &[Member])> {
        self.order.split_at_checked(usize::from(self.queue_index) + 1)
    }

    /// Iterates over the members that are not in `order`.
    pub(crate) fn omitted_members(&self) -> impl Iterator<Item = Member> {
        self.plan.quorum.members().filter(|member| !self.order.contains(member))
    }

    pub(crate) fn start(&self) -> Start {
        self.start
    }

    /// Returns whether the last answer of `member` to ACQUIRE was that another client holds the lock.
    pub(crate) fn is_refused_by(&self, member: Member) -> bool {
        self.members[usize::from(member.0)].vote == Some(Vote::Refused(Refusal::Taken))
    }

    /// Whether the round asks the member of a queue before the other members. If so, the round keeps its
    /// grants while other members refuse, and asks the refusing members again. See
    /// [`MemberState::may_be_asked_again`].
    fn asks_queue_first(&self) -> bool {
        matches!(self.start, Start::InOrder | Start::Queued)
    }

    fn queue_request(&self) -> Request {
        if self.start == Start::Queued { Request::Wait } else { Request::Acquire }
    }

    fn queue_vote(&self) -> Option<&Option<Vote>> {
        self.queue().map(|queue| &self.members[usize::from(queue.0)].vote)
    }

    fn queue_member_answered(&mut self, member: Member, now: Instant) -> Progress {
        let leave = match &self.members[usize::from(member.0)].vote {
            None => return self.open(Sends::new()),
            Some(Vote::Granted(_)) => return self.ask_members_without_grant(now),
            Some(Vote::Refused(Refusal::Grace(_)) | Vote::Failed(_)) => None,
            Some(Vote::Unknown) => {
                (self.start == Start::Queued).then_some(Outgoing { to: member, what: Request::Leave })
            }
            Some(Vote::Refused(_)) => return self.fail(FailureReason::Taken),
        };
        self.queue_index += 1;
        let what = self.queue_request();
        match self.queue() {
            None => self.fail(FailureReason::Impossible),
            Some(to) => self.open(leave.into_iter().chain([Outgoing { to, what }]).collect()),
        }
    }

    fn ask_members_without_grant(&mut self, now: Instant) -> Progress {
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
        if self.respects_queue() && self.queue_vote().is_some_and(Option::is_none) {
            // The member of the queue must answer first.
            return self.open(Sends::new());
        }
        if granted >= majority {
            if let Some(progress) = self.check_for_waiters() {
                return progress;
            }
            let fence = self.members.iter().filter_map(MemberState::fence).max();
            return match fence {
                Some(fence) if self.needs_confirm() => self.confirm(fence, 0, now),
                fence => self.succeed(fence.filter(|_| self.plan.quorum.majority() == 1), now),
            };
        }
        let possible = granted + self.count(|state| state.vote.is_none());
        if possible >= majority {
            return self.open(Sends::new());
        }
        let retryable = self.count(|state| state.may_be_asked_again(self.asks_queue_first()));
        if self.plan.retries > 0 && possible + retryable >= majority && !self.must_release_grants() {
            return Progress { sends: Sends::new(), verdict: Verdict::TryAgain };
        }
        if self.is_failure_reason_open() {
            return self.open(Sends::new());
        }
        self.fail(self.failure_reason())
    }

    /// Whether the outstanding answers decide between "taken" (a majority can vote) and "impossible".
    fn is_failure_reason_open(&self) -> bool {
        let outstanding = self.count(|state| state.last_answer().is_none());
        let unavailable = self.count(MemberState::is_unavailable);
        let quorum = self.plan.quorum;
        quorum.has_majority_without(unavailable) && !quorum.has_majority_without(unavailable + outstanding)
    }

    /// Whether a majority may count only after a check for waiters: see [`Start::AtOnce`].
    fn respects_queue(&self) -> bool {
        self.start == Start::AtOnce && !self.queue_is_empty
    }

    /// If the member of the queue refused, asks it whether clients wait there. A majority of other members
    /// granted, so the round could otherwise overtake all these clients. If no client waits there, the
    /// refusal came from a partial hold (a hold without a majority), which keeps no client out. Returns
    /// `None` if there is nothing to ask.
    fn check_for_waiters(&mut self) -> Option<Progress> {
        let to = self.queue().filter(|_| self.respects_queue())?;
        match self.queue_vote()? {
            Some(Vote::Refused(why)) if !matches!(why, Refusal::Grace(_)) => {
                self.stage = Stage::CheckingQueue;
                Some(self.open(SmallVec::from_slice(&[Outgoing { to, what: Request::HasWaiters }])))
            }
            _ => None,
        }
    }

    fn waiters_checked(&mut self, vote: &Vote, now: Instant) -> Progress {
        // `NotHeld` is the answer to `HasWaiters` if no client waits in the queue.
        if *vote != Vote::Refused(Refusal::NotHeld) {
            return self.fail(FailureReason::Taken);
        }
        self.stage = Stage::Asking;
        self.queue_is_empty = true;
        self.count_grants(now)
    }

    /// Whether the round must release its grants instead of asking again. If two clients that asked all
    /// members at once kept their grants, neither could get a majority. A round that asked the member of a
    /// queue first keeps its grants, because that member granted the lock to this client only. But if other
    /// members still refuse after [`RETRIES_BEFORE_NEXT_QUEUE`] retries, a client that waited in another
    /// queue may have their grants. Then a round that began with a wait releases its grants, if it can move
    /// to another queue.
    fn must_release_grants(&self) -> bool {
        let refused = Some(Vote::Refused(Refusal::Taken));
        match self.start {
            Start::AtOnce if self.queue_is_empty => false,
            Start::AtOnce => {
                let has_grants = self.count(|state| state.fence().is_some()) > 0;
                let is_refused = self.count(|state| state.vote == refused) > 0;
                self.queue_vote() == Some(&refused) || (has_grants && is_refused)
            }
            Start::InOrder | Start::Adopting => false,
            Start::Queued => {
                let may_move_on = || self.next_queue().is_some_and(|next| Some(next) != self.queue());
                self.asked_again >= RETRIES_BEFORE_NEXT_QUEUE && may_move_on()
            }
        }
    }

    /// Whether the round needs a confirm phase. On a single server the fence of the grant is enough.
    fn needs_confirm(&self) -> bool {
        self.start == Start::Adopting || (self.plan.fenced && self.plan.quorum.majority() > 1)
    }

    /// Begins a confirm phase for `fence`. Answers of earlier phases no longer count. The phase asks the
    /// members that granted `fence` or a lower fence. CONFIRM does not lower a fence, so a member with a
    /// greater fence is not asked.
    fn confirm(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        self.stage = Stage::Confirming(fence, phase);
        self.valid_from = now;
        self.members.iter_mut().for_each(|state| state.confirm = Confirm::Uncounted);
        let asked = self.send_confirms(fence, phase);
        self.decide_confirmed(fence, phase, asked, now)
    }

    fn send_confirms(&mut self, fence: Fence, phase: u8) -> Sends {
        let what = Request::Confirm { fence, phase };
        let has_grant_to_raise = |state: &MemberState| state.fence().is_some_and(|granted| granted <= fence);
        let mut sends = Sends::new();
        for (state, to) in self.members.iter_mut().zip(self.plan.quorum.members()) {
            if state.confirm == Confirm::Uncounted && has_grant_to_raise(state) {
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
        // A grant that arrives during the phase takes part if its fence is not greater.
        let asked = self.send_confirms(fence, phase);
        self.decide_confirmed(fence, phase, asked, now)
    }

    fn decide_confirmed(&mut self, fence: Fence, phase: u8, asked: Sends, now: Instant) -> Progress {
        let majority = self.plan.quorum.majority();
        let yes = self.count(|state| state.confirm == Confirm::Yes);
        if yes >= majority {
            // An adopted hold is confirmed in any case, but a quorum without `fenced` reports no fence.
            return self.succeed(Some(fence).filter(|_| self.plan.fenced || majority == 1), now);
        }
        let possible = yes + self.count(|state| state.confirm == Confirm::Asked || state.vote.is_none());
        if possible >= majority {
            return self.open(asked);
        }
        match self.choose_next_fence(fence) {
            Some(next) => self.next_phase(next, phase, now),
            None => self.fail(self.failure_reason_or(FailureReason::TooLate)),
        }
    }

    /// Begins the next phase. Fails after 256 phases, because the members will hardly agree any more.
    fn next_phase(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        match phase.checked_add(1) {
            Some(next) => self.confirm(fence, next, now),
            None => self.fail(FailureReason::TooLate),
        }
    }

    /// Returns the fence of the next phase if too few members can confirm `fence`: the greatest fence of the
    /// grants that count. If a member refused `fence` as too far ahead, grants with `fence` or a greater one
    /// no longer count. Otherwise the next fence must be greater than `fence`. `None` if it is not, or if the
    /// grants that count are no majority.
    fn choose_next_fence(&mut self, fence: Fence) -> Option<Fence> {
        let too_far_ahead = Confirm::No(Vote::Refused(Refusal::FenceAhead));
        let is_too_far_ahead = self.members.iter().any(|state| state.confirm == too_far_ahead);
        if is_too_far_ahead {
            // The fence came from a clock that is ahead: continue without the members that granted it.
            for state in &mut self.members {
                state.is_clock_ahead |= state.fence().is_some_and(|granted| granted >= fence);
            }
        }
        let greatest = self.members.iter().filter_map(MemberState::fence).max();
        let has_majority = self.count(|state| state.fence().is_some()) >= self.plan.quorum.majority();
        greatest.filter(|&greatest| has_majority && (is_too_far_ahead || greatest > fence))
    }

    fn open(&self, sends: Sends) -> Progress {
        Progress { sends, verdict: Verdict::Open }
    }

    fn succeed(&mut self, fence: Option<Fence>, now: Instant) -> Progress {
        let valid_until = self.plan.lease.valid_until(self.valid_from);
        if now >= valid_until {
            return self.fail(FailureReason::TooLate);
        }
        self.stage = Stage::Ended;
        Progress { sends: Sends::new(), verdict: Verdict::Acquired(Acquired { fence, valid_until }) }
    }

    fn fail(&mut self, reason: FailureReason) -> Progress {
        let reason = self.invalid_request().unwrap_or(reason);
        Progress { sends: self.give_up(), verdict: Verdict::Failed(reason) }
    }

    /// Returns the reason of a failure: that of [`Self::invalid_request`] if the request itself cannot
    /// succeed, [`FailureReason::Impossible`] if no majority can vote, `if_possible` otherwise.
    fn failure_reason_or(&self, if_possible: FailureReason) -> FailureReason {
        let unavailable = self.count(MemberState::is_unavailable);
        let possible = self.plan.quorum.has_majority_without(unavailable);
        let reason = if possible { if_possible } else { FailureReason::Impossible };
        self.invalid_request().unwrap_or(reason)
    }

    /// Returns the reason why the request itself cannot succeed, whatever the state of the members; `None` if
    /// it can.
    fn invalid_request(&self) -> Option<FailureReason> {
        let is_deadlock = |vote: &Vote| matches!(vote, Vote::Refused(Refusal::Deadlock(_)));
        if self.plan.quorum.is_misuse(self.votes().flatten()) {
            Some(FailureReason::Misuse)
        } else if self.votes().flatten().any(is_deadlock) {
            Some(FailureReason::Deadlock)
        } else {
            None
        }
    }

    fn count(&self, which: impl Fn(&MemberState) -> bool) -> usize {
        self.members.iter().filter(|state| which(state)).count()
    }
}

/// The answers of one member in a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct MemberState {
    /// The answer to ACQUIRE; `None` while it is outstanding.
    vote: Option<Vote>,
    confirm: Confirm,
    /// Whether other members refused its fence as too far ahead of their clocks. Then its grant does not
    /// count.
    is_clock_ahead: bool,
}

/// The state of a member in the current confirm phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Confirm {
    /// The member has no grant that takes part in this phase, so an answer to CONFIRM would not count.
    #[default]
    Uncounted,
    Asked,
    Yes,
    No(Vote),
}

impl MemberState {
    /// Returns the fence of the grant, if the grant counts.
    fn fence(&self) -> Option<Fence> {
        match self.vote {
            Some(Vote::Granted(fence)) if !self.is_clock_ahead => Some(fence),
            _ => None,
        }
    }

    /// Records an answer to ACQUIRE. The answers to an ACQUIRE and its retries arrive in any order. So a
    /// grant replaces any other answer, and only a grant with a greater fence replaces a grant.
    fn record(&mut self, vote: Vote) {
        match (&self.vote, &vote) {
            (Some(Vote::Granted(known)), Vote::Granted(new)) if new > known => self.vote = Some(vote),
            (Some(Vote::Granted(_)), _) => {}
            _ => self.vote = Some(vote),
        }
    }

    /// Records the answer to the CONFIRM of the current phase.
    fn record_confirm(&mut self, vote: Vote, asked: Fence) {
        if matches!(self.confirm, Confirm::Uncounted | Confirm::Yes) {
            return;
        }
        match vote {
            Vote::Granted(fence) if fence == asked => {
                self.confirm = Confirm::Yes;
                return;
            }
            // The hold has got a greater fence since its grant.
            Vote::Granted(fence) if fence > asked => self.vote = Some(vote.clone()),
            // The hold has ended.
            Vote::Refused(Refusal::NotHeld) => self.vote = Some(vote.clone()),
            _ => {}
        }
        self.confirm = Confirm::No(vote);
    }

    /// Returns whether another ACQUIRE makes sense. A member that refused (except in a grace period) is asked
    /// again only after the member of a queue has granted this client the lock. The refusing member may then
    /// have refused only because the RELEASE of the previous holder had not reached it yet. Without the grant
    /// in a queue, two clients that both asked again would each wait for the grants of the other.
    fn may_be_asked_again(&self, asks_queue_first: bool) -> bool {
        match &self.vote {
            None | Some(Vote::Granted(_)) => false,
            Some(Vote::Refused(Refusal::Grace(_))) => true,
            Some(Vote::Refused(_)) => asks_queue_first,
            Some(Vote::Failed(Failure::Misuse(_))) => false,
            Some(Vote::Failed(_) | Vote::Unknown) => true,
        }
    }

    fn last_answer(&self) -> Option<&Vote> {
        match &self.confirm {
            Confirm::No(vote) => Some(vote),
            Confirm::Uncounted | Confirm::Asked | Confirm::Yes => self.vote.as_ref(),
        }
    }

    fn is_unavailable(&self) -> bool {
        self.is_clock_ahead || self.last_answer().is_some_and(Vote::is_unavailable)
    }
}

/// For the model checker. It treats two states as equal if they differ only by a shift in time or by the
/// numbering of the members.
#[doc(hidden)]
impl Round {
    /// Moves every remembered instant into the past by `by`.
    pub fn age(&mut self, by: Duration) {
        self.valid_from = self.valid_from.saturating_sub(by);
    }

    /// Renumbers the members: the member with the old index `order[i]` gets the index `i`. Not for a round
    /// with queues, which belong to certain members.
    pub fn relabel(&mut self, order: &[usize]) {
        self.members = order.iter().map(|&from| self.members[from].clone()).collect();
    }

    /// Returns the state of one member. The caller can only compare it.
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.members[index]
    }
}
