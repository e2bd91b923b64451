//! A hold changes its mode: an exclusive one becomes shared, a shared one exclusive.

use dlock_protocol::Mode;
use futures_util::future::join_all;
use redis::Cmd;
use std::sync::Arc;

use crate::acquire::Wait;
use crate::acquire::deadline::Deadline;
use crate::clock::sleep_until;
use crate::error::{AcquireError, ExtendError, Lost, NodeState};
use crate::guard::hold::Hold;
use crate::node::{Channel, Reply};
use crate::quorum::{Fence, Refusal, Vote};
use crate::reading::shown;
use crate::request::LockRequest;

impl Hold {
    /// Asks every master for it as a shared one. Their leases do not get shorter by that, so nothing depends
    /// on the answers but what they tell: a hold that was exclusive is shared from the first send on.
    pub(crate) async fn downgrade(&self) -> Result<(), ExtendError> {
        if self.state().loss.is_some() {
            return Err(ExtendError::Lost(self.unheard()));
        }
        self.set_mode(Mode::Shared);
        let command = &self.asking_for(Mode::Shared).acquire(None);
        let asked = self.channels.iter().map(|channel| async move { self.ask(channel, command).await });
        let votes = join_all(asked).await;
        let report = self.service.report_of(votes.iter().map(NodeState::from));
        let granted = votes.iter().filter(|vote| matches!(vote, Vote::Granted(_))).count();
        let refused = votes.iter().filter(|vote| matches!(vote, Vote::Refused(_))).count();
        let quorum = self.service.quorum;
        if quorum.is_lost(refused) {
            self.lose(Lost::TakenAway(report.clone()));
        }
        match self.state().loss {
            Some(_) => Err(ExtendError::Lost(report)),
            None if granted >= quorum.majority() => Ok(()),
            None if quorum.is_misuse(votes.iter()) => Err(ExtendError::Misuse(report)),
            None => Err(ExtendError::Unconfirmed(report)),
        }
    }

    pub(crate) async fn upgrade(self: &Arc<Self>, wait: Wait) -> Result<(), AcquireError> {
        let channel = &self.channels[0];
        let deadline = Deadline::of(wait);
        if self.channels.len() > 1 {
            let why = "an upgrade requires a single server: release the shared hold and acquire again";
            return Err(AcquireError::Option(why.into()));
        }
        if self.request.ephemeral && wait != Wait::No {
            // Its connection would be blocked, and could not renew it.
            return Err(AcquireError::Option("an ephemeral hold cannot wait for its upgrade".into()));
        }
        let undo = Undo(Some(self));
        let command = self.asking_for(Mode::Exclusive).acquire(deadline.block());
        let asked = async {
            match deadline {
                Deadline::NoWait => self.ask(channel, &command).await,
                Deadline::At(_) | Deadline::Never => self.wait_exclusively(channel, &command, deadline).await,
            }
        };
        let vote = tokio::select! {
            vote = asked => vote,
            why = self.lost() => return Err(self.lost_meanwhile(why)),
        };
        // A server that is silent may do it yet.
        if !matches!(vote, Vote::Unknown) {
            undo.disarm();
        }
        let resource = shown(&self.request.resource);
        let report = self.service.report_of([NodeState::from(&vote)]);
        match vote {
            Vote::Granted(_) => match self.state().loss {
                None => {
                    self.set_mode(Mode::Exclusive);
                    Ok(())
                }
                Some(why) => Err(self.lost_meanwhile(why)),
            },
            Vote::Refused(Refusal::NotHeld) => {
                self.lose(Lost::TakenAway(report.clone()));
                Err(self.lost_meanwhile(Lost::TakenAway(report)))
            }
            Vote::Refused(Refusal::Deadlock(_)) => Err(AcquireError::Deadlock { resource, report }),
            Vote::Refused(Refusal::Taken | Refusal::QueueFull) => {
                Err(AcquireError::Taken { resource, report })
            }
            vote if self.service.quorum.is_misuse([&vote].into_iter()) => {
                Err(AcquireError::Misuse { resource, report })
            }
            Vote::Refused(_) | Vote::Failed(_) | Vote::Unknown => {
                Err(AcquireError::QuorumImpossible { resource, report })
            }
        }
    }

    /// On a connection of its own, so that the renewals do not wait as well. They notice a server that is
    /// silent.
    async fn wait_exclusively(&self, channel: &Channel, command: &Cmd, deadline: Deadline) -> Vote {
        let connection = match channel.node.own_connection().await {
            Ok(connection) => connection,
            Err(why) => return Vote::Failed(why.into()),
        };
        let overdue = async {
            match deadline.instant() {
                Some(end) => sleep_until(end + channel.node.limit).await,
                None => std::future::pending().await,
            }
        };
        let answer = tokio::select! {
            answer = connection.ask(command) => answer,
            () = overdue => None,
        };
        let Some(answer) = answer else { return Vote::Unknown };
        channel.node.give_back(connection);
        self.judged(Reply::Said(answer).acquired())
    }

    async fn ask(&self, channel: &Channel, command: &Cmd) -> Vote {
        let vote = channel.ask(command, None, channel.node.limit).await.acquired();
        channel.note(&vote);
        self.judged(vote)
    }

    /// A server that does not have the hold any more grants it anew, with a greater fence.
    fn judged(&self, vote: Vote) -> Vote {
        let is_anew = |fence: &Fence| self.channels.len() == 1 && Some(*fence) != self.fence;
        match &vote {
            Vote::Granted(fence) if is_anew(fence) => Vote::Refused(Refusal::NotHeld),
            _ => vote,
        }
    }

    fn asking_for(&self, mode: Mode) -> LockRequest {
        let mut request = LockRequest::clone(&self.request);
        request.asked.mode = mode;
        request
    }

    fn lost_meanwhile(&self, why: Lost) -> AcquireError {
        AcquireError::LostMeanwhile { resource: shown(&self.request.resource), why }
    }
}

/// Asks for a shared hold again when an upgrade ended without an answer.
struct Undo<'a>(Option<&'a Arc<Hold>>);

impl Undo<'_> {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo<'_> {
    fn drop(&mut self) {
        let Some(hold) = self.0.cloned() else { return };
        let service = hold.service.clone();
        service.begin(async move {
            let command = hold.asking_for(Mode::Shared).acquire(None);
            tokio::select! {
                biased;
                // Nothing leaves after the release.
                () = hold.ended.cancelled() => {}
                _ = hold.ask(&hold.channels[0], &command) => {}
            }
        });
    }
}
