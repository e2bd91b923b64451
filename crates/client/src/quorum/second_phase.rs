//! The second phase of an acquisition: a majority of the masters whose grant is counted is brought to one fence, and
//! the lease is set anew.

use super::acquisition::{Acquisition, Loss, Progress, Stage};
use super::seat::{Confirm, Seat};
use super::{Fence, Member, Outgoing, Refusal, Request, Sends, Vote};
use crate::lease::Instant;

impl Acquisition {
    /// Begins the second phase for `fence`, with no answer counted. Asked are the masters whose grant is counted in
    /// it. A grant with a greater number is left out rather than waited for: it would cost a phase more.
    pub(super) fn confirm(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        self.stage = Stage::Confirming(fence, phase);
        self.since = now;
        self.seats.iter_mut().for_each(|seat| seat.confirm = Confirm::Uncounted);
        let asked = self.ask_counted(fence, phase);
        self.decide(fence, phase, asked, now)
    }

    /// A number for each phase; a quorum that is still not of one mind after all of them never will be.
    fn next_phase(&mut self, fence: Fence, phase: u8, now: Instant) -> Progress {
        match phase.checked_add(1) {
            Some(next) => self.confirm(fence, next, now),
            None => self.lose(Loss::TooLate),
        }
    }

    fn ask_counted(&mut self, fence: Fence, phase: u8) -> Sends {
        let what = Request::Confirm { fence, phase };
        let counted = |seat: &Seat| seat.fence().is_some_and(|granted| granted <= fence);
        let mut sends = Sends::new();
        for (seat, to) in self.seats.iter_mut().zip(self.plan.quorum.members()) {
            if seat.confirm == Confirm::Uncounted && counted(seat) {
                seat.confirm = Confirm::Asked;
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
        let seat = &self.seats[usize::from(member.0)];
        if let Confirm::No(Vote::Granted(greater)) = seat.confirm
            && greater > fence
        {
            return self.next_phase(greater, phase, now);
        }
        // A grant that comes while the phase runs is counted, if its number is not greater.
        let joined = self.ask_counted(fence, phase);
        self.decide(fence, phase, joined, now)
    }

    fn decide(&mut self, fence: Fence, phase: u8, asked: Sends, now: Instant) -> Progress {
        let majority = self.plan.quorum.majority();
        let yes = self.count(|seat| seat.confirm == Confirm::Yes);
        if yes >= majority {
            // One that was not asked for would come and go with whether there was a wait.
            return self.win(Some(fence).filter(|_| self.plan.fenced || majority == 1), now);
        }
        let hoped_for = yes + self.count(|seat| seat.confirm == Confirm::Asked || seat.vote.is_none());
        if hoped_for >= majority {
            return self.open(asked);
        }
        match self.next_fence(fence) {
            Some(next) => self.next_phase(next, phase, now),
            None => {
                let loss = self.loss(Loss::TooLate);
                self.lose(loss)
            }
        }
    }

    /// The fence to go on with when too few can say `fence`, if a majority still grants.
    fn next_fence(&mut self, fence: Fence) -> Option<Fence> {
        let too_far_ahead = Confirm::No(Vote::Refused(Refusal::FenceAhead));
        let lower = self.seats.iter().any(|seat| seat.confirm == too_far_ahead);
        if lower {
            // The number came from a clock that is ahead: go on without those who have it.
            for seat in &mut self.seats {
                seat.ahead |= seat.fence().is_some_and(|granted| granted >= fence);
            }
        }
        let greatest = self.seats.iter().filter_map(Seat::fence).max();
        let majority_grants = self.count(|seat| seat.fence().is_some()) >= self.plan.quorum.majority();
        greatest.filter(|&greatest| majority_grants && (lower || greatest > fence))
    }
}
