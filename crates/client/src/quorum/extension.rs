//! A new lease for a hold.

use super::Member;
use super::{Quorum, Refusal, Request, Sends, Vote, to_all};
use crate::lease::{Instant, Lease};
use smallvec::SmallVec;

/// An extension under way. Each has its own answers: one that answers an earlier extension must not be given to a later.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extension {
    quorum: Quorum,
    pub(super) held_until: Instant,
    pub(super) extended_until: Instant,
    pub(super) votes: SmallVec<[Option<Vote<()>>; 5]>,
}

/// How an extension stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// Answers are outstanding that can still decide it.
    Open,
    /// A majority has the new lease: validity ends here now.
    Until(Instant),
    /// No majority said yes, and none said no: the hold goes on to its end, and may be extended again until then.
    Kept,
    /// The hold is over: its validity has ended, or so many masters do not hold it that no majority can.
    Over,
}

impl Extension {
    /// Asks all masters for `lease`, for a hold that is valid until `held_until`. `now` is read before anything is sent.
    pub fn new(quorum: Quorum, lease: Lease, held_until: Instant, now: Instant) -> (Self, Sends) {
        let extended_until = lease.valid_until(now);
        let votes = quorum.members().map(|_| None).collect();
        // EXTEND also shortens, and a master that does not answer may have done so.
        let held_until = held_until.min(extended_until);
        (Self { quorum, held_until, extended_until, votes }, to_all(quorum, Request::Extend))
    }

    /// What validity may be counted on while answers are outstanding: never more than before.
    pub fn held_until(&self) -> Instant {
        self.held_until
    }

    /// Takes the answer of `member`, seen at `now`.
    pub fn answered(&mut self, member: Member, vote: Vote<()>, now: Instant) -> Extended {
        if let Some(known) = self.votes.get_mut(usize::from(member.0))
            && *known != Some(Vote::Granted(()))
        {
            *known = Some(vote);
        }
        let majority = self.quorum.majority();
        let yes = self.count(|vote| *vote == Some(Vote::Granted(())));
        let not_held = self.count(|vote| *vote == Some(Vote::Refused(Refusal::NotHeld)));
        let outstanding = self.count(Option::is_none);
        if now >= self.held_until || !self.quorum.possible_without(not_held) {
            // Past its end the hold stays lost, even if every master still had it: its holder was told.
            Extended::Over
        } else if yes >= majority {
            self.held_until = self.extended_until;
            Extended::Until(self.extended_until)
        } else if yes + outstanding >= majority || !self.quorum.possible_without(not_held + outstanding) {
            Extended::Open
        } else {
            Extended::Kept
        }
    }

    /// What each master said; None where no answer came yet.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote<()>>> {
        self.votes.iter().map(Option::as_ref)
    }

    fn count(&self, which: impl Fn(&Option<Vote<()>>) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }
}
