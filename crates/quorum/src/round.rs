//! One round of an acquisition, with one token: the wait queue, the tries, the confirm phase.
//!
//! The tries are Redlock (<https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>). The
//! confirm phase is a majority register for the fence, like the write phase of the registers of Attiya,
//! Bar-Noy and Dolev: F is the greatest fence that the counted members granted, CONFIRM raises the holds to
//! F, and a majority that answers F intersects every later majority, which so gets greater fences.
//! The model checker searched these rules; `tests/model.rs` also has the variants that it refuted.

use crate::{Failure, Fence, Instant, Member, Outgoing, Plan, Refusal, Request, Sends, Vote, to_all};
use smallvec::SmallVec;
use std::time::Duration;

/// A granted waiter asks the members that refuse at most this many times before it goes to their queue: the
/// releases of its predecessor may still be in flight.
const BRIEF_TRIES: u8 = 5;

/// A round under way. It needs a token that was never used before: a RELEASE of an earlier use that is still
/// in flight would end the new hold.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Round {
    plan: Plan,
    stage: Stage,
    /// Validity counts from here: before the first send, before the claims of a grant that was waited for, or
    /// before the send of the confirm phase.
    since: Instant,
    start: Start,
    /// Whether the member of the queue said that no client waits there.
    queue_is_empty: bool,
    /// The members where clients queue, the first choice first.
    order: SmallVec<[Member; 5]>,
    /// The index in `order` of the current queue.
    queue: u8,
    /// How many times the members were asked again.
    asked_again: u8,
    members: SmallVec<[MemberState; 5]>,
}

/// How a round begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Start {
    /// Asks all members at once, and overtakes no waiter: the first member where clients queue must answer
    /// before a majority counts, and if it refuses, a majority counts only if no client waits there.
    AtOnce,
    /// Asks the first reachable member, and the others after its grant: of several clients, one at a time
    /// passes it.
    InOrder,
    /// Waits in the queue of the first reachable member, and asks all members after its grant.
    ///
    /// The client does not know when a grant after a wait began, and its lease can be short. So the grant is
    /// no vote: the member is asked again together with the others, which renews the lease, and validity
    /// counts from there.
    Queued,
    /// Takes over a hold of this token that was acquired elsewhere. The driver sends a request for the fence
    /// of the hold in place of each ACQUIRE. A member without the hold answers [`Refusal::NotHeld`]. The
    /// answers say nothing about the lease, so the hold is confirmed. The driver must not send the clean-up:
    /// until the round succeeds, the hold belongs to another owner.
    Adopting,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Stage {
    /// The member of the queue has not answered.
    First,
    Asking,
    /// A majority granted, but the member of the queue refused: does any client wait there?
    Looking,
    /// The confirm phase, with the fence and the number of [`Request::Confirm`].
    Confirming(Fence, u8),
    Ended,
}

/// The consequence of an event.
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
    /// The outstanding answers cannot complete a majority. Call [`Round::ask_again`] after a short random
    /// pause.
    TryAgain,
    /// The lock is held.
    Acquired(Acquired),
    /// The lock is not held; the sends clean up.
    Failed(FailureReason),
}

/// A new hold.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Acquired {
    /// Its fence: of the whole quorum if the plan was fenced, of the server if there is only one, otherwise
    /// `None`.
    pub fence: Option<Fence>,
    /// The end of its validity.
    pub valid_until: Instant,
}

/// The reason why a round failed. [`Round::votes`] has the details.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FailureReason {
    /// Enough members could vote, and too many refused.
    Taken,
    /// Waiting would be a deadlock.
    Deadlock,
    /// Too many members are down, silent, in grace or have a wrong clock: currently no client can acquire the
    /// lock.
    Impossible,
    /// Too many members reject the request as invalid.
    Misuse,
    /// A majority granted, but too late: nothing of the lease is left, or it expired before it was confirmed.
    TooLate,
}

impl Round {
    /// Begins a round. `order` has the members where clients queue, the first choice first. It must be the
    /// same for all clients, so that they meet in one queue; members that it omits are only asked. Read `now`
    /// before sending anything.
    pub fn begin(plan: Plan, start: Start, order: &[Member], now: Instant) -> (Self, Sends) {
        let (start, order) = match start {
            Start::Adopting => (start, &[][..]),
            Start::InOrder | Start::Queued if order.is_empty() => (Start::AtOnce, order),
            _ => (start, order),
        };
        let mut new = Self {
            plan,
            stage: Stage::Asking,
            since: now,
            start,
            queue_is_empty: false,
            order: SmallVec::from_slice(order),
            queue: 0,
            asked_again: 0,
            members: plan.quorum.members().map(|_| MemberState::default()).collect(),
        };
        let Some(to) = new.queue().filter(|_| new.has_turn()) else {
            return (new, to_all(plan.quorum, Request::Acquire));
        };
        new.stage = Stage::First;
        let what = new.first_request();
        (new, SmallVec::from_slice(&[Outgoing { to, what }]))
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

    /// Takes the outcome of [`Request::Wait`] at `member`. A grant means that it is this client's turn.
    pub fn waited(&mut self, member: Member, ended: Vote<()>, now: Instant) -> Progress {
        if self.stage != Stage::First || self.start != Start::Queued || self.queue() != Some(member) {
            return self.open(Sends::new());
        }
        let Err(vote) = ended.into_grant() else {
            self.since = now;
            return self.ask_the_others(now);
        };
        self.members[usize::from(member.0)].record(vote);
        self.first_answered(member, now)
    }

    /// Asks the members that did not grant once more. Validity still counts from the first send: a late
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

    /// Returns the reason of the failure if the driver does not ask again after [`Verdict::TryAgain`].
    pub fn why_not(&self) -> FailureReason {
        self.reason_or(FailureReason::Taken)
    }

    /// Ends the round without a hold. Returns the clean-up to send; empty if the round has already ended.
    pub fn give_up(&mut self) -> Sends {
        match self.stage {
            Stage::Ended => Sends::new(),
            _ => {
                self.stage = Stage::Ended;
                to_all(self.plan.quorum, Request::Release)
            }
        }
    }

    /// Iterates over the last answer of each member; `None` where none has arrived yet.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote>> {
        self.members.iter().map(MemberState::last_answer)
    }

    /// Iterates over the members with fences too far ahead of the clocks of the others.
    pub fn ahead(&self) -> impl Iterator<Item = Member> {
        let members = self.plan.quorum.members().zip(&self.members);
        members.filter(|(_, state)| state.ahead).map(|(member, _)| member)
    }

    /// Returns the member of the current queue.
    pub fn queue(&self) -> Option<Member> {
        self.order.get(usize::from(self.queue)).copied()
    }

    /// The queues of `order` up to and including the current one, and those after it. `None` if all of them
    /// failed, or `order` is empty.
    pub(crate) fn queues(&self) -> Option<(&[Member], &[Member])> {
        self.order.split_at_checked(usize::from(self.queue) + 1)
    }

    /// Iterates over the members that `order` omits.
    pub(crate) fn unnamed(&self) -> impl Iterator<Item = Member> {
        self.plan.quorum.members().filter(|member| !self.order.contains(member))
    }

    pub(crate) fn start(&self) -> Start {
        self.start
    }

    /// Returns whether another client held the lock at `member` at its last answer.
    pub(crate) fn is_refused_by(&self, member: Member) -> bool {
        self.members[usize::from(member.0)].vote == Some(Vote::Refused(Refusal::Taken))
    }

    /// Whether the client may keep a part of the quorum while other members refuse it.
    fn has_turn(&self) -> bool {
        matches!(self.start, Start::InOrder | Start::Queued)
    }

    fn first_request(&self) -> Request {
        if self.start == Start::Queued { Request::Wait } else { Request::Acquire }
    }

    fn queue_vote(&self) -> Option<&Option<Vote>> {
        self.queue().map(|queue| &self.members[usize::from(queue.0)].vote)
    }

    fn first_answered(&mut self, member: Member, now: Instant) -> Progress {
        let leave = match &self.members[usize::from(member.0)].vote {
            None => return self.open(Sends::new()),
            Some(Vote::Granted(_)) => return self.ask_the_others(now),
            Some(Vote::Refused(Refusal::Grace(_)) | Vote::Failed(_)) => None,
            Some(Vote::Unknown) => {
                (self.start == Start::Queued).then_some(Outgoing { to: member, what: Request::Leave })
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
        if self.respects_queue() && self.queue_vote().is_some_and(Option::is_none) {
            // The member of the queue must answer first.
            return self.open(Sends::new());
        }
        if granted >= majority {
            if let Some(progress) = self.look_before_overtaking() {
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
        let again = self.count(|state| state.may_be_asked_again(self.has_turn()));
        if self.plan.retries > 0 && possible + again >= majority && !self.is_out_of_turn() {
            return Progress { sends: Sends::new(), verdict: Verdict::TryAgain };
        }
        if self.is_reason_open() {
            return self.open(Sends::new());
        }
        self.fail(self.why_not())
    }

    /// Whether the outstanding answers decide between "taken" and "no quorum": a majority may be able to
    /// vote, or may not.
    fn is_reason_open(&self) -> bool {
        let outstanding = self.count(|state| state.last_answer().is_none());
        let unavailable = self.count(MemberState::is_unavailable);
        let quorum = self.plan.quorum;
        quorum.possible_without(unavailable) && !quorum.possible_without(unavailable + outstanding)
    }

    fn respects_queue(&self) -> bool {
        self.start == Start::AtOnce && !self.queue_is_empty
    }

    /// With a majority of the other members, a newcomer could overtake the whole queue. If no client waits, a
    /// hold that the member of the queue has alone keeps no client out.
    fn look_before_overtaking(&mut self) -> Option<Progress> {
        let to = self.queue().filter(|_| self.respects_queue())?;
        match self.queue_vote()? {
            Some(Vote::Refused(why)) if !matches!(why, Refusal::Grace(_)) => {
                self.stage = Stage::Looking;
                Some(self.open(SmallVec::from_slice(&[Outgoing { to, what: Request::Look }])))
            }
            _ => None,
        }
    }

    fn looked(&mut self, vote: &Vote, now: Instant) -> Progress {
        if *vote != Vote::Refused(Refusal::NotHeld) {
            return self.fail(FailureReason::Taken);
        }
        self.stage = Stage::Asking;
        self.queue_is_empty = true;
        self.count_grants(now)
    }

    /// Whether the client must give back its grants instead of asking again: its turn has not come, or it
    /// came in another queue than that of the clients that hold the rest. If two clients each kept a part
    /// until a missing member is back, neither could get a majority.
    fn is_out_of_turn(&self) -> bool {
        let refused = Some(Vote::Refused(Refusal::Taken));
        match self.start {
            Start::AtOnce if self.queue_is_empty => false,
            Start::AtOnce => {
                let has_a_part = self.count(|state| state.fence().is_some()) > 0;
                let is_refused = self.count(|state| state.vote == refused) > 0;
                self.queue_vote() == Some(&refused) || (has_a_part && is_refused)
            }
            Start::InOrder | Start::Adopting => false,
            Start::Queued => {
                let may_move_on = || self.next_queue().is_some_and(|next| Some(next) != self.queue());
                self.asked_again >= BRIEF_TRIES && may_move_on()
            }
        }
    }

    /// On a single server the fence of the grant is enough.
    fn needs_confirm(&self) -> bool {
        self.start == Start::Adopting || (self.plan.fenced && self.plan.quorum.majority() > 1)
    }

    /// Begins a confirm phase for `fence`, with no answer counted. It asks the members with a counted grant.
    /// A grant with a greater fence is left out rather than waited for: that would cost another phase.
    fn confirm(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        self.stage = Stage::Confirming(fence, phase);
        self.since = now;
        self.members.iter_mut().for_each(|state| state.confirm = Confirm::Uncounted);
        let asked = self.ask_counted(fence, phase);
        self.decide_confirmed(fence, phase, asked, now)
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
        // A grant that arrives during the phase counts if its fence is not greater.
        let joined = self.ask_counted(fence, phase);
        self.decide_confirmed(fence, phase, joined, now)
    }

    fn decide_confirmed(&mut self, fence: Fence, phase: u8, asked: Sends, now: Instant) -> Progress {
        let majority = self.plan.quorum.majority();
        let yes = self.count(|state| state.confirm == Confirm::Yes);
        if yes >= majority {
            // Without `fenced`, whether there is a fence must not depend on whether there was a wait.
            return self.succeed(Some(fence).filter(|_| self.plan.fenced || majority == 1), now);
        }
        let possible = yes + self.count(|state| state.confirm == Confirm::Asked || state.vote.is_none());
        if possible >= majority {
            return self.open(asked);
        }
        match self.next_fence(fence) {
            Some(next) => self.next_phase(next, phase, now),
            None => self.fail(self.reason_or(FailureReason::TooLate)),
        }
    }

    /// Begins the next phase. A quorum that still disagrees after 256 of them never agrees.
    fn next_phase(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        match phase.checked_add(1) {
            Some(next) => self.confirm(fence, next, now),
            None => self.fail(FailureReason::TooLate),
        }
    }

    /// The next fence to try if too few members can confirm `fence`, while a majority still grants.
    fn next_fence(&mut self, fence: Fence) -> Option<Fence> {
        let too_far_ahead = Confirm::No(Vote::Refused(Refusal::FenceAhead));
        let lower = self.members.iter().any(|state| state.confirm == too_far_ahead);
        if lower {
            // The fence came from a clock that is ahead: continue without the members that granted it.
            for state in &mut self.members {
                state.ahead |= state.fence().is_some_and(|granted| granted >= fence);
            }
        }
        let greatest = self.members.iter().filter_map(MemberState::fence).max();
        let majority_grants = self.count(|state| state.fence().is_some()) >= self.plan.quorum.majority();
        greatest.filter(|&greatest| majority_grants && (lower || greatest > fence))
    }

    fn open(&self, sends: Sends) -> Progress {
        Progress { sends, verdict: Verdict::Open }
    }

    fn succeed(&mut self, fence: Option<Fence>, now: Instant) -> Progress {
        let valid_until = self.plan.lease.valid_until(self.since);
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

    fn reason_or(&self, if_possible: FailureReason) -> FailureReason {
        let unavailable = self.count(MemberState::is_unavailable);
        let possible = self.plan.quorum.possible_without(unavailable);
        let reason = if possible { if_possible } else { FailureReason::Impossible };
        self.invalid_request().unwrap_or(reason)
    }

    /// The reason if the request itself cannot succeed, whatever the state of the members.
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
    /// Whether its fences are too far ahead of the clocks of the others. Its grant does not count then.
    ahead: bool,
}

/// The state of a member in the current confirm phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
enum Confirm {
    /// Its grant does not count in this phase, and so neither does its answer.
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
            Some(Vote::Granted(fence)) if !self.ahead => Some(fence),
            _ => None,
        }
    }

    /// Records an answer to ACQUIRE. The answers to an ACQUIRE and its retries arrive in any order: a grant
    /// replaces any other answer, and a grant with a greater fence one with a lower.
    fn record(&mut self, vote: Vote) {
        match (&self.vote, &vote) {
            (Some(Vote::Granted(known)), Vote::Granted(new)) if new > known => self.vote = Some(vote),
            (Some(Vote::Granted(_)), _) => {}
            _ => self.vote = Some(vote),
        }
    }

    /// Records the answer to the CONFIRM of the current phase.
    fn confirmed(&mut self, vote: Vote, asked: Fence) {
        if matches!(self.confirm, Confirm::Uncounted | Confirm::Yes) {
            return;
        }
        match vote {
            Vote::Granted(fence) if fence == asked => {
                self.confirm = Confirm::Yes;
                return;
            }
            // The hold has a greater fence than its grant said, or has ended.
            Vote::Granted(fence) if fence > asked => self.vote = Some(vote.clone()),
            Vote::Refused(Refusal::NotHeld) => self.vote = Some(vote.clone()),
            _ => {}
        }
        self.confirm = Confirm::No(vote);
    }

    /// Returns whether another ACQUIRE makes sense. A client does not wait for the hold of another one while
    /// it holds a part of the quorum: two clients that did would wait for each other. Only a client in its
    /// turn does, because its predecessor is about to release the other members.
    fn may_be_asked_again(&self, has_turn: bool) -> bool {
        match &self.vote {
            None | Some(Vote::Granted(_)) => false,
            Some(Vote::Refused(Refusal::Grace(_))) => true,
            Some(Vote::Refused(_)) => has_turn,
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
        self.ahead || self.last_answer().is_some_and(Vote::is_unavailable)
    }
}

/// For the model checker. It treats two states as equal if they differ only by a shift in time or by the
/// numbering of the members.
#[doc(hidden)]
impl Round {
    /// Moves every remembered instant into the past by `by`.
    pub fn age(&mut self, by: Duration) {
        self.since = self.since.saturating_sub(by);
    }

    /// Renumbers the members: the old index `order[i]` becomes index `i`. Not for a queued round, where the
    /// order of the members matters.
    pub fn relabel(&mut self, order: &[usize]) {
        self.members = order.iter().map(|&from| self.members[from].clone()).collect();
    }

    /// Returns the state of one member. The caller can only compare it.
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.members[index]
    }
}
