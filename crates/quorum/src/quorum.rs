//! The members of a quorum, and the size of a majority.

use crate::Vote;

/// A server of the quorum: its index in the client's list of members.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Member(pub u8);

/// The number of members. A majority of them decides.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Quorum {
    members: u8,
}

impl Quorum {
    /// A quorum of `members` independent servers; `None` for zero.
    pub fn new(members: u8) -> Option<Self> {
        (members > 0).then_some(Self { members })
    }

    /// Iterates over all members.
    pub fn members(self) -> impl Iterator<Item = Member> {
        (0..self.members).map(Member)
    }

    /// Returns the size of a majority. Any two majorities have a member in common.
    pub fn majority(self) -> usize {
        usize::from(self.members) / 2 + 1
    }

    /// Returns whether a majority is possible when `unavailable` members do not vote for it.
    pub fn possible_without(self, unavailable: usize) -> bool {
        usize::from(self.members).saturating_sub(unavailable) >= self.majority()
    }

    /// Returns whether so many members reject the request as invalid that no majority can ever grant it.
    pub fn is_misuse<'a, G: 'a>(self, votes: impl Iterator<Item = &'a Vote<G>>) -> bool {
        !self.possible_without(votes.filter(|vote| vote.is_misuse()).count())
    }

    /// Returns whether one holder has a majority. `holders` is indexed by member; `None` means that the
    /// holders of that member are unknown.
    pub fn has_holder<T: PartialEq>(self, holders: &[Option<Vec<T>>]) -> bool {
        let count = |holder: &T| holders.iter().flatten().filter(|there| there.contains(holder)).count();
        holders.iter().flatten().flatten().any(|holder| count(holder) >= self.majority())
    }

    /// Returns whether the wait queue of member `queue` can move: one of its holders has, or may have, a
    /// majority. A holder without a majority does not release what it has there.
    pub fn may_move<T: PartialEq>(self, queue: Member, holders: &[Option<Vec<T>>]) -> bool {
        let may_have = |holder: &T| {
            holders.iter().filter(|there| there.as_ref().is_none_or(|there| there.contains(holder))).count()
        };
        match holders.get(usize::from(queue.0)) {
            Some(Some(there)) if !there.is_empty() => {
                there.iter().any(|holder| may_have(holder) >= self.majority())
            }
            _ => true,
        }
    }
}
