//! The walk of DLOCK.LIST over a server's locks.

use redis::Cmd;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;

use crate::error::NodeState;
use crate::inspect::Listed;
use crate::node::{Channel, Node};
use crate::reading;

/// So many answers, at most, with up to 250 locks each: a server with so many locks takes more than 50 GB for
/// them.
const MOST_PARTS: usize = 1_000_000;

/// Asks from the beginning to the end. Names may be as long as their clients like, so it is apart from the
/// locks.
pub(crate) async fn walk(node: &Arc<Node>, question: &impl Fn(u64) -> Cmd) -> Result<Vec<Listed>, NodeState> {
    let channel = Channel::apart(node).await?;
    let (mut cursors, mut found) = (Cursors::default(), HashMap::new());
    let mut cursor = 0;
    loop {
        let (next, locks) = channel.find(&question(cursor), reading::listing).await?;
        found.extend(locks.into_iter().map(|lock| (lock.resource.clone(), lock)));
        if next == 0 {
            return Ok(found.into_values().collect());
        }
        if !cursors.leads_on(next) {
            return Err(NodeState::Failed("its walk over the locks (DLOCK.LIST) does not end".into()));
        }
        cursor = next;
    }
}

/// The cursors that a server has answered.
#[derive(Debug, Default)]
struct Cursors(HashSet<u64>);

impl Cursors {
    /// Whether this one leads on: one that comes again leads in a circle.
    fn leads_on(&mut self, cursor: u64) -> bool {
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
