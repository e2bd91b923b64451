//! Whether the walk of DLOCK.LIST over a server's locks comes to an end.

use std::collections::HashSet;

/// So many answers, at most, with up to 250 locks each: a server with so many locks takes more than 50 GB for
/// them.
const MOST_PARTS: usize = 1_000_000;

/// The cursors that a server has answered.
#[derive(Debug, Default)]
pub(crate) struct Cursors(HashSet<u64>);

impl Cursors {
    /// Whether this one leads on: one that comes again leads in a circle.
    pub(crate) fn leads_on(&mut self, cursor: u64) -> bool {
        self.0.insert(cursor) && self.0.len() < MOST_PARTS
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_walk_that_does_not_end_is_noticed() {
        let mut same = Cursors::default();
        assert!(same.leads_on(4) && same.leads_on(6));
        assert!(!same.leads_on(4));
        let mut cursors = Cursors::default();
        assert!((1..).any(|cursor| !cursors.leads_on(cursor)));
    }
}
