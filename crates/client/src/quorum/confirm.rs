//! The confirm phase of an acquisition: brings a majority of the counted masters to one fence, and renews the
//! lease.

use super::acquisition::{Acquisition, FailureReason, Progress, Stage};
use super::member_state::{Confirm, MemberState};
use super::{Fence, Member, Outgoing, Refusal, Request, Sends, Vote};
use crate::lease::Instant;

impl Acquisition {
    /// Begins a confirm phase for `fence`, with no answer counted. It asks the masters whose grant counts. A
    /// grant with a greater fence is left out rather than waited for: that would cost another phase.
    pub(super) fn confirm(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
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

    pub(super) fn count_confirmed(
        &mut self,
        fence: Fence,
        phase: u8,
        member: Member,
        now: Instant,
    ) -> Progress {
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
