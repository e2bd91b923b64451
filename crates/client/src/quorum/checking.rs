//! What the model checker needs beyond driving the machines: to treat states as equal that differ only in the
//! time of day or in the numbering of the masters. Clients have no use for it.

use super::{Acquisition, Extension};
use std::time::Duration;

#[doc(hidden)]
impl Acquisition {
    /// Moves every remembered instant into the past by `by`.
    pub fn age(&mut self, by: Duration) {
        self.since = self.since.saturating_sub(by);
    }

    /// Renumbers the masters: index `i` becomes what `order[i]` was. Not while queued, as the queues have an
    /// order.
    pub fn relabel(&mut self, order: &[usize]) {
        self.members = order.iter().map(|&from| self.members[from].clone()).collect();
    }

    /// All that is known of one master, only to be compared.
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.members[index]
    }
}

#[doc(hidden)]
impl Extension {
    /// See [`Acquisition::age`].
    pub fn age(&mut self, by: Duration) {
        self.held_until = self.held_until.saturating_sub(by);
        self.extended_until = self.extended_until.saturating_sub(by);
    }

    /// See [`Acquisition::relabel`].
    pub fn relabel(&mut self, order: &[usize]) {
        self.votes = order.iter().map(|&from| self.votes[from].clone()).collect();
    }

    /// See [`Acquisition::member_state`].
    pub fn member_state(&self, index: usize) -> impl Ord + '_ {
        &self.votes[index]
    }
}
