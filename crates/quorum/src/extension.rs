//! A new lease for a hold, and the hold itself on members that have forgotten it.
//!
//! A member that restarts without its data loses the hold. If one member after the other did, the hold would
//! be lost, although a majority had it all the time. So the client asks such a member for the hold again, by
//! a rule that `tests/model.rs` checks: only after a majority has extended without it, and its grant is no
//! vote, as only EXTEND is. Each new validity still rests on a majority that held the lock when asked, with a
//! lease from then on. As for an acquisition, a member that forgets must grant nothing for a lease. If such
//! grants were votes, they would bring back a hold that an operator has ended everywhere.

use crate::{Instant, Lease, Member, Outgoing, Quorum, Refusal, Request, Sends, Vote, to_all};
use smallvec::SmallVec;
use std::time::Duration;

/// An extension under way. An answer to an earlier extension must not be passed to a later one.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Extension {
    quorum: Quorum,
    held_until: Instant,
    extended_until: Instant,
    votes: SmallVec<[Option<Vote<()>>; 5]>,
}

/// The state of an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Extended {
    /// Outstanding answers can still decide it.
    Open,
    /// A majority has the new lease: the hold is valid until this instant.
    Until(Instant),
    /// No majority agreed, and none refused: the hold keeps its end, and may be extended again until then.
    Unconfirmed,
    /// The hold is lost: its validity has ended, or too many members do not hold it for a majority.
    Lost,
}

impl Extension {
    /// Asks all members for `lease`, for a hold that is valid until `held_until`. Read `now` before sending
    /// anything.
    pub fn new(quorum: Quorum, lease: Lease, held_until: Instant, now: Instant) -> (Self, Sends) {
        let extended_until = lease.valid_until(now);
        let votes = quorum.members().map(|_| None).collect();
        // EXTEND can also shorten the lease, and a member that does not answer may have done so.
        let held_until = held_until.min(extended_until);
        (Self { quorum, held_until, extended_until, votes }, to_all(quorum, Request::Extend))
    }

    /// Returns the end of validity while answers are outstanding: never later than before.
    pub fn held_until(&self) -> Instant {
        self.held_until
    }

    /// Takes the answer of `member`, received at `now`.
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
            // After its end the hold stays lost, even if every member still has it: the caller was told.
            Extended::Lost
        } else if yes >= majority {
            self.held_until = self.extended_until;
            Extended::Until(self.extended_until)
        } else if yes + outstanding >= majority || !self.quorum.possible_without(not_held + outstanding) {
            Extended::Open
        } else {
            Extended::Unconfirmed
        }
    }

    /// Asks each member that does not hold the lock for it again, once, if a majority holds it. Call it after
    /// each answer, also after answers that arrive when the extension is decided.
    pub fn restore(&mut self, now: Instant) -> Sends {
        let yes = self.count(|vote| *vote == Some(Vote::Granted(())));
        let mut sends = Sends::new();
        if yes < self.quorum.majority() || now >= self.held_until {
            return sends;
        }
        for (vote, to) in self.votes.iter_mut().zip(self.quorum.members()) {
            if *vote == Some(Vote::Refused(Refusal::NotHeld)) {
                *vote = None;
                sends.push(Outgoing { to, what: Request::Restore });
            }
        }
        sends
    }

    /// Iterates over the answer of each member; `None` where none has arrived yet.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote<()>>> {
        self.votes.iter().map(Option::as_ref)
    }

    fn count(&self, which: impl Fn(&Option<Vote<()>>) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }
}

/// For the model checker, which treats states as equal that differ only in the time of day or in the
/// numbering of the members.
#[doc(hidden)]
impl Extension {
    /// See [`Round::age`].
    pub fn age(&mut self, by: Duration) {
        self.held_until = self.held_until.saturating_sub(by);
        self.extended_until = self.extended_until.saturating_sub(by);
    }

    /// See [`Round::relabel`].
    pub fn relabel(&mut self, order: &[usize]) {
        self.votes = order.iter().map(|&from| self.votes[from].clone()).collect();
    }

    /// See [`Round::member_state`].
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.votes[index]
    }
}
