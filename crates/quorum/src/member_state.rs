//! What is known of one master during an acquisition.

use crate::{Failure, Fence, Refusal, Vote};

/// What is known of one master.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct MemberState {
    /// Its answer to ACQUIRE; `None` while it is outstanding.
    pub(crate) vote: Option<Vote>,
    pub(crate) confirm: Confirm,
    /// Its fences are too far ahead of the others' clocks: its grant no longer counts.
    pub(crate) ahead: bool,
}

/// Where a master stands in the current confirm phase.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) enum Confirm {
    /// Its grant does not count in this phase, so its answer does not either.
    #[default]
    Uncounted,
    Asked,
    Yes,
    No(Vote),
}

impl MemberState {
    /// The fence of its grant, if the grant counts.
    pub(crate) fn fence(&self) -> Option<Fence> {
        match self.vote {
            Some(Vote::Granted(fence)) if !self.ahead => Some(fence),
            _ => None,
        }
    }

    /// Answers to an ACQUIRE and its retries come in any order: a grant outweighs the rest, a later grant an
    /// earlier.
    pub(crate) fn record(&mut self, vote: Vote) {
        match (&self.vote, &vote) {
            (Some(Vote::Granted(known)), Vote::Granted(new)) if new > known => self.vote = Some(vote),
            (Some(Vote::Granted(_)), _) => {}
            _ => self.vote = Some(vote),
        }
    }

    /// Takes the answer to the CONFIRM of the current phase.
    pub(crate) fn confirmed(&mut self, vote: Vote, asked: Fence) {
        if matches!(self.confirm, Confirm::Uncounted | Confirm::Yes) {
            return;
        }
        match vote {
            Vote::Granted(fence) if fence == asked => {
                self.confirm = Confirm::Yes;
                return;
            }
            // The hold there has another fence than its grant said, or is gone.
            Vote::Granted(fence) if fence > asked => self.vote = Some(vote.clone()),
            Vote::Refused(Refusal::NotHeld) => self.vote = Some(vote.clone()),
            _ => {}
        }
        self.confirm = Confirm::No(vote);
    }

    /// Nobody waits for somebody else's hold while holding a part of the quorum: two clients that did would
    /// wait for each other. Only a granted waiter may, for its predecessor is about to release the others.
    pub(crate) fn may_be_asked_again(&self, waited: bool) -> bool {
        match &self.vote {
            None | Some(Vote::Granted(_)) => false,
            Some(Vote::Refused(Refusal::Grace(_))) => true,
            Some(Vote::Refused(_)) => waited,
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
