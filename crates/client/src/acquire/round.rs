//! One round with one token: carries the messages of [`Acquisition`].

use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use smallvec::SmallVec;
use std::future::ready;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Sleep, sleep};

use crate::acquire::deadline::Deadline;
use crate::acquire::queue::{Queueing, Stay, Waiter};
use crate::backoff::Backoff;
use crate::clock::now;
use crate::error::{NodeState, Report};
use crate::guard::release::Releases;
use crate::node::{Sets, Voters};
use crate::request::{self, LockRequest};
use crate::service::{Channels, Service};
use dlock_quorum::Instant;
use dlock_quorum::{
    Acquired, Acquisition, FailureReason, Member, Outgoing, Plan, Progress, Refusal, Request, Sends, Verdict,
    Vote,
};

/// The longest pause between two tries of a round.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The first and the longest pause of a granted waiter: the others are about to grant as well.
const BRIEF_PAUSE: Duration = Duration::from_millis(1);
const LONGEST_BRIEF_PAUSE: Duration = Duration::from_millis(32);

/// A round under way. Unless it succeeds, it takes back what it asked for, also when it is dropped. Only what
/// it adopts stays.
pub(crate) struct Round {
    service: Arc<Service>,
    request: Arc<LockRequest>,
    channels: Channels,
    machine: Acquisition,
    calls: Calls,
    voters: Arc<Voters>,
    queueing: Option<Queueing>,
    backoff: Backoff,
    deadline: Deadline,
    begun: Instant,
    pause: Option<Pin<Box<Sleep>>>,
    /// Asks for a hold that exists, instead of a new one.
    adopts: bool,
}

/// Requests under way. Dropping this cancels those that have not left yet.
pub(crate) type Calls = FuturesUnordered<BoxFuture<'static, Answered>>;

/// A request and its answer, or the end of a wait.
pub(crate) enum Answered {
    Vote(Member, Request, Vote),
    Waited(Member, Vote<()>),
}

/// How a round begins: see [`Acquisition`].
pub(crate) enum Start {
    AtOnce,
    InOrder,
    Queued(Queueing),
    Adopting,
}

/// A round that succeeded: what the hold needs of it.
pub(crate) struct NewHold {
    pub(crate) acquired: Acquired,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) channels: Channels,
    /// The answers of the masters that were not needed.
    pub(crate) rest: Option<BoxFuture<'static, ()>>,
    /// Whether masters that forget it are asked for it again: its mode must be known.
    pub(crate) restores: bool,
    pub(crate) next_queue: Option<Member>,
    /// Whether that master has refused it: perhaps only what its predecessor releases was still on the way.
    pub(crate) refused_there: bool,
}

/// A round that failed.
pub(crate) struct Failed {
    pub(crate) reason: FailureReason,
    pub(crate) votes: Vec<Option<Vote>>,
    pub(crate) report: Report,
    /// Whose queue was to decide the turn when it ended.
    pub(crate) queue: Option<Member>,
    pub(crate) next_queue: Option<Member>,
    /// From the first send to the end.
    pub(crate) length: Duration,
}

impl Round {
    pub(crate) fn begin(
        service: &Arc<Service>,
        plan: Plan,
        request: LockRequest,
        channels: Channels,
        order: &[Member],
        start: Start,
        deadline: Deadline,
    ) -> Round {
        let (mut queueing, begun) = (None, now());
        let adopts = matches!(start, Start::Adopting);
        let backoff = match start {
            Start::AtOnce | Start::Adopting => Backoff::new(service.retry.pause, LONGEST_PAUSE),
            Start::InOrder | Start::Queued(_) => {
                Backoff::new(service.retry.pause.min(BRIEF_PAUSE), LONGEST_BRIEF_PAUSE)
            }
        };
        let (machine, sends) = match start {
            Start::AtOnce => Acquisition::at_once(plan, order, begun),
            Start::InOrder => Acquisition::in_order(plan, order, begun),
            Start::Adopting => Acquisition::adopting(plan, begun),
            Start::Queued(how) => {
                queueing = Some(how);
                Acquisition::queued(plan, order, begun)
            }
        };
        let mut round = Round {
            service: service.clone(),
            request: Arc::new(request),
            channels,
            machine,
            calls: Calls::new(),
            voters: Arc::default(),
            queueing,
            begun,
            backoff,
            deadline,
            pause: None,
            adopts,
        };
        round.send(sends);
        round
    }

    /// Carries messages until it has succeeded or failed.
    pub(crate) async fn run(mut self) -> Result<NewHold, Failed> {
        loop {
            let paused = self.pause.is_some();
            let answered = tokio::select! {
                Some(answered) = self.calls.next() => answered,
                Some(()) = OptionFuture::from(self.pause.as_mut()), if paused => {
                    self.pause = None;
                    let sends = self.machine.ask_again();
                    self.send(sends);
                    continue;
                }
                else => return Err(self.failed(FailureReason::Impossible)),
            };
            let progress = match answered {
                Answered::Vote(from, what, vote) => self.machine.answered(from, what, vote, now()),
                Answered::Waited(from, ended) => self.machine.waited(from, ended, now()),
            };
            if let Some(end) = self.follow(progress) {
                return match end {
                    Ok(acquired) => Ok(self.succeed(acquired)),
                    Err(reason) => Err(self.failed(reason)),
                };
            }
        }
    }

    fn follow(&mut self, progress: Progress) -> Option<Result<Acquired, FailureReason>> {
        match progress.verdict {
            Verdict::Open => self.send(progress.sends),
            Verdict::TryAgain if self.pause.is_none() => match self.deadline.limit(self.backoff.next()) {
                Some(pause) => self.pause = Some(Box::pin(sleep(pause))),
                None => return Some(Err(self.machine.why_not())),
            },
            Verdict::TryAgain => {}
            Verdict::Acquired(acquired) => return Some(Ok(acquired)),
            // Dropping the round does what its sends ask for, and more: nothing may leave any longer.
            Verdict::Failed(reason) => return Some(Err(reason)),
        }
        None
    }

    fn send(&mut self, sends: Sends) {
        for Outgoing { to, what } in sends {
            match what {
                Request::Leave => self.leave_queue(to),
                Request::Wait => self.join_queue(to),
                _ => self.ask(to, what),
            }
        }
    }

    fn ask(&mut self, to: Member, what: Request) {
        let (command, sets) = match what {
            Request::Acquire if self.adopts => (self.request.fence(), None),
            Request::Acquire => (self.request.acquire(), None),
            Request::Look => (request::waiters(&self.request.resource, 1), None),
            Request::Confirm { fence, .. } => {
                (self.request.confirm(fence), Some(Sets::Lease(self.request.ttl())))
            }
            // Not sent here: see `send`, `drop` and `Extension`.
            Request::Wait | Request::Leave | Request::Extend | Request::Restore | Request::Release => return,
        };
        let channel = self.channels[usize::from(to.0)].clone();
        let limit = channel.node.limit.min(self.request.ttl());
        let (adopts, voters) = (self.adopts, self.voters.clone());
        self.calls.push(Box::pin(async move {
            let (reply, server) = channel.ask_server(&command, sets, limit).await;
            let vote = match what {
                Request::Look => return Answered::Vote(to, what, reply.nobody_waits()),
                Request::Confirm { .. } => reply.confirmed(),
                Request::Acquire if adopts => reply.confirmed(),
                _ => reply.acquired(),
            };
            channel.note(&vote);
            Answered::Vote(to, what, voters.admit(to, server, vote))
        }));
    }

    fn join_queue(&mut self, to: Member) {
        let Some(mut queueing) = self.queueing.clone() else { return };
        if queueing.stay == Stay::WhileItMoves && !self.machine.has_next_queue() {
            queueing.stay = Stay::WhileItsHoldersAreNew;
        }
        let channel = self.channels[usize::from(to.0)].clone();
        let waiter = Waiter { service: self.service.clone(), channel, request: self.request.clone() };
        self.calls.push(Box::pin(async move { Answered::Waited(to, waiter.wait(queueing).await) }));
    }

    fn leave_queue(&self, of: Member) {
        let channel = self.channels[usize::from(of.0)].clone();
        channel.note_orphan();
        let cancel = self.request.cancel();
        self.service.spawn(async move { channel.cancel(&cancel).await });
    }

    fn succeed(mut self, acquired: Acquired) -> NewHold {
        let (calls, channels) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.channels));
        let next_queue = self.machine.next_queue();
        let refused_there = next_queue.is_some_and(|queue| self.machine.is_refused_by(queue));
        let (request, restores) = (self.request.clone(), !self.adopts);
        let rest = (!calls.is_empty()).then(|| self.hear_the_rest(calls, next_queue.is_some()));
        NewHold { acquired, request, channels, rest, restores, next_queue, refused_there }
    }

    /// Unless others were met already: who queues at a master that is far away answers late, each time.
    fn hear_the_rest(&self, calls: Calls, has_met: bool) -> BoxFuture<'static, ()> {
        let later = if has_met { SmallVec::new() } else { self.machine.later_queues() };
        let (service, request) = (self.service.clone(), self.request.clone());
        let hear = move |answered| {
            if let Answered::Vote(from, _, Vote::Refused(Refusal::Taken)) = answered
                && later.contains(&from)
            {
                service.look_for_others(request.clone(), from);
            }
            ready(())
        };
        calls.for_each(hear).boxed()
    }

    fn failed(self, reason: FailureReason) -> Failed {
        let votes: Vec<Option<Vote>> = self.machine.votes().map(|vote| vote.cloned()).collect();
        let mut report = self.service.report(&self.channels, self.machine.votes());
        for ahead in self.machine.ahead() {
            report.0[usize::from(ahead.0)].state = NodeState::ClockAhead;
        }
        let (queue, next_queue) = (self.machine.queue(), self.machine.next_queue());
        Failed { reason, votes, report, queue, next_queue, length: now().saturating_since(self.begun) }
    }
}

impl Drop for Round {
    /// Takes back all that was asked for, also where no answer came.
    fn drop(&mut self) {
        // One that succeeded has handed its channels on.
        if self.adopts || self.channels.is_empty() {
            return;
        }
        self.machine.give_up();
        self.calls.clear();
        let lease = self.request.ttl();
        drop(Releases::new(&self.service, &self.channels, self.request.release(), lease));
    }
}
