//! An extension: renews the lease of a hold on all members, and restores the hold on members that have lost
//! it.
//!
//! A member that restarts without its data loses the hold. Two such restarts among three members, even days
//! apart, would leave the hold without a majority. So the client requests the hold again from a member that
//! has lost it (a restore). It does so only after a majority has extended the hold, and counts only answers
//! to EXTEND as votes. If restores were votes, they could bring back a hold that an operator has ended
//! everywhere. `tests/model.rs` checks these rules.
//!
//! Restores, like acquisitions, are safe only if a member that has lost its data grants no locks for the
//! length of a lease: its grace period.

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
    /// Outstanding answers can still decide the extension.
    Open,
    /// A majority has the new lease: the hold is valid until this instant.
    Until(Instant),
    /// No majority has extended the hold, but a majority may still have it. The caller may begin another
    /// extension before [`Extension::held_until`].
    Unconfirmed,
    /// The hold is lost: its validity has ended, or so many members lack it that the others are no majority.
    Lost,
}

impl Extension {
    /// Begins to extend a hold that is valid until `held_until`: asks all members for `lease`. Read `now`
    /// before sending anything.
    pub fn new(quorum: Quorum, lease: Lease, held_until: Instant, now: Instant) -> (Self, Sends) {
        let extended_until = lease.valid_until(now);
        let votes = quorum.members().map(|_| None).collect();
        // EXTEND can also shorten the lease, and a member that does not answer may have done so.
        let held_until = held_until.min(extended_until);
        (Self { quorum, held_until, extended_until, votes }, to_all(quorum, Request::Extend))
    }

    /// Returns the end of the validity. Until a majority has extended the hold, that is the previous end, or
    /// the end of the new lease if that is earlier.
    pub fn held_until(&self) -> Instant {
        self.held_until
    }

    /// Takes the answer of `member` to EXTEND, received at `now`.
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
        // A hold is lost at the end of its validity even if every member still has it: the caller may already
        // treat it as lost.
        if now >= self.held_until || !self.quorum.has_majority_without(not_held) {
            Extended::Lost
        } else if yes >= majority {
            self.held_until = self.extended_until;
            Extended::Until(self.extended_until)
        } else if yes + outstanding >= majority || !self.quorum.has_majority_without(not_held + outstanding) {
            Extended::Open
        } else {
            Extended::Unconfirmed
        }
    }

    /// Requests the hold again from each member that has lost it, if a majority has extended it. Call this
    /// after each answer, even if the extension is already decided.
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

    /// Iterates over the answer of each member; `None` for a member that has not answered.
    pub fn votes(&self) -> impl Iterator<Item = Option<&Vote<()>>> {
        self.votes.iter().map(Option::as_ref)
    }

    fn count(&self, which: impl Fn(&Option<Vote<()>>) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }
}

/// For the model checker. It treats two states as equal if they differ only by a shift in time or by the
/// numbering of the members.
#[doc(hidden)]
impl Extension {
    /// See [`age`](crate::Round::age) of a round.
    pub fn age(&mut self, by: Duration) {
        self.held_until = self.held_until.saturating_sub(by);
        self.extended_until = self.extended_until.saturating_sub(by);
    }

    /// See [`relabel`](crate::Round::relabel) of a round.
    pub fn relabel(&mut self, order: &[usize]) {
        self.votes = order.iter().map(|&from| self.votes[from].clone()).collect();
    }

    /// See [`member_state`](crate::Round::member_state) of a round.
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.votes[index]
    }
}
