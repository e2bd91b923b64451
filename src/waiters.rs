//! Clients that wait for a lock: they join the queue, and each gets one answer. A connection gets a reply, a
//! position of a token the notification that it asked for.
//!
//! A grant is passed on if its reply reaches no client: [`reply_reclaimed`] and [`unread`] find it, and the
//! background job takes it back.

use dlock_core::deadlock::{Found, Search};
use dlock_core::deliveries::Delivery;
use dlock_core::log::What;
use dlock_core::tasks::Task;
use dlock_core::{
    ClientId, Fence, Instant, Limits, LockRequestRef, Name, Newcomer, Notify, Outcome, Owner, Queued, Rank,
    Token, Ttl, Wait, Waiter, WaiterId,
};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;
use dlock_protocol::notify::Ended;

use crate::ffi::{self, Ctx, Handle, Waited, notices, user};
use crate::module::Module;
use crate::value::Key;
use crate::{clock, log, timer};

// Joining.

/// Blocks the client of the running command until its wait ends. The error is the reply to a client that may
/// not wait.
pub fn wait(
    m: &Module,
    ctx: Ctx<'_>,
    name: &Name<'_>,
    request: LockRequestRef<'_>,
    rank: Rank,
    client: ClientId,
    wait: Wait,
) -> Result<(), String> {
    let since = clock::now();
    let (name, owner, until) = (name.clone(), Owner::Client(client), wait.until(since));
    let waiter = join(m, ctx, Newcomer { name, rank, request, owner, since, until })?;
    block(m, ctx, waiter)
}

/// Gives the token of the running command a position in the queue for `ms`. The caller arms the timer.
pub fn queue(
    m: &Module,
    ctx: Ctx<'_>,
    name: &Name<'_>,
    request: LockRequestRef<'_>,
    rank: Rank,
    queued: Queued,
    ms: Ttl,
) -> Result<WaiterId, String> {
    let since = clock::now();
    let (name, owner, until) = (name.clone(), Owner::Token(queued), Some(since + ms));
    join(m, ctx, Newcomer { name, rank, request, owner, since, until })
}

/// Blocks the client of the running command beside the position of its token, at most until the position
/// ends.
pub fn wait_beside(
    m: &Module,
    ctx: Ctx<'_>,
    position: WaiterId,
    request: LockRequestRef<'_>,
    client: ClientId,
    wait: Wait,
) -> Result<(), String> {
    let since = clock::now();
    let limits = m.with(|s| s.config.limits);
    let waiter = m.with(|s| {
        let Waiter { name, rank, until, .. } = s.waiting.get(position)?;
        let until = wait.until(since).into_iter().chain(*until).min();
        let (name, rank, owner) = (name.clone(), *rank, Owner::Beside(client, position));
        if !s.waiting.has_room(&name, &owner, limits) {
            s.stats.queue_refusals += 1;
            return None;
        }
        s.waiting.join(Newcomer { name, rank, request, owner, since, until })
    });
    block(m, ctx, waiter.ok_or_else(|| queue_full(limits))?)
}

fn join(m: &Module, ctx: Ctx<'_>, newcomer: Newcomer<'_>) -> Result<WaiterId, String> {
    let limits = m.with(|s| s.config.limits);
    if !m.with(|s| s.waiting.has_room(&newcomer.name, &newcomer.owner, limits)) {
        m.with(|s| s.stats.queue_refusals += 1);
        log::refused(m, ctx, What::QueueFull, &newcomer.name, &newcomer.request);
        return Err(queue_full(limits).into());
    }
    if let Some(cycle) = cycle(m, ctx, &newcomer.name, &newcomer.request, newcomer.rank) {
        m.with(|s| s.stats.deadlocks += 1);
        log::refused(m, ctx, What::Deadlock, &newcomer.name, &newcomer.request);
        return Err(Error::Deadlock(cycle).into());
    }
    m.with(|s| s.waiting.join(newcomer)).ok_or_else(|| queue_full(limits).into())
}

fn block(m: &Module, ctx: Ctx<'_>, waiter: WaiterId) -> Result<(), String> {
    let Some(handle) = ffi::block::<Module>(ctx) else {
        m.with(|s| s.waiting.leave(waiter));
        return Err(Error::CannotWait.into());
    };
    m.with(|s| s.connections.block(waiter, handle));
    timer::rearm(m);
    Ok(())
}

fn queue_full(limits: Limits) -> Error {
    let Limits { on_the_server, on_a_key, queued } = limits;
    Error::QueueFull { on_the_server, on_a_key, queued }
}

/// Returns the cycle of tokens and owners that this wait would close, if any.
fn cycle(
    m: &Module,
    ctx: Ctx<'_>,
    name: &Name<'_>,
    request: &LockRequestRef<'_>,
    rank: Rank,
) -> Option<Vec<Token>> {
    let (now, db) = (clock::now(), ctx.db());
    let mut search = m.with(|s| Search::new(request, name, rank, now, &s.waiting));
    loop {
        match m.with(|s| search.run(&s.waiting)) {
            Found::Nothing => return None,
            Found::Cycle(cycle) => return Some(cycle),
            Found::Ask(asked) => {
                ctx.select_db(asked.db);
                let raw = ctx.string(&asked.key);
                let mut key = Key::open_for_read(ctx, raw.name()).ok();
                let lock = key.as_mut().and_then(|key| key.value()).map(|value| &value.lock);
                m.with(|s| search.learn(&asked, lock, &s.waiting));
                drop(key);
                ctx.select_db(db);
            }
        }
    }
}

// Answering.

/// Sends a waiter that has left the queue its answer.
pub fn answer(m: &Module, waiter: Waiter, outcome: Outcome, now: Instant) {
    match &waiter.owner {
        Owner::Token(queued) => notify(m, &waiter, queued, outcome, now),
        _ => reply(m, waiter, outcome, now),
    }
}

/// Ends a wait that cannot end in a grant on this server: an error for a connection, `refused` for a
/// position.
pub fn refuse(m: &Module, waiter: &Waiter, why: &str) {
    if let Owner::Token(queued) = &waiter.owner {
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
        // No connection takes this grant, so the rights of its user are checked here.
        Outcome::Granted(..) if !may_be_notified(waiter, queued) => {
            let Waiter { id, name, request, .. } = waiter.clone();
            m.with(|s| s.background.note(Task::Undelivered(name, request.token, id)));
            timer::rearm(m);
            Ended::Refused
        }
        Outcome::Granted(..) => Ended::Granted,
        Outcome::TimedOut => Ended::TimedOut,
        Outcome::Cancelled => Ended::Cancelled,
        Outcome::Refused(_) => Ended::Refused,
        Outcome::Left => return,
    };
    publish(m, queued, ended);
}

fn reply(m: &Module, waiter: Waiter, outcome: Outcome, now: Instant) {
    // A wait beside a position is counted and logged with the position.
    let counts = matches!(waiter.owner, Owner::Client(_));
    if counts {
        log::waited(m, &waiter, &outcome, now);
    }
    let handle = m.with(|s| {
        if counts {
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

/// Publishes how a queued wait ended, if NOTIFY was given and its user still has the right to the channel.
fn publish(m: &Module, queued: &Queued, ended: Ended) {
    if let Some(notify) = queued.notify.as_ref().filter(|_| may_publish(queued)) {
        m.ctx().publish(notify.channel(), &notify.published(ended), queued.sharded);
    }
}

/// Returns whether the user of a queued wait could still send its ACQUIRE.
fn may_be_notified(waiter: &Waiter, queued: &Queued) -> bool {
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
    /// The waiter, while it has a grant that its connection has not got yet: see [`dlock_core::deliveries`].
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
    pub fn deliver(&mut self, m: &Module, ctx: Ctx<'_>, waited: Waited) {
        match &self.reply {
            Reply::Fence(fence) => {
                if let Some(refused) = waited.refused(ctx) {
                    // The grant is left in the answer, where `reply_reclaimed` finds it.
                    return ctx.reply_error(&refused);
                }
                if let Some(waiter) = self.grant.take() {
                    notices::watch_turns::<Module>(m.ctx(), true);
                    m.with(|s| s.waiting.deliveries.handed_over(waiter));
                }
                ctx.reply_int(fence.get() as i64);
            }
            Reply::Null => ctx.reply_null(),
            Reply::Error(text) => ctx.reply_error(text),
        }
    }
}

/// Takes an answer back from the server. If its grant was not delivered, the background job passes it on.
pub fn reply_reclaimed(m: &Module, answer: Answer) {
    let Some(waiter) = answer.grant else { return };
    let undelivered = m.with(|s| {
        let Delivery { name, token, .. } = s.waiting.deliveries.reply_reclaimed(waiter)?;
        s.background.note(Task::Undelivered(name, token, waiter));
        Some(())
    });
    if undelivered.is_some() {
        timer::rearm(m);
    }
}

/// A connection has closed. If the reply with a grant was written to it in this turn of the event loop, the
/// client has not read it, unless the server closed the connection after writing everything. Returns whether
/// the background job has to pass a grant on.
pub fn unread(m: &Module, ctx: Ctx<'_>, client: ClientId) -> bool {
    let Some((waiter, delivery)) = m.with(|s| s.waiting.deliveries.gone(client)) else { return false };
    if ctx.closes_after_reply(client.0) {
        m.with(|s| s.waiting.deliveries.delivered(waiter, &delivery));
        return false;
    }
    // The server also writes everything before it evicts a connection for its memory. It counts the eviction
    // only after this event, so the job compares the counts.
    let evicted = evicted_clients(ctx);
    m.with(|s| s.background.note(Task::Unread { delivery, waiter, evicted }));
    true
}

/// Returns the number of connections that the server has closed for their memory.
pub fn evicted_clients(ctx: Ctx<'_>) -> Option<i64> {
    ctx.info_number("stats", "evicted_clients")
}

/// The client of a waiter is gone, or the server has answered it: removes the waiter from the queue.
pub fn gone(m: &Module, handle: Handle) {
    let left = m.with(|s| {
        let id = s.connections.waiter(handle)?;
        s.connections.unblock(id);
        let waiter = s.waiting.leave(id)?;
        s.stats.gone += 1;
        s.background.note(Task::Serve(waiter.name));
        Some(())
    });
    // The handle of an answered waiter has been used already.
    if left.is_some() {
        unblock(m, handle, None);
        timer::rearm(m);
    }
}
