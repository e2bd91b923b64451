//! A wait in the queue of one master. The position belongs to the token, so all waits share one connection,
//! and a position outlasts the connection. The master publishes the end of the wait. Messages can be lost, so
//! a wait also repeats its request, which keeps the position.

mod choice;

use futures_util::future::OptionFuture;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::{sleep, timeout};

use dlock_protocol::error::is_own_cycle;
use dlock_protocol::event::Ended;
use dlock_protocol::{Delay, NotifyRef, OwnerId, Ttl};
use dlock_quorum::{Acquired, Failure, Instant, Lease, QueueWatch, Refusal, Stay, Vote, WaitCalls};

use crate::clock::now;
use crate::inspect::Position;
use crate::reading;
use crate::request::{self, LockRequest, fresh_token};
use crate::service::Service;
use crate::topology::{Channel, LateEffect, Message};
use crate::wait::Backoff;

/// How long a master keeps a position that no request renews. A dead waiter delays the queue for at most this
/// time. A live waiter keeps its position even if its process or the server hangs for some seconds.
const POSITION_KEPT_FOR: Duration = Duration::from_secs(10);

/// Longest pause between two checks whether a queue moves, each of which asks all members. A queue that has
/// moved for long seldom gets stuck, so the pauses grow. All waits of the client for the lock share the
/// checks.
const LONGEST_CHECK_PAUSE: Duration = Duration::from_secs(22);

/// Interval at which the position is read. Also the longest pause of a wait that gets no messages.
const CHECK_INTERVAL: Duration = Duration::from_millis(500);

/// The first pause of a wait that gets no messages, or cannot reach the master.
const FIRST_PAUSE: Duration = Duration::from_millis(100);

/// The pause between two checks whether a queue moves is at least this multiple of the duration of the last
/// check. If members answer slowly, the releases that move the queue are slow, too. Two checks with a shorter
/// pause could then find the same holders, although the queue moves.
const INSPECTION_FACTOR: u32 = 8;

/// How many waiters to read in search of the position of this one.
const MAX_WAITERS_READ: u32 = 1000;

/// Called with the position in the queue.
pub(crate) type OnPosition = Arc<dyn Fn(Position) + Send + Sync>;

/// A waiter in the queue of one master.
#[derive(Clone)]
pub(crate) struct Waiter {
    pub(crate) service: Arc<Service>,
    pub(crate) channel: Arc<Channel>,
    pub(crate) request: Arc<LockRequest>,
    pub(crate) lease: Lease,
    /// The end of the wait; `None` means that it never ends.
    pub(crate) until: Option<Instant>,
    /// The rule by which the waiter leaves the queue without a grant.
    pub(crate) stay: Stay,
    /// True while another process may hold this lock under the same owner: until a server has queued a
    /// request with the owner.
    pub(crate) owner_may_hold: Arc<AtomicBool>,
}

impl Waiter {
    /// Waits until the lock is granted, the wait times out, the master stops answering, or its queue does not
    /// move. Without a grant, the position may remain in the queue until the caller sends a RELEASE.
    pub(crate) async fn wait(self, on_position: Option<OnPosition>) -> Vote<Acquired> {
        // From now on, a failed acquisition sends this master a RELEASE.
        self.channel.assume_queued();
        let waiter = self.clone();
        let may_leave = matches!(self.stay, Stay::WhileQueueMoves | Stay::UntilHoldersAreStale);
        // On the client's thread, where the user's tasks cannot delay it.
        let asking = self.service.background.run_on_thread(async move { waiter.ask().await });
        let may_deadlock =
            self.request.owner.is_some() && !self.is_single_server() && self.stay != Stay::AsHolder;
        let positions = on_position.map(|on_position| self.report_positions(on_position));
        let shared_check = self.channel.node().waits.shared_check(&self.request.resource);
        tokio::select! {
            ended = asking => ended.unwrap_or(Vote::Unknown),
            Some(()) = OptionFuture::from(positions) => Vote::Unknown,
            () = shared_check.until_must_leave(self.until_stuck()), if may_leave => Vote::Refused(Refusal::Taken),
            deadlock = self.until_deadlock_at_earlier_member(), if may_deadlock => deadlock,
        }
    }

    /// Sends ACQUIRE with QUEUE until the wait ends. Repeats the request before the master drops the
    /// position, and when a message of the master may have been lost. A message that is a grant ends the wait
    /// at once, also while a request is under way: see [`WaitCalls`].
    async fn ask(&self) -> Vote<Acquired> {
        let owner_omitted = &AtomicBool::new(false);
        match self.ask_until_ended(owner_omitted).await {
            Vote::Granted(_) if owner_omitted.load(Ordering::Relaxed) && self.is_single_server() => {
                self.claim_with_owner().await
            }
            outcome => outcome,
        }
    }

    async fn ask_until_ended(&self, owner_omitted: &AtomicBool) -> Vote<Acquired> {
        let mut node = self.channel.node();
        if self.request.owner.is_some() {
            // The RELEASE of another hold of the owner may be in flight. Until it arrives, the server counts
            // that hold, and might refuse this wait as a deadlock.
            let _ = timeout(node.limit, node.releases.wait()).await;
        }
        let mut wait = node.waits.begin();
        let mut backoff = Backoff::new(FIRST_PAUSE, CHECK_INTERVAL);
        let mut calls = WaitCalls::new(self.lease);
        let (mut kept, begun, mut answered_at) = (POSITION_KEPT_FOR, now(), None);
        loop {
            let at = self.channel.node();
            if !Arc::ptr_eq(&node, &at) {
                // The slot is at another node, which publishes to the channel of its own waits. A message
                // that the old node has published for an earlier call is not needed: the next answer says the
                // same.
                wait = at.waits.begin();
                node = at;
            }
            let (is_subscribed, sent) = (node.is_subscribed(), now());
            let call = calls.begin(kept, sent);
            let message = wait.begin_call(call);
            // Asks again after the answer, which may be older than the message.
            let mut asks_again = false;
            let reply = {
                let notify = wait.notify(&message).filter(|_| is_subscribed);
                let mut asking = pin!(self.ask_once(kept, notify, owner_omitted));
                loop {
                    tokio::select! {
                        biased;
                        reply = &mut asking => break reply,
                        message = wait.next_message() => {
                            match self.hear(&calls, message) {
                                Some(outcome) => return outcome,
                                None => asks_again = true,
                            }
                        }
                    }
                }
            };
            let vote = match reply.into_grant() {
                Ok(fence) => match calls.answered_fence(call, fence) {
                    Some(acquired) => return Vote::Granted(acquired),
                    None => Vote::Unknown,
                },
                Err(vote) => vote,
            };
            let pause = match &vote {
                Vote::Refused(Refusal::Taken) => {
                    calls.answered_null(call);
                    if answered_at.is_none() {
                        // The server answers, so the releases of earlier rounds can be confirmed, too.
                        node.repeat_releases.notify_waiters();
                    }
                    answered_at = Some(now());
                    if !Arc::ptr_eq(&node, &self.channel.node()) {
                        // The call was redirected, and its message may not arrive here.
                        continue;
                    }
                    // The repetition must leave a usable validity, which counts from its send.
                    let pause = self.pause(kept).saturating_sub(now().saturating_since(sent));
                    match (asks_again, is_subscribed) {
                        (true, _) => Duration::ZERO,
                        (false, true) => pause,
                        (false, false) => backoff.next(),
                    }
                }
                // The server rejects a QUEUE time above its `dlock.max-ttl`, which also limits leases. So the
                // client sends the length of the lease as the QUEUE time.
                Vote::Failed(Failure::Misuse(_)) if kept > self.request.ttl() => {
                    kept = self.request.ttl();
                    continue;
                }
                vote if self.asks_again_after(vote, begun, answered_at) => backoff.next(),
                _ => {
                    if node.is_silent() {
                        // The other waits at this master find out at once that it is silent.
                        node.waits.wake_all();
                    }
                    return vote;
                }
            };
            let left = self.until.map_or(Duration::MAX, |until| until.saturating_since(now()));
            if left.is_zero() {
                // The wait timed out. The position is given up before the caller's next request for the lock,
                // which would otherwise wait behind this position. A holder that waits for another mode sends
                // no RELEASE, which would also end the hold.
                if vote == Vote::Refused(Refusal::Taken)
                    && self.stay != Stay::AsHolder
                    && self
                        .channel
                        .ask(&self.request.release().command(now()), None, self.service.limit)
                        .await
                        .confirms_release()
                {
                    self.channel.note_released();
                }
                return vote;
            }
            if let Some(message) = wait.next(pause.min(left)).await
                && let Some(outcome) = self.hear(&calls, message)
            {
                return outcome;
            }
            if !self.is_single_server() && node.is_silent() {
                return Vote::Unknown;
            }
        }
    }

    /// Reads a message of the master. Returns how the wait ends; `None` means that it asks again at once.
    fn hear(&self, calls: &WaitCalls, (call, ended): Message) -> Option<Vote<Acquired>> {
        match ended? {
            Ended::Granted(fence) if !self.claims_first() => {
                calls.announced(call, fence, now()).map(Vote::Granted)
            }
            Ended::Granted(_) | Ended::TimedOut => None,
            Ended::Cancelled => Some(Vote::Refused(Refusal::Taken)),
            // A server that became a replica refuses its waiters. The next request joins the queue again, or
            // gets the reason of the refusal.
            Ended::Refused => {
                self.channel.leave_server();
                None
            }
        }
    }

    /// Returns whether a grant counts only once it is claimed, which the next request does. A grant of a
    /// single server that is not claimed ends without the delay, which the caller relies on. In a quorum,
    /// each member is asked anyway. A token that waits for another mode has claimed its hold.
    fn claims_first(&self) -> bool {
        self.request.delay != Delay::NONE && self.is_single_server() && self.stay != Stay::AsHolder
    }

    /// Sends one ACQUIRE with QUEUE. A deadlock of the owner with itself is none if neither this client nor
    /// another process holds the lock for that owner: a position or a hold of an earlier round is left, and
    /// its RELEASE is under way. The wait then goes on without an owner. The next request names the owner
    /// again.
    async fn ask_once(
        &self,
        kept: Duration,
        notify: Option<NotifyRef<'_>>,
        owner_omitted: &AtomicBool,
    ) -> Vote {
        let (request, limit) = (&self.request, self.service.limit);
        let send = async |request: &LockRequest| {
            let command = request.queue(kept, notify);
            self.channel.ask(&command, Some(LateEffect::Hold), limit).await.acquired()
        };
        let vote = send(request).await;
        let is_own = |cycle, owner: &OwnerId| {
            !self.owner_may_hold.load(Ordering::Relaxed)
                && is_own_cycle(cycle, owner.as_bytes())
                && !self.service.watched.is_held_by(&request.resource, owner.as_bytes())
        };
        match (&vote, &request.owner) {
            (Vote::Refused(Refusal::Deadlock(cycle)), Some(owner)) if is_own(cycle, owner) => {
                owner_omitted.store(true, Ordering::Relaxed);
                send(&request.without_owner()).await
            }
            (Vote::Refused(Refusal::Taken), _) => {
                self.owner_may_hold.store(false, Ordering::Relaxed);
                owner_omitted.store(false, Ordering::Relaxed);
                vote
            }
            _ => vote,
        }
    }

    /// Completes once this wait closes a cycle with waits in the queue of an earlier member, which has
    /// answered again: each server searches its own queues only. Asks the earlier members from time to time,
    /// with a token of the same owner that is released at once. If this is dropped before the release, the
    /// token expires soon.
    async fn until_deadlock_at_earlier_member(&self) -> Vote<Acquired> {
        let ttl = Ttl::from_millis(1000).expect("1 s is a valid lease");
        let (resource, mode, owner) = (&self.request.resource, self.request.mode, &self.request.owner);
        loop {
            sleep(self.pause(POSITION_KEPT_FOR)).await;
            for member in self.service.queue_order().before(self.channel.node().member) {
                let options = dlock_protocol::LockRequest::new(fresh_token(), ttl);
                let options = dlock_protocol::LockRequest { mode, owner: owner.clone(), ..options };
                let request = LockRequest { resource: resource.clone(), options };
                let channel = self.service.channels(resource)[usize::from(member.0)].clone();
                let command = request.queue(request.ttl(), None);
                let vote = channel.ask(&command, Some(LateEffect::Hold), self.service.limit).await.acquired();
                match (vote, owner) {
                    (Vote::Refused(Refusal::Deadlock(cycle)), Some(owner))
                        if !is_own_cycle(&cycle, owner.as_bytes()) =>
                    {
                        return Vote::Refused(Refusal::Deadlock(cycle));
                    }
                    _ => _ = channel.release(request.release(), request.ttl()).await,
                }
            }
        }
    }

    /// Sends the ACQUIRE again for a grant to a request without the owner, so that the server knows the owner
    /// of the hold. The searches for deadlocks depend on it.
    async fn claim_with_owner(&self) -> Vote<Acquired> {
        let sent = now();
        let reply =
            self.channel.ask(&self.request.acquire(), Some(LateEffect::Hold), self.service.limit).await;
        let valid_until = self.lease.valid_until(sent);
        reply.acquired().map(|fence| Acquired { fence: Some(fence), valid_until })
    }

    /// Returns true if a master that did not answer is asked again, because it may still keep the position.
    /// An EPHEMERAL position ends with its connection. In a quorum, the client continues without a silent or
    /// unreachable master.
    fn asks_again_after(&self, vote: &Vote<Acquired>, begun: Instant, answered_at: Option<Instant>) -> bool {
        let may_answer_again = match vote {
            // The master is busy, or the connection broke.
            Vote::Unknown if !self.channel.node().is_silent() => true,
            // The server keeps the position meanwhile. A new token would join the tail.
            Vote::Failed(Failure::NotNow(_)) => self.is_single_server(),
            Vote::Unknown => self.is_single_server() && !self.request.ephemeral,
            Vote::Failed(Failure::Down(_)) => {
                self.is_single_server() && answered_at.is_some() && !self.request.ephemeral
            }
            _ => false,
        };
        may_answer_again && now() < answered_at.unwrap_or(begun) + POSITION_KEPT_FOR
    }

    fn is_single_server(&self) -> bool {
        self.service.quorum.majority() == 1
    }

    /// Returns how long to wait for a message before the next request, which keeps the position. In a quorum,
    /// the requests also show whether the member has fallen silent. At a single server, the message is the
    /// grant, with a validity that counts from the last request and is no longer than the ttl.
    fn pause(&self, kept: Duration) -> Duration {
        let valid = if self.is_single_server() { kept.min(self.request.ttl()) } else { kept };
        let longest = (valid / 3).max(FIRST_PAUSE);
        rand::random_range(longest / 4 * 3..=longest)
    }

    /// Completes once this wait must leave the queue, because no holder at its member can have a majority.
    /// See [`QueueWatch`].
    async fn until_stuck(&self) {
        let (queue, limit) = (self.channel.node().member, self.service.limit);
        let mut watch = QueueWatch::new(self.service.quorum, queue, self.stay);
        let mut backoff = Backoff::new(limit / 8, LONGEST_CHECK_PAUSE);
        let mut inspection_time = Duration::ZERO;
        loop {
            sleep(backoff.next().max(inspection_time * INSPECTION_FACTOR)).await;
            let begun = now();
            let holders = self.service.holders(&self.request.resource).await;
            inspection_time = now().saturating_since(begun);
            if watch.must_leave(&holders) {
                return;
            }
        }
    }

    /// Reports the position whenever it has changed.
    async fn report_positions(&self, on_position: OnPosition) {
        let (service, resource) = (&self.service, &self.request.resource);
        let channel = service.sites[usize::from(self.channel.node().member.0)].channel(resource);
        let question = request::waiters(&self.request.resource, MAX_WAITERS_READ);
        let own = reading::printable(self.request.token.as_bytes());
        let mut last = None;
        loop {
            sleep(CHECK_INTERVAL.min(service.limit)).await;
            let answer = channel.query(&question, reading::queue).await;
            let Ok(queue) = answer else { continue };
            let Some(index) = queue.iter().position(|waiting| waiting.token == own) else { continue };
            let position = index as u64 + 1;
            if last.replace(position) != Some(position) {
                let waited = Duration::from_millis(queue[index].waited_ms);
                on_position(Position { server: channel.node().server_name(), position, waited });
            }
        }
    }
}
