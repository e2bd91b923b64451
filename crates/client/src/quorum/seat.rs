//! What is known of one master during an acquisition.

use super::{Failure, Fence, Refusal, Vote};

/// What is known of one master.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Seat {
    /// What it said to ACQUIRE; None while an answer may come.
    pub(super) vote: Option<Vote>,
    pub(super) confirm: Confirm,
    /// Its numbers are too far ahead of the others' clocks: its grant does not count any more.
    pub(super) ahead: bool,
}

/// Where a master stands in the second phase under way.
#[derive(Debug, Clone, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Confirm {
    /// Its grant is not counted in this phase, so no answer of it is.
    #[default]
    Uncounted,
    Asked,
    Yes,
    No(Vote),
}

impl Seat {
    /// The fence of the master's grant, if it counts.
    pub(super) fn fence(&self) -> Option<Fence> {
        match self.vote {
            Some(Vote::Granted(fence)) if !self.ahead => Some(fence),
            _ => None,
        }
    }

    /// Answers to one ACQUIRE and its repetitions come in any order: a grant outweighs the rest, a later grant an earlier one.
    pub(super) fn record(&mut self, vote: Vote) {
        match (&self.vote, &vote) {
            (Some(Vote::Granted(known)), Vote::Granted(new)) if new > known => self.vote = Some(vote),
            (Some(Vote::Granted(_)), _) => {}
            _ => self.vote = Some(vote),
        }
    }

    /// Takes the answer to CONFIRM with the fence of the phase under way.
    pub(super) fn confirmed(&mut self, vote: Vote, asked: Fence) {
        if matches!(self.confirm, Confirm::Uncounted | Confirm::Yes) {
            return;
        }
        match vote {
            Vote::Granted(fence) if fence == asked => {
                self.confirm = Confirm::Yes;
                return;
            }
            // The hold there goes by another number than its grant said, or is no more.
            Vote::Granted(fence) if fence > asked => self.vote = Some(vote.clone()),
            Vote::Refused(Refusal::NotHeld) => self.vote = Some(vote.clone()),
            _ => {}
        }
        self.confirm = Confirm::No(vote);
    }

    /// Somebody else's hold is not waited out with a part of the quorum in hand: two who did that would wait for
    /// each other. Only the one that the line let through may, for the others are about to let it in.
    pub(super) fn may_be_asked_again(&self, waited: bool) -> bool {
        match &self.vote {
            None | Some(Vote::Granted(_)) => false,
            Some(Vote::Refused(Refusal::Grace(_))) => true,
            Some(Vote::Refused(_)) => waited,
            Some(Vote::Failed(Failure::Misuse(_))) => false,
            Some(Vote::Failed(_) | Vote::Unknown) => true,
        }
    }

    pub(super) fn last_word(&self) -> Option<&Vote> {
        match &self.confirm {
            Confirm::No(vote) => Some(vote),
            Confirm::Uncounted | Confirm::Asked | Confirm::Yes => self.vote.as_ref(),
        }
    }

    pub(super) fn is_unavailable(&self) -> bool {
        self.ahead || self.last_word().is_some_and(Vote::is_unavailable)
    }
}
