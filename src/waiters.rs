//! Waiters: they join the wait queue of a lock, and each gets one answer. For a blocked connection, that is
//! the reply; for a position (ACQUIRE with QUEUE), the notification on the channel of its NOTIFY.
//!
//! If the reply with a grant does not reach its client, [`reply_reclaimed`] or [`note_missed_grant`] detects
//! it. The background job then takes the grant back, and serves the queue.

use dlock_core::deliveries::Delivery;
use dlock_core::log::IncidentKind;
use dlock_core::tasks::Task;
use dlock_core::{
    CannotJoin, ClientId, Fence, Instant, Joined, Joining, Kept, Limits, LockRequestRef, Name, NewWait,
    Notify, Outcome, Queued, Rank, WaitKind, Waiter, WaiterId,
};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;
use dlock_protocol::event::Ended;
use dlock_protocol::reply::Sink;

use crate::ffi::{self, Ctx, Handle, Waited, notices, user};
use crate::log;
use crate::module::{Key, Message, Module};

// Joining.

/// Begins the wait of a request that was not granted: at `rank`, or at the position that its token keeps.
/// Returns whether the client of the running command is blocked. The error is the reply if it cannot wait.
pub fn wait(m: &Module, ctx: Ctx<'_>, place: Place, wait: NewWait<'_>) -> Result<bool, String> {
    let (name, request) = (wait.name.clone(), wait.request);
    let joined = match place {
        Place::At(rank) => join(m, ctx, rank, wait),
        Place::Kept(kept) => m.with(|s| s.waiting.keep(kept, &wait, s.config.limits)),
    };
    let joined = joined.map_err(|why| refused(m, ctx, why, &name, &request))?;
    let connection = joined.connection;
    if let Some(waiter) = connection {
        let Some(handle) = ffi::block::<Module>(ctx) else {
            m.with(|s| s.waiting.take_back(joined));
            return Err(Error::CannotWait.into());
        };
        m.with(|s| s.connections.block(waiter, handle));
    }
    m.rearm_timer();
    Ok(connection.is_some())
}

/// Where a request waits.
pub enum Place {
    At(Rank),
    Kept(Kept),
}

fn join(m: &Module, ctx: Ctx<'_>, rank: Rank, wait: NewWait<'_>) -> Result<Joined, CannotJoin> {
    let mut joining = m.with(|s| Joining::new(wait, rank, &s.waiting, s.config.limits))?;
    let db = ctx.db();
    while let Some(other) = m.with(|s| joining.asks_for(&s.waiting)) {
        ctx.select_db(other.db);
        let raw = ctx.string(&other.key);
        let key = Key::open_for_read(ctx, raw.name()).ok();
        let lock = key.as_ref().and_then(Key::value);
        m.with(|s| joining.learn(&other, lock, &s.waiting));
        drop(key);
        ctx.select_db(db);
    }
    m.with(|s| joining.join(&mut s.waiting))
}

/// Counts and records a request that may not wait. Returns the reply.
pub fn refused(
    m: &Module,
    ctx: Ctx<'_>,
    why: CannotJoin,
    name: &Name<'_>,
    request: &LockRequestRef<'_>,
) -> String {
    let (kind, error) = m.with(|s| match why {
        CannotJoin::QueueFull => {
            s.stats.queue_refusals += 1;
            let Limits { on_the_server, on_a_key, queued } = s.config.limits;
            (IncidentKind::QueueFull, Error::QueueFull { on_the_server, on_a_key, queued })
        }
        CannotJoin::Deadlock(cycle) => {
            s.stats.deadlocks += 1;
            (IncidentKind::Deadlock, Error::Deadlock(cycle))
        }
    });
    log::refused(m, ctx, kind, name, request);
    error.into()
}

// Answering.

/// Sends the answer to a waiter that has left the queue.
pub fn answer(m: &Module, waiter: Waiter, outcome: Outcome, now: Instant) {
    match &waiter.kind {
        WaitKind::Queued(queued) => notify(m, &waiter, queued, outcome, now),
        _ => reply(m, waiter, outcome, now),
    }
}

/// Refuses a waiter that has left the queue: sends the error `why` to a connection, or `refused` to the
/// channel of a position.
pub fn refuse(m: &Module, waiter: &Waiter, why: &str) {
    if let WaitKind::Queued(queued) = &waiter.kind {
        return publish(m, queued, Ended::Refused);
    }
    if let Some(handle) = m.with(|s| s.connections.unblock(waiter.id)) {
        unblock(m, handle, Some(Answer::new(Reply::Error(why.to_owned()))));
    }
}

fn notify(m: &Module, waiter: &Waiter, queued: &Queued, outcome: Outcome, now: Instant) {
    log::waited(m, waiter, &outcome, now);
    m.with(|s| s.stats.answered(&outcome, now.millis_since(waiter.since)));
    let ended = match outcome {
        // For a blocked connection, `Answer::deliver` checks the rights of the user. A position may have no
        // connection, so they are checked here.
        Outcome::Granted(..) if !may_be_notified(waiter, queued) => {
            let Waiter { id, name, request, .. } = waiter.clone();
            m.with(|s| s.background.add_task(Task::Undelivered(name, request.token, id)));
            m.rearm_timer();
            Ended::Refused
        }
        Outcome::Granted(fence, _) => Ended::Granted(fence),
        Outcome::TimedOut => Ended::TimedOut,
        Outcome::Cancelled => Ended::Cancelled,
        Outcome::Refused(_) => Ended::Refused,
        Outcome::Left => return,
    };
    publish(m, queued, ended);
}

fn reply(m: &Module, waiter: Waiter, outcome: Outcome, now: Instant) {
    // A connection beside a position is part of the position's wait, which `notify` counts and logs.
    let is_counted_here = matches!(waiter.kind, WaitKind::Blocked(_));
    if is_counted_here {
        log::waited(m, &waiter, &outcome, now);
    }
    let handle = m.with(|s| {
        if is_counted_here {
            s.stats.answered(&outcome, now.millis_since(waiter.since));
        }
        s.connections.unblock(waiter.id)
    });
    let Some(handle) = handle else { return };
    let answer = match outcome {
        Outcome::Granted(fence, _) => Answer { reply: Reply::Fence(fence), grant: Some(waiter.id) },
        Outcome::TimedOut | Outcome::Cancelled | Outcome::Left => Answer::new(Reply::Null),
        Outcome::Refused(refusal) => Answer::new(Reply::Error(Error::Refused(refusal).into())),
    };
    unblock(m, handle, Some(answer));
}

fn unblock(m: &Module, handle: Handle, answer: Option<Answer>) {
    ffi::unblock::<Module>(m.ctx(), handle, answer.map(Box::new));
}

/// Publishes the outcome of a position at the end of this turn of the event loop, if the position has a
/// NOTIFY channel and its user may still publish there.
///
/// The subscriber holds the lock once it has read that the lock was granted. So with `appendfsync always`,
/// the grant must be on the disk before. At the end of a turn, the server writes the append only file, and
/// sends what is in the output buffers only then. But it can send a message earlier that is published in the
/// middle of a turn: to a slow subscriber whose socket has become writable in the same turn, and to all
/// subscribers while a script is slow, whose effects are logged when it ends.
fn publish(m: &Module, queued: &Queued, ended: Ended) {
    let Some(notify) = queued.notify.as_ref().filter(|_| may_publish(queued)) else { return };
    let (channel, is_sharded) = (notify.channel().into(), notify.is_sharded());
    let message = Message { channel, is_sharded, text: notify.published(ended) };
    let turn_is_ending = m.with(|s| {
        s.messages.unsent.push(message);
        s.messages.turn_is_ending
    });
    // If the end of this turn was not watched, it may have begun.
    if !notices::watch_turns::<Module>(m.ctx(), true) || turn_is_ending {
        notices::next_turn_at_once();
    }
}

/// Publishes the messages of the turn of the event loop that ends.
pub fn turn_ends(m: &Module) {
    let unsent = m.with(|s| {
        s.messages.turn_is_ending = true;
        std::mem::take(&mut s.messages.unsent)
    });
    for Message { channel, is_sharded, text } in unsent {
        m.ctx().publish(&channel, &text, is_sharded);
    }
}

/// Returns whether the user of a position still has the right to its ACQUIRE and to its channel.
fn may_be_notified(waiter: &Waiter, queued: &Queued) -> bool {
    // The rights do not depend on the ttl, so any ttl will do.
    let command = [table::ACQUIRE.name.as_bytes(), &waiter.name.key, waiter.request.token.as_bytes(), b"1"];
    queued.user.as_ref().is_none_or(|name| user::may_run(name, &command)) && may_publish(queued)
}

fn may_publish(queued: &Queued) -> bool {
    let channel = queued.notify.as_ref().map(Notify::channel);
    queued.user.as_ref().zip(channel).is_none_or(|(name, channel)| user::may_publish(name, channel))
}

// Delivering.

/// The reply to a blocked client, on its way through the server.
pub struct Answer {
    reply: Reply,
    /// The granted waiter, until the reply is written to its connection. See [`dlock_core::deliveries`].
    grant: Option<WaiterId>,
}

enum Reply {
    Fence(Fence),
    Null,
    Error(String),
}

impl Answer {
    fn new(reply: Reply) -> Answer {
        Answer { reply, grant: None }
    }

    /// Writes the reply to the connection.
    pub fn deliver(&mut self, m: &Module, mut ctx: Ctx<'_>, waited: Waited) {
        match &self.reply {
            Reply::Fence(fence) => {
                if let Some(refused) = waited.deny_if_rights_lost(ctx) {
                    // The grant is left in the answer, where `reply_reclaimed` finds it.
                    return ctx.reply_error(&refused);
                }
                if let Some(waiter) = self.grant.take() {
                    // Requests the notice of the next event-loop turn. The grant counts as delivered in
                    // that turn.
                    notices::watch_turns::<Module>(m.ctx(), true);
                    m.with(|s| s.waiting.deliveries.handed_over(waiter));
                }
                ctx.int(fence.get() as i64);
            }
            Reply::Null => ctx.null(),
            Reply::Error(text) => ctx.reply_error(text),
        }
    }
}

/// Takes an answer back from the server. If it still has a grant, no client has received it, so the
/// background job takes the grant back.
pub fn reply_reclaimed(m: &Module, answer: Answer) {
    let Some(waiter) = answer.grant else { return };
    let undelivered = m.with(|s| {
        let Delivery { name, token, .. } = s.waiting.deliveries.reply_reclaimed(waiter)?;
        s.background.add_task(Task::Undelivered(name, token, waiter));
        Some(())
    });
    if undelivered.is_some() {
        m.rearm_timer();
    }
}

/// Called when a connection has closed. The server sends replies at the end of an event-loop turn. So the
/// client has missed a grant of the same turn, unless the server sent all replies before it closed the
/// connection. Adds a task that takes a missed grant back. Returns whether it has added one.
pub fn note_missed_grant(m: &Module, ctx: Ctx<'_>, client: ClientId) -> bool {
    let Some((waiter, delivery)) = m.with(|s| s.waiting.deliveries.client_gone(client)) else { return false };
    if ctx.closes_after_reply(client.0) {
        m.with(|s| s.waiting.deliveries.delivered(waiter, &delivery));
        return false;
    }
    // The server also sends all replies before it evicts a connection (`maxmemory-clients`). But it counts
    // the eviction only after this call, so the background job checks later whether the count has changed.
    let evicted_before = evicted_clients(ctx);
    m.with(|s| s.background.add_task(Task::Unread { delivery, waiter, evicted_before }));
    true
}

/// Returns the number of connections that the server has evicted (`maxmemory-clients`).
pub fn evicted_clients(ctx: Ctx<'_>) -> Option<i64> {
    ctx.info_number("stats", "evicted_clients")
}

/// Removes a waiter from the queue after its connection has closed, or after the server itself has ended the
/// wait. The server does so for CLIENT UNBLOCK ERROR, and when its role changes.
pub fn gone(m: &Module, handle: Handle) {
    let has_left = m.with(|s| {
        let id = s.connections.waiter(handle)?;
        s.connections.unblock(id);
        let waiter = s.waiting.leave(id)?;
        s.stats.waiters_gone += 1;
        s.background.add_task(Task::Serve(waiter.name));
        Some(())
    });
    // A handle may be used only once, and the handle of an answered waiter has been used.
    if has_left.is_some() {
        unblock(m, handle, None);
        m.rearm_timer();
    }
}
