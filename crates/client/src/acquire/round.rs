//! One round with one token: carries the messages of [`Acquisition`].

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Sleep, sleep};

use crate::acquire::deadline::Deadline;
use crate::acquire::probe::probe;
use crate::acquire::queue::{Queueing, Waiter};
use crate::backoff::Backoff;
use crate::clock::now;
use crate::error::{NodeState, Report};
use crate::guard::release::Releases;
use crate::node::Reply;
use crate::quorum::{
    Acquired, Acquisition, FailureReason, Member, Outgoing, Plan, Progress, Refusal, Request, Sends, Verdict,
    Vote,
};
use crate::request::LockRequest;
use crate::service::{Channels, Service};

/// The longest pause between two tries of a round.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The first pause of a granted waiter: the others are about to grant as well.
const BRIEF_PAUSE: Duration = Duration::from_millis(1);

/// A round under way. Unless it succeeds, it takes back what it asked for, also when it is dropped.
pub(crate) struct Round {
    service: Arc<Service>,
    request: Arc<LockRequest>,
    channels: Channels,
    machine: Acquisition,
    calls: Calls,
    queueing: Option<Queueing>,
    waiter: Option<Arc<Waiter>>,
    probe: Option<BoxFuture<'static, NewHold>>,
    hear_first: Option<HearFirst>,
    backoff: Backoff,
    deadline: Deadline,
    pause: Option<Pin<Box<Sleep>>>,
    succeeded: bool,
}

/// Requests under way. Dropping this cancels those that have not left yet.
pub(crate) type Calls = FuturesUnordered<BoxFuture<'static, Answered>>;

/// A request and its answer.
pub(crate) struct Answered {
    from: Member,
    what: Request,
    vote: Vote,
}

/// The master at which others would queue is heard first: with a majority of the other masters a newcomer
/// could overtake the whole queue.
struct HearFirst {
    member: Member,
    kept_back: SmallVec<[Answered; 5]>,
}

/// How a round begins.
pub(crate) enum Start<'a> {
    /// Asks all at once; hears this one first, if there is one.
    AtOnce(Option<Member>),
    /// Waits in the queue of the first of these that is reachable.
    Queued(&'a [Member], Queueing),
    /// Asks all at once but this one, where the same client is queued.
    Probe(Member),
}

/// A round that succeeded: what the hold needs of it.
pub(crate) struct NewHold {
    pub(crate) acquired: Acquired,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) channels: Channels,
    /// To the masters whose answer was not needed.
    pub(crate) calls: Calls,
}

/// A round that failed.
pub(crate) struct Failed {
    pub(crate) reason: FailureReason,
    pub(crate) votes: Vec<Option<Vote>>,
    pub(crate) report: Report,
}

impl Round {
    pub(crate) fn begin(
        service: &Arc<Service>,
        plan: Plan,
        request: LockRequest,
        channels: Channels,
        start: Start<'_>,
        deadline: Deadline,
    ) -> Round {
        let (mut hear_first, mut queueing) = (None, None);
        let mut pause = service.retry.pause;
        let (machine, sends) = match start {
            Start::AtOnce(member) => {
                hear_first = member.map(|member| HearFirst { member, kept_back: SmallVec::new() });
                Acquisition::at_once(plan, now())
            }
            Start::Queued(order, how) => {
                queueing = Some(how);
                pause = pause.min(BRIEF_PAUSE);
                Acquisition::queued(plan, order, now())
            }
            Start::Probe(queue) => Acquisition::probe(plan, queue, now()),
        };
        let mut round = Round {
            service: service.clone(),
            request: Arc::new(request),
            channels,
            machine,
            calls: Calls::new(),
            queueing,
            waiter: None,
            probe: None,
            hear_first,
            backoff: Backoff::new(pause, LONGEST_PAUSE),
            deadline,
            pause: None,
            succeeded: false,
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
                Some(hold) = OptionFuture::from(self.probe.as_mut()) => return Ok(hold),
                else => return Err(self.failed(FailureReason::Impossible)),
            };
            if answered.what == Request::Wait {
                // Takes back what it asked for before the others are asked, so as not to be in its own way.
                self.probe = None;
            }
            if self.is_refused_at_the_queue(&answered) {
                self.machine.answered(answered.from, answered.what, answered.vote, now());
                return Err(self.failed(FailureReason::Taken));
            }
            for answered in self.in_turn(answered) {
                let progress = self.machine.answered(answered.from, answered.what, answered.vote, now());
                if let Some(end) = self.follow(progress) {
                    return match end {
                        Ok(acquired) => Ok(self.succeed(acquired)),
                        Err(reason) => Err(self.failed(reason)),
                    };
                }
            }
        }
    }

    fn is_refused_at_the_queue(&self, answered: &Answered) -> bool {
        let first = self.hear_first.as_ref().is_some_and(|first| first.member == answered.from);
        first && matches!(answered.vote, Vote::Refused(ref why) if !matches!(why, Refusal::Grace(_)))
    }

    /// The answers that may be processed now: none before that of the master to hear first.
    fn in_turn(&mut self, answered: Answered) -> SmallVec<[Answered; 5]> {
        match self.hear_first.take() {
            Some(mut first) if first.member != answered.from => {
                first.kept_back.push(answered);
                self.hear_first = Some(first);
                SmallVec::new()
            }
            Some(first) => [answered].into_iter().chain(first.kept_back).collect(),
            None => [answered].into_iter().collect(),
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
                Request::Leave => self.leave_queue(),
                Request::Wait => self.join_queue(to),
                _ => self.ask(to, what),
            }
        }
    }

    fn ask(&mut self, to: Member, what: Request) {
        let (command, sets) = match what {
            Request::Acquire => (self.request.acquire(None), None),
            Request::Confirm { fence, .. } => (self.request.confirm(fence), Some(self.request.ttl())),
            // Not sent here: see `send`, `drop` and `Extension`.
            Request::Wait | Request::Leave | Request::Extend | Request::Release => return,
        };
        let channel = self.channels[usize::from(to.0)].clone();
        let limit = channel.node.limit.min(self.request.ttl());
        self.calls.push(Box::pin(async move {
            let reply = channel.ask(&command, sets, limit).await;
            let vote = if sets.is_none() { Reply::acquired(reply) } else { Reply::confirmed(reply) };
            channel.note(&vote);
            Answered { from: to, what, vote }
        }));
    }

    fn join_queue(&mut self, to: Member) {
        let Some(queueing) = self.queueing.clone() else { return };
        let (service, request) = (&self.service, &self.request);
        self.probe = queueing.probe.map(|plan| {
            Box::pin(probe(service.clone(), plan, request.clone(), to)) as BoxFuture<'static, NewHold>
        });
        let waiter = Arc::new(Waiter::new(self.channels[usize::from(to.0)].clone(), request.clone()));
        self.waiter = Some(waiter.clone());
        self.calls.push(Box::pin(async move {
            let vote = waiter.wait(queueing).await;
            Answered { from: to, what: Request::Wait, vote }
        }));
    }

    /// The connection closes with the waiter.
    fn leave_queue(&mut self) {
        if let Some(waiter) = self.waiter.take() {
            waiter.give_up();
        }
    }

    fn succeed(mut self, acquired: Acquired) -> NewHold {
        self.succeeded = true;
        let (calls, channels) = (std::mem::take(&mut self.calls), std::mem::take(&mut self.channels));
        NewHold { acquired, request: self.request.clone(), channels, calls }
    }

    fn failed(self, reason: FailureReason) -> Failed {
        let votes: Vec<Option<Vote>> = self.machine.votes().map(|vote| vote.cloned()).collect();
        let mut report = self.service.report(&self.channels, self.machine.votes());
        for ahead in self.machine.ahead() {
            report.0[usize::from(ahead.0)].state = NodeState::ClockAhead;
        }
        Failed { reason, votes, report }
    }
}

impl Drop for Round {
    /// Takes back all that was asked for, also where no answer came.
    fn drop(&mut self) {
        if self.succeeded {
            return;
        }
        self.machine.give_up();
        self.calls.clear();
        if let Some(waiter) = self.waiter.take() {
            self.service.begin(waiter.abandon());
        }
        drop(Releases::new(&self.service, &self.channels, self.request.release()));
    }
}
