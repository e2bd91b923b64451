//! The holders of one lock, as the members see them.

use crate::{Member, Quorum};
use std::time::Duration;

/// A holder of the lock at one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its token, as text.
    pub token: String,
    /// The age of its hold.
    pub age: Duration,
}

/// The holders at each member, by its index. `None` means that they are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders(pub Vec<Option<Vec<Holder>>>);

impl Holders {
    /// Returns whether one holder has a majority.
    pub fn has_majority(&self, quorum: Quorum) -> bool {
        self.known().any(|holder| self.count(&holder.token) >= quorum.majority())
    }

    /// Returns whether the wait queue of `member` can move: one of its holders has, or may have, a majority.
    /// A holder without a majority does not release its hold there.
    pub fn queue_can_move(&self, quorum: Quorum, member: Member) -> bool {
        let unknown = self.0.iter().filter(|there| there.is_none()).count();
        match self.at(member) {
            Some(there) if !there.is_empty() => {
                there.iter().any(|holder| self.count(&holder.token) + unknown >= quorum.majority())
            }
            _ => true,
        }
    }

    /// The holders at `member` other than `own` that have no majority, as far as is known.
    pub fn partial_holders(&self, quorum: Quorum, member: Member, own: &str) -> Vec<Holder> {
        let is_partial =
            |holder: &&Holder| holder.token != own && self.count(&holder.token) < quorum.majority();
        self.at(member).into_iter().flatten().filter(is_partial).cloned().collect()
    }

    /// The holders at `member`; `None` if they are unknown.
    pub(crate) fn at(&self, member: Member) -> Option<&Vec<Holder>> {
        self.0.get(usize::from(member.0))?.as_ref()
    }

    fn known(&self) -> impl Iterator<Item = &Holder> {
        self.0.iter().flatten().flatten()
    }

    /// The number of members where `token` holds the lock.
    fn count(&self, token: &str) -> usize {
        let holds = |there: &&Vec<Holder>| there.iter().any(|holder| holder.token == token);
        self.0.iter().flatten().filter(holds).count()
    }
}
