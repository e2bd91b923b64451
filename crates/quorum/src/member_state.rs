//! The state of one member in a round.

use crate::{Failure, Fence, Refusal, Vote};

/// The answers of one member in a round.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberState {
    /// The answer to ACQUIRE; `None` while it is outstanding.
    pub(crate) vote: Option<Vote>,
    pub(crate) confirm: Confirm,
    /// Whether its fences are too far ahead of the clocks of the others. Its grant does not count then.
    pub(crate) ahead: bool,
}

/// The state of a member in the current confirm phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Confirm {
    /// Its grant does not count in this phase, and so neither does its answer.
    #[default]
    Uncounted,
    Asked,
    Yes,
    No(Vote),
}

impl MemberState {
    /// Returns the fence of the grant, if the grant counts.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self.vote {
            Some(Vote::Granted(fence)) if !self.ahead => Some(fence),
            _ => None,
        }
    }

    /// Records an answer to ACQUIRE. The answers to an ACQUIRE and its retries arrive in any order: a grant
    /// replaces any other answer, and a grant with a greater fence one with a lower.
    pub(crate) fn record(&mut self, vote: Vote) {
        match (&self.vote, &vote) {
            (Some(Vote::Granted(known)), Vote::Granted(new)) if new > known => self.vote = Some(vote),
            (Some(Vote::Granted(_)), _) => {}
            _ => self.vote = Some(vote),
        }
    }

    /// Records the answer to the CONFIRM of the current phase.
    pub(crate) fn confirmed(&mut self, vote: Vote, asked: Fence) {
        if matches!(self.confirm, Confirm::Uncounted | Confirm::Yes) {
            return;
        }
        match vote {
            Vote::Granted(fence) if fence == asked => {
                self.confirm = Confirm::Yes;
                return;
            }
            // The hold has a greater fence than its grant said, or has ended.
            Vote::Granted(fence) if fence > asked => self.vote = Some(vote.clone()),
            Vote::Refused(Refusal::NotHeld) => self.vote = Some(vote.clone()),
            _ => {}
        }
        self.confirm = Confirm::No(vote);
    }

    /// Returns whether another ACQUIRE makes sense. A client does not wait for the hold of another one while
    /// it holds a part of the quorum: two clients that did would wait for each other. Only a client in its
    /// turn does, because its predecessor is about to release the other members.
    pub(crate) fn may_be_asked_again(&self, has_turn: bool) -> bool {
        match &self.vote {
            None | Some(Vote::Granted(_)) => false,
            Some(Vote::Refused(Refusal::Grace(_))) => true,
            Some(Vote::Refused(_)) => has_turn,
            Some(Vote::Failed(Failure::Misuse(_))) => false,
            Some(Vote::Failed(_) | Vote::Unknown) => true,
        }
    }

    pub(crate) fn last_answer(&self) -> Option<&Vote> {
        match &self.confirm {
            Confirm::No(vote) => Some(vote),
            Confirm::Uncounted | Confirm::Asked | Confirm::Yes => self.vote.as_ref(),
        }
    }

    pub(crate) fn is_unavailable(&self) -> bool {
        self.ahead || self.last_answer().is_some_and(Vote::is_unavailable)
    }
}
