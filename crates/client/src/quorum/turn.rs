//! Whose turn it is: what the queues of the masters decide about an acquisition, and which of them it goes
//! to.

use super::acquisition::{Acquisition, FailureReason, Progress, Stage};
use super::{Member, Outgoing, Refusal, Request, Sends, Vote};
use crate::lease::Instant;
use smallvec::SmallVec;

/// So often a granted waiter asks those again that refuse: what its predecessor releases may be on the way.
const BRIEF_TRIES: u8 = 5;

/// How an acquisition begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Begin {
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

    pub(super) fn queue_vote(&self) -> Option<&Option<Vote>> {
        self.queue().map(|queue| &self.members[usize::from(queue.0)].vote)
    }

    /// Whether it may hold a part of the quorum while it is refused the rest.
    pub(super) fn has_turn(&self) -> bool {
        matches!(self.begin, Begin::InOrder | Begin::Queued)
    }

    pub(super) fn first_request(&self) -> Request {
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

    pub(super) fn first_answered(&mut self, member: Member, now: Instant) -> Progress {
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

    pub(super) fn looked(&mut self, vote: &Vote, now: Instant) -> Progress {
        if *vote != Vote::Refused(Refusal::NotHeld) {
            return self.fail(FailureReason::Taken);
        }
        self.stage = Stage::Asking;
        self.begin = Begin::NobodyWaits;
        self.count_grants(now)
    }

    /// By a majority of the others a newcomer could overtake the whole queue. Where nobody waits, what its
    /// master alone still holds keeps nobody out.
    pub(super) fn respect_the_queue(&mut self) -> Option<Progress> {
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
    pub(super) fn is_out_of_turn(&self) -> bool {
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
