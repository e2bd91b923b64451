//! What a model checker needs of the machines beyond driving them: to see states as equal that differ only in the time
//! of day or in the numbering of the masters. No client has a use for it.

use super::{Acquisition, Extension};
use std::time::Duration;

#[doc(hidden)]
impl Acquisition {
    /// Moves all that the machine remembers into the past by `by`, as if so much more time had gone by.
    pub fn age(&mut self, by: Duration) {
        self.since = self.since.saturating_sub(by);
    }

    /// Renumbers the masters: place `i` is what place `order[i]` was. Not while waiting in line, which has an order of its own.
    pub fn relabel(&mut self, order: &[usize]) {
        self.seats = order.iter().map(|&from| self.seats[from].clone()).collect();
    }

    /// All that is known of the master at `place`, to be compared and no more.
    pub fn seat(&self, place: usize) -> impl Ord + '_ {
        &self.seats[place]
    }
}

#[doc(hidden)]
impl Extension {
    /// As [`Acquisition::age`].
    pub fn age(&mut self, by: Duration) {
        self.held_until = self.held_until.saturating_sub(by);
        self.extended_until = self.extended_until.saturating_sub(by);
    }

    /// As [`Acquisition::relabel`].
    pub fn relabel(&mut self, order: &[usize]) {
        self.votes = order.iter().map(|&from| self.votes[from].clone()).collect();
    }

    /// As [`Acquisition::seat`].
    pub fn seat(&self, place: usize) -> impl Ord + '_ {
        &self.votes[place]
    }
}
