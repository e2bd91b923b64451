//! Blocked clients: how the core's answer reaches a connection, or comes back when there is none any more.

use dlock_core::deadlock::{Found, Search};
use dlock_core::deliveries::Delivery;
use dlock_core::log::What;
use dlock_core::tasks::Task;
use dlock_core::{
    ClientId, Fence, Instant, Limits, LockRequestRef, Name, Newcomer, Outcome, Owner, Queued, Rank, Token,
    Ttl, Wait, Waiter, WaiterId,
};
use dlock_protocol::error::Error;

use crate::ffi::{self, Ctx, Handle, Waited, notices};
use crate::module::Module;
use crate::value::Key;
use crate::{clock, log, timer};

/// What a waiter is told.
pub struct Answer {
    reply: Reply,
    /// Whose grant it is, until it is in the hands of its connection: see [`dlock_core::deliveries`].
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

    pub fn deliver(&mut self, m: &Module, ctx: Ctx<'_>, waited: Waited) {
        match &self.reply {
            Reply::Fence(fence) => {
                if let Some(refused) = waited.refused(ctx) {
                    // The grant comes back by [`came_back`].
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

/// The client of the running command joins the queue; its reply comes later. The error is the reply where it
/// may not.
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

/// The token of the running command gets a position of its own in the queue.
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
    let waiter = join(m, ctx, Newcomer { name, rank, request, owner, since, until })?;
    timer::rearm(m);
    Ok(waiter)
}

/// The client of the running command waits beside the position of its token, no longer than that lasts.
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

/// The cycle of tokens and owners that waiting for this would close.
fn cycle(
    m: &Module,
    ctx: Ctx<'_>,
    name: &Name<'_>,
    request: &LockRequestRef<'_>,
    rank: Rank,
) -> Option<Vec<Token>> {
    let (now, db) = (clock::now(), ctx.db());
    let most_holders = m.with(|s| s.config.max_holders);
    let mut search = Search::new(request, name, rank, now).with_at_most(most_holders);
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

/// Sends a waiter that has left the queue its one answer.
pub fn answer(m: &Module, waiter: Waiter, outcome: Outcome, now: Instant) {
    // Of those beside a position the wait is counted with that.
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

/// Tells a connection, which has left its queue, why it cannot be granted there.
pub fn refuse(m: &Module, waiter: WaiterId, why: &str) {
    if let Some(handle) = m.with(|s| s.connections.unblock(waiter)) {
        unblock(m, handle, Some(Answer::new(Reply::Error(why.to_owned()))));
    }
}

fn unblock(m: &Module, handle: Handle, answer: Option<Answer>) {
    ffi::unblock::<Module>(m.ctx(), handle, answer.map(Box::new));
}

/// An answer has done its work, or found nobody to work on.
pub fn came_back(m: &Module, answer: Answer) {
    let Some(waiter) = answer.grant else { return };
    let undelivered = m.with(|s| {
        let Delivery { name, token, .. } = s.waiting.deliveries.came_back(waiter)?;
        s.background.note(Task::Undelivered(name, token, waiter));
        Some(())
    });
    if undelivered.is_some() {
        timer::rearm(m);
    }
}

/// A connection is gone. If it was told of a grant in this turn of the event loop, then nobody has read it,
/// but where the server closed it only after all was written. Whether anything was noted.
pub fn unread(m: &Module, ctx: Ctx<'_>, client: ClientId) -> bool {
    let Some((waiter, delivery)) = m.with(|s| s.waiting.deliveries.gone(client)) else { return false };
    if ctx.closes_after_reply(client.0) {
        m.with(|s| s.waiting.deliveries.delivered(waiter, &delivery));
        return false;
    }
    // One that is evicted for its memory is so after all is written, too. The count goes up behind its end.
    let evicted = evicted_clients(ctx);
    m.with(|s| s.background.note(Task::Unread { delivery, waiter, evicted }));
    true
}

/// How many connections the server has closed for their memory.
pub fn evicted_clients(ctx: Ctx<'_>) -> Option<i64> {
    ctx.info_number("stats", "evicted_clients")
}

/// The client of a waiter is gone, or was answered by the server: it leaves the queue.
pub fn gone(m: &Module, handle: Handle) {
    let left = m.with(|s| {
        let id = s.connections.waiter(handle)?;
        s.connections.unblock(id);
        let waiter = s.waiting.leave(id)?;
        s.stats.gone += 1;
        s.background.note(Task::Serve(waiter.name));
        Some(())
    });
    // Answered already, the handle was used up by that.
    if left.is_some() {
        unblock(m, handle, None);
        timer::rearm(m);
    }
}
