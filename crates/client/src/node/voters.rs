//! One vote for each server.

use std::sync::Arc;
use std::sync::{Mutex, PoisonError};

use dlock_quorum::{Failure, Member, Vote};

const VOTED_ALREADY: &str = "the same server as another member: it would vote twice";

const CHANGED: &str = "its address leads to another server than the one that voted before";

/// The servers whose grants count in one operation. [`MemberList`](super::MemberList) refuses two open
/// connections to one server; but an address can move to a server whose earlier connection has voted and is
/// closed by now.
#[derive(Debug, Default)]
pub(crate) struct Voters(Mutex<Vec<(Member, Arc<str>)>>);

impl Voters {
    /// Returns the vote that `server` has cast for `member`. A grant becomes a failure if that server has
    /// voted for another member, or another server for this one. Only a single server may have no run id.
    pub(crate) fn admit<G>(&self, member: Member, server: Option<Arc<str>>, vote: Vote<G>) -> Vote<G> {
        let (Vote::Granted(_), Some(server)) = (&vote, server) else { return vote };
        let mut counted = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let why = match counted.iter().find(|(known, voter)| *known == member || *voter == server) {
            None => {
                counted.push((member, server));
                return vote;
            }
            Some((known, voter)) if *known == member && *voter == server => return vote,
            Some((known, _)) if *known == member => CHANGED,
            Some(_) => VOTED_ALREADY,
        };
        Vote::Failed(Failure::Error(why.into()))
    }
}
