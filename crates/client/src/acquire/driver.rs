//! Drives an [`Attempt`] to acquire a lock. The attempt decides what to send, how long to wait and when it
//! has failed. This file sends the requests, and passes the answers to the attempt.

use futures_util::future::{BoxFuture, OptionFuture};
use futures_util::stream::FuturesUnordered;
use futures_util::{FutureExt, StreamExt};
use std::future::ready;
use std::mem;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use dlock_protocol::{Fence, Token};
use dlock_quorum::{
    Acquired, Attempt, AttemptOptions, FailureReason, Lease, Member, Next, NextQueue, Outgoing, Request,
    Sends, Step, Vote,
};
use tracing::{Instrument, info_span};

use crate::acquire::release_delay;
use crate::clock::{now, sleep_until};
use crate::error::{AcquireError, NodeState, Report};
use crate::hold::guard::Share;
use crate::hold::release::Releases;
use crate::hold::renewal::{Renewal, renew};
use crate::hold::{Hold, NewHold};
use crate::queue::{OnPosition, Waiter};
use crate::reading::printable;
use crate::request::{self, LockRequest, fresh_token};
use crate::service::{Channels, Service};
use crate::topology::{Channel, LateEffect, Node, Voters};
use crate::transport::{Connection, Reply};

/// What to acquire, with every option checked.
pub(crate) struct Acquisition {
    pub(crate) service: Arc<Service>,
    pub(crate) resource: Vec<u8>,
    /// The options of the requests. The token is `Some` if the caller chose it. The attempt then has only one
    /// round. `None` means that each round gets a fresh token.
    pub(crate) options: dlock_protocol::LockRequest<Option<Token>>,
    pub(crate) attempt_options: AttemptOptions,
    /// The least time from the grant to the next one: see [`Acquire::at_least`](crate::Acquire::at_least).
    pub(crate) at_least: Option<Duration>,
    /// True while another process may hold this lock under the same owner: until a server has queued a
    /// request with the owner.
    pub(crate) owner_may_hold: Arc<AtomicBool>,
    /// The longest delay that the release may have.
    pub(crate) release_delay: Option<Duration>,
    pub(crate) on_position: Option<OnPosition>,
    pub(crate) on_outage: Option<OnOutage>,
}

/// Called when too few members can vote and the attempt keeps waiting for them.
pub(crate) type OnOutage = Arc<dyn Fn(&Report) + Send + Sync>;

/// The reason of a failed attempt, with the answers in its last round.
pub(crate) struct Unacquired {
    pub(crate) reason: FailureReason,
    pub(crate) report: Report,
    /// The tokens of the last rounds.
    pub(crate) tokens: Vec<Token>,
}

/// The error of a failed acquisition, with the tokens of its last rounds: servers may show them as holders
/// until the releases have arrived.
pub(crate) struct Failed {
    pub(crate) why: AcquireError,
    pub(crate) tokens: Vec<Token>,
}

impl From<AcquireError> for Failed {
    fn from(why: AcquireError) -> Failed {
        Failed { why, tokens: Vec::new() }
    }
}

impl Acquisition {
    /// Acquires the lock, and starts the renewal of the hold.
    pub(crate) async fn acquire_and_renew(&self, renewal: Renewal) -> Result<Arc<Share>, Failed> {
        let acquired = self.service.background.run_with_timers(async {
            if let Some(delay) = self.release_delay {
                release_delay::check(&self.service, &self.resource, delay).await.map_err(Ok)?;
            }
            let mut acquired = self.run().await.map_err(Err);
            if let Err(Err(Unacquired { reason: FailureReason::Misuse, report, .. })) = &mut acquired {
                let states = report.0.iter_mut().map(|report| Some(&mut report.state));
                self.service.add_value_types(&self.resource, states).await;
            }
            acquired
        });
        let new = acquired.await.map_err(|failed| match failed {
            Ok(why) => AcquireError::Option(why).into(),
            Err(unacquired) => Failed { tokens: unacquired.tokens.clone(), why: self.error(unacquired) },
        })?;
        Ok(begin_hold(&self.service, self.attempt_options.plan.lease, renewal, new))
    }

    /// Acquires the lock. If the future is dropped, everything that was requested is released.
    pub(crate) async fn run(&self) -> Result<NewHold, Unacquired> {
        let service = &self.service;
        let (contention, order) = (service.contended.get(&self.resource), service.queue_order());
        let mut attempt = Attempt::new(self.attempt_options, rand::random(), &contention, &order, now());
        let mut round = SentRound::new(self, self.options.token.clone().unwrap_or_else(fresh_token), None);
        let mut report = Report(Vec::new());
        let mut step = attempt.begin_round(now());
        let mut released = None;
        loop {
            round.send(mem::take(&mut step.sends), &attempt);
            step = match step.next {
                Next::Wait => match round.next_event(&mut attempt).await {
                    Some(step) => step,
                    None => {
                        let (reason, tokens) = (FailureReason::Impossible, Vec::new());
                        return Err(Unacquired { reason, report, tokens });
                    }
                },
                Next::BeginRound => attempt.begin_round(now()),
                Next::Review { needs_holders } => {
                    report = round.report(&attempt);
                    released = Some(round.request.token.clone());
                    // Dropping the failed round releases its grants.
                    round = SentRound::new(self, fresh_token(), round.ephemeral_connection());
                    let holders = OptionFuture::from(needs_holders.then(|| service.holders(&self.resource)));
                    let (holders, order) = (holders.await, service.queue_order());
                    service.contended.update(&self.resource, |contention| {
                        attempt.review(contention, &order, holders.as_ref(), now())
                    })
                }
                Next::Acquired(acquired) => return Ok(round.succeed(acquired, attempt)),
                Next::Failed(reason) => {
                    let tokens = released.into_iter().chain([round.request.token.clone()]).collect();
                    return Err(Unacquired { reason, report, tokens });
                }
            };
            if step.reports_outage {
                self.on_outage.iter().for_each(|on_outage| on_outage(&report));
            }
            if let Some(queue) = step.moves_to {
                service.leave_other_queues(&self.resource, queue);
            }
        }
    }

    /// The error of a failed attempt.
    fn error(&self, failed: Unacquired) -> AcquireError {
        let (resource, report) = (printable(&self.resource), failed.report);
        match failed.reason {
            FailureReason::Taken if report.0.iter().any(|node| node.state == NodeState::QueueFull) => {
                AcquireError::QueueFull { resource, report }
            }
            FailureReason::Taken => {
                AcquireError::Taken { resource, report, holder: None, closed: Duration::ZERO }
            }
            FailureReason::Deadlock => AcquireError::Deadlock { resource, report, holder: None },
            FailureReason::Impossible => AcquireError::QuorumImpossible { resource, report },
            FailureReason::Misuse => AcquireError::Misuse { resource, report },
            FailureReason::TooLate => AcquireError::TooLate { resource, report },
        }
    }
}

/// The requests of one round. Dropping this releases everything that the round requested, unless the attempt
/// takes over an existing hold (`adopts`). That hold still belongs to its previous owner.
struct SentRound<'a> {
    acquisition: &'a Acquisition,
    request: Arc<LockRequest>,
    channels: Channels,
    voters: Arc<Voters>,
    calls: Calls,
    /// True if a single server granted the lock in its queue. The hold may then be known by a message only,
    /// with a short validity, until it is extended.
    is_unclaimed: bool,
}

/// The requests under way. Dropping this cancels those that have not been sent yet.
type Calls = FuturesUnordered<BoxFuture<'static, Answered>>;

/// An answer with its request, or the end of a wait.
enum Answered {
    Vote(Member, Request, Vote),
    Waited(Member, Vote<Acquired>),
}

impl SentRound<'_> {
    /// Makes a round in which nothing has been sent. `connection` is the one that an earlier round opened for
    /// an ephemeral hold, which ends when its connection closes.
    fn new(
        acquisition: &Acquisition,
        token: Token,
        connection: Option<(Arc<Node>, Connection)>,
    ) -> SentRound<'_> {
        let (options, service) = (&acquisition.options, &acquisition.service);
        let options = options.with(token, options.label.clone(), options.owner.clone());
        let request = Arc::new(LockRequest { resource: acquisition.resource.clone(), options });
        let channels = service.channels(&acquisition.resource);
        if acquisition.attempt_options.adopts {
            // A later release of the hold must also go to a master that has not answered.
            channels.iter().for_each(|channel| channel.assume_held());
        }
        if let Some((node, connection)) = connection {
            channels[0].pin(&node, connection);
        }
        let (voters, calls) = (Arc::default(), Calls::new());
        SentRound { acquisition, request, channels, voters, calls, is_unclaimed: false }
    }

    /// Waits for the next answer, or for the end of a pause. `None` if there is neither.
    async fn next_event(&mut self, attempt: &mut Attempt) -> Option<Step> {
        let timeout = attempt.timeout();
        tokio::select! {
            Some(answered) = self.calls.next() => Some(match answered {
                Answered::Vote(from, what, vote) => attempt.answered(from, what, vote, now()),
                Answered::Waited(from, ended) => match ended.into_grant() {
                    Ok(grant) => {
                        self.is_unclaimed = self.channels.len() == 1;
                        attempt.granted_in_queue(from, grant, now())
                    }
                    Err(vote) => attempt.waited(from, vote, now()),
                },
            }),
            Some(()) = OptionFuture::from(timeout.map(sleep_until)), if timeout.is_some() => {
                Some(attempt.timed_out(now()))
            }
            else => None,
        }
    }

    fn send(&mut self, sends: Sends, attempt: &Attempt) {
        for Outgoing { to, what } in sends {
            match what {
                Request::Leave => self.leave_queue(to),
                Request::Wait => self.join_queue(to, attempt),
                Request::Acquire | Request::HasWaiters | Request::Confirm { .. } => self.ask(to, what),
                // Sent elsewhere: Release by `drop`, Extend and Restore by `hold::extend`.
                Request::Release | Request::Extend | Request::Restore => {}
            }
        }
    }

    fn ask(&mut self, to: Member, what: Request) {
        let (request, ttl) = (&self.request, self.request.ttl());
        let (command, late_effect, read): (_, _, fn(Reply) -> Vote) = match what {
            Request::HasWaiters => (request::waiters(&request.resource, 1), None, Reply::queue_state),
            Request::Confirm { fence, .. } => {
                (request.confirm(fence), Some(LateEffect::Lease(ttl)), Reply::confirmed)
            }
            _ if self.acquisition.attempt_options.adopts => (request.read_fence(), None, Reply::confirmed),
            _ => (request.acquire(), Some(LateEffect::Hold), Reply::acquired),
        };
        let channel = self.channels[usize::from(to.0)].clone();
        let (limit, ephemeral) = (self.acquisition.service.limit.min(ttl), request.ephemeral);
        let voters = self.voters.clone();
        self.calls.push(Box::pin(async move {
            if let Err(vote) = open_ephemeral_connection(&channel, ephemeral).await {
                return Answered::Vote(to, what, vote);
            }
            let (reply, server) = channel.ask_server(&command, late_effect, limit).await;
            let mut vote = read(reply);
            // An answer about the queue says nothing about the hold.
            if what != Request::HasWaiters {
                channel.note(&vote);
                vote = voters.admit(to, server, vote);
            }
            Answered::Vote(to, what, vote)
        }));
    }

    fn join_queue(&mut self, to: Member, attempt: &Attempt) {
        let Acquisition { service, attempt_options, on_position, owner_may_hold, .. } = self.acquisition;
        let (service, on_position, owner_may_hold) =
            (service.clone(), on_position.clone(), owner_may_hold.clone());
        let (channel, request) = (self.channels[usize::from(to.0)].clone(), self.request.clone());
        let (until, stay) = (attempt_options.deadline.instant(), attempt.stay());
        let lease = attempt_options.plan.lease;
        let waiter = Waiter { service, channel, request, lease, until, stay, owner_may_hold };
        self.calls.push(Box::pin(async move {
            let ended = match open_ephemeral_connection(&waiter.channel, waiter.request.ephemeral).await {
                Ok(()) => waiter.wait(on_position).await,
                Err(vote) => vote,
            };
            Answered::Waited(to, ended)
        }));
    }

    fn leave_queue(&self, of: Member) {
        let channel = self.channels[usize::from(of.0)].clone();
        let cancel = self.request.cancel();
        self.acquisition.service.spawn(async move { channel.cancel(&cancel).await });
    }

    /// Turns the round into a hold. Records where other clients queue, or looks for them in the background:
    /// see [`NextQueue`].
    fn succeed(mut self, acquired: Acquired, attempt: Attempt) -> NewHold {
        let service = self.acquisition.service.clone();
        let (calls, channels) = (mem::take(&mut self.calls), mem::take(&mut self.channels));
        let (request, restores) = (self.request.clone(), !self.acquisition.attempt_options.adopts);
        match attempt.next_queue() {
            NextQueue::First => {}
            NextQueue::MoveTo(queue) => service.record_queue(&request.resource, queue),
            NextQueue::LookForOthersAt(queue) => service.look_for_others(request.clone(), queue),
        }
        let late_answers = (!calls.is_empty()).then(|| {
            let (request, under_way) = (request.clone(), service.cleanup.token());
            let receive = move |answered| {
                if let Answered::Vote(from, _, vote) = answered
                    && attempt.must_look_for_others(from, &vote)
                {
                    service.look_for_others(request.clone(), from);
                }
                ready(())
            };
            calls.for_each(receive).map(move |()| drop(under_way)).boxed()
        });
        let closed_until = self.acquisition.at_least.map(|at_least| now() + at_least);
        let is_unclaimed = self.is_unclaimed;
        NewHold { acquired, is_unclaimed, request, channels, late_answers, restores, closed_until }
    }

    /// Returns the connection of an ephemeral hold, for the next round.
    fn ephemeral_connection(&self) -> Option<(Arc<Node>, Connection)> {
        let channel = self.channels.first().filter(|_| self.request.ephemeral)?;
        channel.pinned().filter(|(_, connection)| connection.is_good())
    }

    fn report(&self, attempt: &Attempt) -> Report {
        let mut report = self.acquisition.service.report(&self.channels, attempt.votes());
        for member in attempt.members_ahead() {
            report.0[usize::from(member.0)].state = NodeState::ClockAhead;
        }
        report
    }
}

impl Drop for SentRound<'_> {
    fn drop(&mut self) {
        // A round that succeeded has passed its channels to the hold.
        if self.acquisition.attempt_options.adopts || self.channels.is_empty() {
            return;
        }
        self.calls.clear();
        let (lease, release) = (self.request.ttl(), self.request.release());
        drop(Releases::new(&self.acquisition.service, &self.channels, release, lease));
    }
}

/// Opens the connection of an ephemeral hold, unless an earlier round has opened it.
async fn open_ephemeral_connection<G>(channel: &Channel, ephemeral: bool) -> Result<(), Vote<G>> {
    if ephemeral && channel.connection().is_none() {
        channel.pin_separate().await.map_err(|why| Vote::Failed(why.into()))?;
    }
    Ok(())
}

/// Starts the renewal of a new hold.
pub(crate) fn begin_hold(service: &Arc<Service>, lease: Lease, renewal: Renewal, new: NewHold) -> Arc<Share> {
    let is_unclaimed = new.is_unclaimed;
    let hold = Hold::new(service.clone(), lease, renewal.renews, new);
    let (resource, fence) = (printable(&hold.request.resource), hold.fence.map(Fence::get));
    let span = info_span!("hold", resource, fence);
    service.spawn(renew(hold.clone(), renewal, is_unclaimed).instrument(span));
    Arc::new(Share(hold))
}
