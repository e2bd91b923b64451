//! Changes the mode of a hold: from exclusive to shared, and from shared to exclusive.

use dlock_protocol::Mode;
use dlock_quorum::{Deadline, Refusal, Stay, Vote};
use futures_util::future::{join, join_all};
use redis::Value;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::OwnedMutexGuard;
use tokio::time::{sleep, timeout};

use crate::clock::now;
use crate::error::{AcquireError, ExtendError, Lost, NodeState};
use crate::hold::Hold;
use crate::queue::Waiter;
use crate::reading::printable;
use crate::request;
use crate::topology::{Channel, LateEffect, fresh_backoff};
use crate::transport::Reply;
use crate::wait::Wait;

impl Hold {
    /// Asks every master to make the hold a shared one. The hold counts as shared from the first send. The
    /// request shortens no lease, so missing answers do not end the hold. The hold is lost if so many masters
    /// have lost it that the others are no majority. `allowed` returns an error if the mode must not change,
    /// because other guards share the hold.
    pub(crate) async fn downgrade(
        self: &Arc<Self>,
        allowed: impl FnOnce() -> Result<(), String>,
    ) -> Result<(), ExtendError> {
        if self.state().loss.is_some() {
            return Err(ExtendError::Lost(self.service.empty_report()));
        }
        self.set_mode(Mode::Shared, allowed).map_err(ExtendError::Option)?;
        let hold = self.clone();
        // On the client's thread: a blocked runtime of the user could keep `extending` locked, and the
        // renewals would wait.
        let cleared = self.service.background.run_on_thread(async move {
            let _extending = hold.extending.lock().await;
            // Drops pending calls of an earlier extension, which could restore the hold as an exclusive one.
            *hold.pending.lock() = None;
        });
        cleared.await;
        let calls = self.channels.iter().map(|channel| self.ask(channel, Mode::Shared));
        let votes = join_all(calls).await;
        let report = self.service.report_of(&self.channels, votes.iter().map(NodeState::from));
        let granted = votes.iter().filter(|vote| matches!(vote, Vote::Granted(_))).count();
        let refused = votes.iter().filter(|vote| matches!(vote, Vote::Refused(_))).count();
        let quorum = self.service.quorum;
        if !quorum.has_majority_without(refused) {
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
        let deadline = wait.deadline();
        if self.channels.len() > 1 {
            let why = "an upgrade requires a single server: release the shared hold and acquire again";
            return Err(AcquireError::Option(why.into()));
        }
        let vote = tokio::select! {
            vote = self.become_exclusive(channel, deadline) => vote,
            why = self.lost() => return Err(self.lost_meanwhile(why)),
        };
        let resource = printable(&self.request.resource);
        let report = self.service.report_of(&self.channels, [NodeState::from(&vote)]);
        match vote {
            Vote::Granted(_) => match self.state().loss {
                None => self.set_mode(Mode::Exclusive, || Ok(())).map_err(AcquireError::Option),
                Some(why) => Err(self.lost_meanwhile(why)),
            },
            Vote::Refused(Refusal::NotHeld) => {
                self.lose(Lost::TakenAway(report.clone()));
                Err(self.lost_meanwhile(Lost::TakenAway(report)))
            }
            Vote::Refused(Refusal::Deadlock(_)) => {
                Err(AcquireError::Deadlock { resource, report, holder: None })
            }
            Vote::Refused(Refusal::QueueFull) => Err(AcquireError::QueueFull { resource, report }),
            Vote::Refused(Refusal::Taken) => {
                Err(AcquireError::Taken { resource, report, holder: None, closed: Duration::ZERO })
            }
            vote if self.service.quorum.is_misuse([&vote].into_iter()) => {
                Err(AcquireError::Misuse { resource, report })
            }
            Vote::Refused(_) | Vote::Failed(_) | Vote::Unknown => {
                Err(AcquireError::QuorumImpossible { resource, report })
            }
        }
    }

    async fn become_exclusive(self: &Arc<Self>, channel: &Arc<Channel>, deadline: Deadline) -> Vote {
        // The requests that undo an earlier upgrade must be answered before this upgrade begins.
        let limit = match deadline {
            Deadline::NoWait => self.service.limit,
            Deadline::At(end) => end.saturating_since(now()).saturating_add(self.service.limit),
            Deadline::Never => Duration::MAX,
        };
        let lock = timeout(limit, self.upgrading.clone().lock_owned()).await;
        let Ok(lock) = lock else { return Vote::Unknown };
        let undo = Undo(Some((self.clone(), lock)));
        let vote = self.wait_and_ask(channel, deadline).await;
        if matches!(vote, Vote::Granted(_) | Vote::Refused(Refusal::NotHeld)) {
            undo.disarm();
        }
        vote
    }

    async fn wait_and_ask(&self, channel: &Arc<Channel>, deadline: Deadline) -> Vote {
        if !matches!(deadline, Deadline::NoWait) {
            let (service, channel) = (self.service.clone(), channel.clone());
            let request = Arc::new(self.request.in_mode(Mode::Exclusive));
            // `AsHolder`: the waiter does not give its position up by a RELEASE, which would end the hold.
            let (until, stay) = (deadline.instant(), Stay::AsHolder);
            let lease = self.state.lock().lease;
            let owner_may_hold = Arc::default();
            let waiter = Waiter { service, channel, request, lease, until, stay, owner_may_hold };
            // `None`: no callback for the position in the queue.
            if let Err(vote) = waiter.wait(None).await.into_grant() {
                return vote;
            }
        }
        self.ask(channel, Mode::Exclusive).await
    }

    /// Asks for the hold in another mode. A master without the hold grants a new one instead, which counts as
    /// [`Refusal::NotHeld`]. The client recognises a new hold by the answer 0 to HOLDS, or by another fence.
    async fn ask(&self, channel: &Channel, mode: Mode) -> Vote {
        let mut commands = redis::pipe();
        commands.add_command(request::holds(&self.request.resource, &self.request.token));
        commands.add_command(self.request.in_mode(mode).acquire());
        let late_effect = if mode == Mode::Shared { LateEffect::SharedHold } else { LateEffect::Hold };
        let (held_before, reply) = match channel.ask(&commands, Some(late_effect), self.service.limit).await {
            Reply::Answer(Value::Array(answers)) => {
                let mut answers = answers.into_iter();
                (answers.next(), answers.next().map_or(Reply::NoAnswer, Reply::Answer))
            }
            reply => (None, reply),
        };
        let vote = reply.acquired();
        // `note` takes the refusal "taken" as a sign that the token has no hold at this master. But a master
        // that refuses the new mode may have the hold in the old mode.
        if matches!(vote, Vote::Granted(_)) {
            channel.note(&vote);
        }
        match vote {
            Vote::Granted(_) if held_before == Some(Value::Int(0)) => Vote::Refused(Refusal::NotHeld),
            Vote::Granted(fence) if self.channels.len() == 1 && Some(fence) != self.fence => {
                Vote::Refused(Refusal::NotHeld)
            }
            // An earlier request without an answer may still make the hold a shared one.
            Vote::Granted(_) if mode == Mode::Exclusive && channel.may_become_shared() => Vote::Unknown,
            vote => vote,
        }
    }

    /// Leaves the queue and asks for a shared hold. Returns true if the master answered both requests, or the
    /// hold is lost.
    async fn share_again(&self) -> bool {
        // No request is sent for a hold that is lost.
        if self.state().loss.is_some() {
            return true;
        }
        let (channel, cancel) = (&self.channels[0], self.request.cancel());
        // `join` sends both requests at its first poll, which `Undo` makes while it is dropped. So the hold's
        // next request comes after them.
        let cancelled = channel.ask(&cancel, None, self.service.limit);
        let (cancelled, vote) = join(cancelled, self.ask(channel, Mode::Shared)).await;
        if vote == Vote::Refused(Refusal::NotHeld) {
            self.lose(Lost::TakenAway(self.service.report_of(&self.channels, [NodeState::NotHeld])));
        }
        matches!((cancelled, vote), (Reply::Answer(_), Vote::Granted(_) | Vote::Refused(_)))
    }

    fn lost_meanwhile(&self, why: Lost) -> AcquireError {
        AcquireError::LostMeanwhile { resource: printable(&self.request.resource), why }
    }
}

/// When dropped, undoes an upgrade that the master has not granted, but might still grant. Repeats
/// [`Hold::share_again`] until the master has answered.
struct Undo(Option<(Arc<Hold>, OwnedMutexGuard<()>)>);

impl Undo {
    fn disarm(mut self) {
        self.0 = None;
    }
}

impl Drop for Undo {
    fn drop(&mut self) {
        let Some((hold, lock)) = self.0.take() else { return };
        let service = hold.service.clone();
        service.poll_then_spawn(async move {
            let _lock = lock;
            let mut backoff = fresh_backoff();
            let undone = async {
                while !hold.share_again().await {
                    sleep(backoff.next()).await;
                }
            };
            tokio::select! {
                biased;
                // Stops when the hold is released. An ACQUIRE after the RELEASE would make a new hold.
                () = hold.ended.cancelled() => {}
                () = undone => {}
            }
        });
    }
}
