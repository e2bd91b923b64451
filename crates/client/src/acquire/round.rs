//! One acquisition with one token: carries the messages of [`Acquisition`].

use futures_util::StreamExt;
use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::FuturesUnordered;
use smallvec::SmallVec;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{Sleep, sleep};

use crate::acquire::beside::beside;
use crate::acquire::line::{Queueing, Stand};
use crate::acquire::patience::Patience;
use crate::backoff::Backoff;
use crate::clock::now;
use crate::error::{NodeState, Report};
use crate::guard::release::Releases;
use crate::node::Reply;
use crate::quorum::{
    Acquisition, Loss, Member, Outgoing, Plan, Progress, Refusal, Request, Sends, Verdict, Vote, Won,
};
use crate::request::LockRequest;
use crate::service::{Channels, Service};

/// The longest pause between two tries of a round, however often it is tried.
const LONGEST_PAUSE: Duration = Duration::from_secs(10);

/// The first pause of whoever the line has let through: the others are about to let it in.
const BRIEF_PAUSE: Duration = Duration::from_millis(1);

/// A round under way. However it ends but by a win, also when it is dropped, it takes back what it asked for.
pub(crate) struct Round {
    service: Arc<Service>,
    request: Arc<LockRequest>,
    channels: Channels,
    machine: Acquisition,
    calls: Calls,
    queueing: Option<Queueing>,
    /// Where it waits in line.
    stand: Option<Arc<Stand>>,
    /// What is tried meanwhile.
    beside: Option<BoxFuture<'static, Acquired>>,
    first: Option<First>,
    backoff: Backoff,
    patience: Patience,
    pause: Option<Pin<Box<Sleep>>>,
    over: bool,
}

/// Requests under way. One that has not left yet when this is dropped never does.
pub(crate) type Calls = FuturesUnordered<BoxFuture<'static, Heard>>;

/// The answer to a request.
pub(crate) struct Heard {
    from: Member,
    what: Request,
    vote: Vote,
}

/// The master at which others would wait in line is heard first: by the other masters' answers alone, who has only just
/// asked could overtake the whole line.
struct First {
    member: Member,
    kept_back: SmallVec<[Heard; 5]>,
}

/// How a round begins.
pub(crate) enum Start<'a> {
    /// All are asked at once; this one's answer is heard first, if there is one.
    AtOnce(Option<Member>),
    /// In line at the first of these that is reachable.
    InLine(&'a [Member], Queueing),
    /// All are asked at once but for this one, in whose line somebody waits for the same.
    Beside(Member),
}

/// What is left of a round that was won: what the hold needs.
pub(crate) struct Acquired {
    pub(crate) won: Won,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) channels: Channels,
    /// To those whose answer was not waited for.
    pub(crate) calls: Calls,
}

impl Round {
    pub(crate) fn begin(
        service: &Arc<Service>,
        plan: Plan,
        request: LockRequest,
        channels: Channels,
        start: Start<'_>,
        patience: Patience,
    ) -> Round {
        let (mut first, mut queueing) = (None, None);
        let mut pause = service.retry.pause;
        let (machine, sends) = match start {
            Start::AtOnce(member) => {
                first = member.map(|member| First { member, kept_back: SmallVec::new() });
                Acquisition::at_once(plan, now())
            }
            Start::InLine(order, line) => {
                queueing = Some(line);
                pause = pause.min(BRIEF_PAUSE);
                Acquisition::in_line(plan, order, now())
            }
            Start::Beside(line) => Acquisition::beside_line(plan, line, now()),
        };
        let mut round = Round {
            service: service.clone(),
            request: Arc::new(request),
            channels,
            machine,
            calls: Calls::new(),
            queueing,
            stand: None,
            beside: None,
            first,
            backoff: Backoff::new(pause, LONGEST_PAUSE),
            patience,
            pause: None,
            over: false,
        };
        round.send(sends);
        round
    }

    /// Carries messages until it is won or lost.
    pub(crate) async fn run(mut self) -> Result<Acquired, Failed> {
        loop {
            let paused = self.pause.is_some();
            let heard = tokio::select! {
                Some(heard) = self.calls.next() => heard,
                Some(()) = OptionFuture::from(self.pause.as_mut()), if paused => {
                    self.pause = None;
                    let sends = self.machine.ask_again();
                    self.send(sends);
                    continue;
                }
                Some(acquired) = OptionFuture::from(self.beside.as_mut()) => return Ok(acquired),
                else => return Err(self.lost(Loss::Impossible)),
            };
            if heard.what == Request::Wait {
                // What it tried is taken back before the others are asked, so that it is not in its own way.
                self.beside = None;
            }
            if self.is_refused_at_the_line(&heard) {
                self.machine.answered(heard.from, heard.what, heard.vote, now());
                return Err(self.lost(Loss::Taken));
            }
            for heard in self.in_turn(heard) {
                let progress = self.machine.answered(heard.from, heard.what, heard.vote, now());
                if let Some(end) = self.follow(progress) {
                    return match end {
                        Ok(won) => Ok(self.won(won)),
                        Err(loss) => Err(self.lost(loss)),
                    };
                }
            }
        }
    }

    fn is_refused_at_the_line(&self, heard: &Heard) -> bool {
        let first = self.first.as_ref().is_some_and(|first| first.member == heard.from);
        first && matches!(heard.vote, Vote::Refused(ref why) if !matches!(why, Refusal::Grace(_)))
    }

    /// What may be taken now: nothing before the first one's answer.
    fn in_turn(&mut self, heard: Heard) -> SmallVec<[Heard; 5]> {
        match self.first.take() {
            Some(mut first) if first.member != heard.from => {
                first.kept_back.push(heard);
                self.first = Some(first);
                SmallVec::new()
            }
            Some(first) => [heard].into_iter().chain(first.kept_back).collect(),
            None => [heard].into_iter().collect(),
        }
    }

    fn follow(&mut self, progress: Progress) -> Option<Result<Won, Loss>> {
        match progress.verdict {
            Verdict::Open => self.send(progress.sends),
            Verdict::TryAgain if self.pause.is_none() => match self.patience.allows(self.backoff.next()) {
                Some(pause) => self.pause = Some(Box::pin(sleep(pause))),
                None => return Some(Err(self.machine.why_not())),
            },
            Verdict::TryAgain => {}
            Verdict::Won(won) => return Some(Ok(won)),
            // Its sends are what dropping this does, and more: nothing may leave any more.
            Verdict::Lost(loss) => return Some(Err(loss)),
        }
        None
    }

    fn send(&mut self, sends: Sends) {
        for Outgoing { to, what } in sends {
            match what {
                Request::Leave => self.leave(),
                Request::Wait => self.queue_up(to),
                _ => self.ask(to, what),
            }
        }
    }

    fn ask(&mut self, to: Member, what: Request) {
        let (command, sets) = match what {
            Request::Acquire => (self.request.acquire(None), None),
            Request::Confirm { fence, .. } => (self.request.confirm(fence), Some(self.request.ttl())),
            // Not by this way: see `send`, `drop` and `Extension`.
            Request::Wait | Request::Leave | Request::Extend | Request::Release => return,
        };
        let channel = self.channels[usize::from(to.0)].clone();
        let limit = channel.node.limit.min(self.request.ttl());
        self.calls.push(Box::pin(async move {
            let reply = channel.ask(&command, sets, limit).await;
            let vote = if sets.is_none() { Reply::acquired(reply) } else { Reply::confirmed(reply) };
            channel.note(&vote);
            Heard { from: to, what, vote }
        }));
    }

    fn queue_up(&mut self, to: Member) {
        let Some(queueing) = self.queueing.clone() else { return };
        self.beside = queueing.beside.map(|plan| {
            Box::pin(beside(self.service.clone(), plan, self.request.clone(), to))
                as BoxFuture<'static, Acquired>
        });
        let stand = Arc::new(Stand::new(self.channels[usize::from(to.0)].clone(), self.request.clone()));
        self.stand = Some(stand.clone());
        self.calls.push(Box::pin(async move {
            let vote = stand.wait(queueing).await;
            Heard { from: to, what: Request::Wait, vote }
        }));
    }

    /// Its connection closes with the stand.
    fn leave(&mut self) {
        if let Some(stand) = self.stand.take() {
            stand.give_up();
        }
    }

    fn won(mut self, won: Won) -> Acquired {
        self.over = true;
        let calls = std::mem::take(&mut self.calls);
        Acquired { won, request: self.request.clone(), channels: std::mem::take(&mut self.channels), calls }
    }

    fn lost(self, loss: Loss) -> Failed {
        let votes: Vec<Option<Vote>> = self.machine.votes().map(|vote| vote.cloned()).collect();
        let mut report = self.service.report(&self.channels, self.machine.votes());
        for ahead in self.machine.ahead() {
            report.0[usize::from(ahead.0)].state = NodeState::ClockAhead;
        }
        Failed { loss, votes, report }
    }
}

impl Drop for Round {
    /// Takes everything back that was asked for, also where no answer came.
    fn drop(&mut self) {
        if self.over {
            return;
        }
        self.machine.give_up();
        self.calls.clear();
        if let Some(stand) = self.stand.take() {
            self.service.begin(stand.abandon());
        }
        drop(Releases::new(&self.service, &self.channels, self.request.release()));
    }
}

/// Why a round was lost.
pub(crate) struct Failed {
    pub(crate) loss: Loss,
    pub(crate) votes: Vec<Option<Vote>>,
    pub(crate) report: Report,
}
