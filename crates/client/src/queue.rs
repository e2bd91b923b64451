//! A wait in the queue of one master. The position belongs to the token, so all waits share one connection,
//! and a position outlasts the connection. The master publishes the end of the wait. Messages can be lost, so
//! a wait also repeats its request, which keeps the position.

mod choice;

use futures_util::future::OptionFuture;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::{sleep, timeout};

use dlock_protocol::NotifyRef;
use dlock_protocol::error::is_own_cycle;
use dlock_protocol::event::Ended;
use dlock_quorum::{Failure, Instant, QueueWatch, Refusal, Stay, Vote};

use crate::clock::now;
use crate::inspect::Position;
use crate::reading;
use crate::request::{self, LockRequest};
use crate::service::Service;
use crate::topology::{Channel, LateEffect};
use crate::wait::Backoff;

/// How long a master keeps a position that no request renews. A dead waiter delays the queue for at most this
/// time. A live waiter keeps its position even if its process or the server hangs for some seconds.
const POSITION_KEPT_FOR: Duration = Duration::from_secs(10);

/// Longest interval between two checks whether a member of a quorum has fallen silent. All waits at that
/// member share these checks. The position is also read at this interval.
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
    /// The end of the wait; `None` means that it never ends.
    pub(crate) until: Option<Instant>,
    /// The rule by which the waiter leaves the queue without a grant.
    pub(crate) stay: Stay,
}

impl Waiter {
    /// Waits until the lock is granted, the wait times out, the master stops answering, or its queue does not
    /// move. Without a grant, the position may remain in the queue until the caller sends a RELEASE.
    pub(crate) async fn wait(self, on_position: Option<OnPosition>) -> Vote<()> {
        // From now on, a failed acquisition sends this master a RELEASE.
        self.channel.assume_queued();
        let waiter = self.clone();
        let may_leave = matches!(self.stay, Stay::WhileQueueMoves | Stay::UntilHoldersAreStale);
        // On the client's thread, where the user's tasks cannot delay it.
        let asking = self.service.background.run_on_thread(async move { waiter.ask().await });
        let positions = on_position.map(|on_position| self.report_positions(on_position));
        let shared_check = self.channel.node.waits.shared_check(&self.request.resource);
        tokio::select! {
            ended = asking => ended.unwrap_or(Vote::Unknown),
            Some(()) = OptionFuture::from(positions) => Vote::Unknown,
            () = shared_check.until_must_leave(self.until_stuck()), if may_leave => Vote::Refused(Refusal::Taken),
        }
    }

    /// Sends ACQUIRE with QUEUE until the wait ends. Repeats the request before the master drops the
    /// position, and when a message of the master may have been lost.
    async fn ask(&self) -> Vote<()> {
        let node = &self.channel.node;
        if self.request.owner.is_some() {
            // The RELEASE of another hold of the owner may be in flight. Until it arrives, the server counts
            // that hold, and might refuse this wait as a deadlock.
            let _ = timeout(node.limit, node.releases.wait()).await;
        }
        let wait = node.waits.begin();
        let mut backoff = Backoff::new(FIRST_PAUSE, CHECK_INTERVAL);
        let (mut kept, begun, mut answered_at) = (POSITION_KEPT_FOR, now(), None);
        loop {
            let is_subscribed = node.is_subscribed();
            let vote = self.ask_once(kept, wait.notify().filter(|_| is_subscribed)).await;
            let pause = match &vote {
                Vote::Refused(Refusal::Taken) => {
                    if answered_at.is_none() {
                        // The server answers, so the releases of earlier rounds can be confirmed, too.
                        node.repeat_releases.notify_waiters();
                    }
                    answered_at = Some(now());
                    if is_subscribed { self.pause(kept) } else { backoff.next() }
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
            let pause = self.until.map_or(pause, |until| pause.min(until.saturating_since(now())));
            if pause.is_zero() {
                // The wait timed out. The position is given up before the caller's next request for the lock,
                // which would otherwise wait behind this position. A holder that waits for another mode sends
                // no RELEASE, which would also end the hold.
                if vote == Vote::Refused(Refusal::Taken)
                    && self.stay != Stay::AsHolder
                    && self.channel.ask(&self.request.release(), None, node.limit).await.confirms_release()
                {
                    self.channel.note_released();
                }
                return vote;
            }
            match wait.next(pause).await {
                Some(Ended::Granted(_)) => return Vote::Granted(()),
                Some(Ended::Cancelled) => return Vote::Refused(Refusal::Taken),
                // A server that became a replica refuses its waiters. The next request joins the queue again,
                // or gets the reason of the refusal.
                Some(Ended::Refused) => self.channel.leave_server(),
                Some(Ended::TimedOut) | None => {}
            }
            if !self.is_single_server() && node.is_silent() {
                return Vote::Unknown;
            }
        }
    }

    /// Sends one ACQUIRE with QUEUE. A deadlock of the owner with itself is none if this client does not hold
    /// the lock for that owner: a position or a hold of an earlier round is left, and its RELEASE is under
    /// way. The wait then goes on without an owner. The next request names the owner again.
    async fn ask_once(&self, kept: Duration, notify: Option<NotifyRef<'_>>) -> Vote<()> {
        let (request, limit) = (&self.request, self.channel.node.limit);
        let send = async |request: &LockRequest| {
            let command = request.queue(kept, notify);
            self.channel.ask(&command, Some(LateEffect::Hold), limit).await.acquired().map(|_| ())
        };
        let vote = send(request).await;
        match (&vote, &request.owner) {
            (Vote::Refused(Refusal::Deadlock(cycle)), Some(owner))
                if is_own_cycle(cycle, owner.as_bytes())
                    && !self.service.watched.is_held_by(&request.resource, owner.as_bytes()) =>
            {
                send(&request.without_owner()).await
            }
            _ => vote,
        }
    }

    /// Returns true if a master that did not answer is asked again, because it may still keep the position.
    /// An EPHEMERAL position ends with its connection. In a quorum, the client continues without a silent or
    /// unreachable master.
    fn asks_again_after(&self, vote: &Vote<()>, begun: Instant, answered_at: Option<Instant>) -> bool {
        let may_answer_again = match vote {
            // The master is busy, or the connection broke.
            Vote::Unknown if !self.channel.node.is_silent() => true,
            // The server keeps the position meanwhile. A new token would join the tail.
            Vote::Failed(Failure::NotNow(_)) => self.is_single_server(),
            Vote::Unknown | Vote::Failed(Failure::Down(_)) => {
                self.is_single_server() && answered_at.is_some() && !self.request.ephemeral
            }
            _ => false,
        };
        may_answer_again && now() < answered_at.unwrap_or(begun) + POSITION_KEPT_FOR
    }

    fn is_single_server(&self) -> bool {
        self.service.quorum.majority() == 1
    }

    /// Returns how long to wait for a message before the next request. In a quorum, the requests also show
    /// whether the member has fallen silent. One request shows this to all waits at the member, so each wait
    /// pauses longer if there are more of them.
    fn pause(&self, kept: Duration) -> Duration {
        let node = &self.channel.node;
        let check = if self.is_single_server() { kept } else { node.limit.min(CHECK_INTERVAL) };
        let longest = check.saturating_mul(node.waits.count()).min(kept / 3);
        rand::random_range(longest / 2..=longest)
    }

    /// Completes once this wait must leave the queue, because no holder at its member can have a majority.
    /// See [`QueueWatch`].
    async fn until_stuck(&self) {
        let (queue, limit) = (self.channel.node.member, self.channel.node.limit);
        let mut watch = QueueWatch::new(self.service.quorum, queue, self.stay);
        let mut backoff = Backoff::new(limit / 8, CHECK_INTERVAL * 2);
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
        let node = &self.channel.node;
        let question = request::waiters(&self.request.resource, MAX_WAITERS_READ);
        let own = reading::printable(self.request.token.as_bytes());
        let mut last = None;
        loop {
            sleep(CHECK_INTERVAL.min(node.limit)).await;
            let answer = Channel::new(node.clone()).query(&question, reading::queue).await;
            let Ok(queue) = answer else { continue };
            let Some(index) = queue.iter().position(|waiting| waiting.token == own) else { continue };
            let position = index as u64 + 1;
            if last.replace(position) != Some(position) {
                let waited = Duration::from_millis(queue[index].waited_ms);
                on_position(Position { server: node.name.clone(), position, waited });
            }
        }
    }
}
