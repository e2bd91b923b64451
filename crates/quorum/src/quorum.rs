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

    /// Returns whether too many members reject the request as invalid for a majority ever to grant it.
    pub fn is_misuse<'a, G: 'a>(self, votes: impl Iterator<Item = &'a Vote<G>>) -> bool {
        !self.possible_without(votes.filter(|vote| vote.is_misuse()).count())
    }
}
