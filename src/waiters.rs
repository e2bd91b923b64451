//! Blocked clients: how the core's answer reaches a connection, or comes back when there is none any more.

use dlock_core::deadlock::{Found, Search};
use dlock_core::{
    ClientId, Fence, Instant, Limits, LockRequest, LockRequestRef, Name, Newcomer, Outcome, Rank, Token,
    Wait, Waiter, WaiterId,
};
use dlock_protocol::error::Error;

use crate::deliveries::Delivery;
use crate::ffi::{Ctx, Handle, Key, Waited, blocked, notices};
use crate::state::{Task, with};
use crate::{clock, deadlines};

/// What a waiter is told.
pub struct Answer {
    reply: Reply,
    /// Whose grant it is, until it is in the hands of its connection: see [`crate::deliveries`].
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

    pub fn deliver(&mut self, ctx: Ctx<'_>, waited: Waited) {
        match &self.reply {
            Reply::Fence(fence) => {
                if let Some(refused) = waited.refused(ctx) {
                    // The grant comes back by [`answered`].
                    return ctx.reply_error(&refused);
                }
                if let Some(waiter) = self.grant.take() {
                    notices::watch_turns(true);
                    with(|s| s.deliveries.handed_over(waiter));
                }
                ctx.reply_int(fence.get() as i64);
            }
            Reply::Null => ctx.reply_null(),
            Reply::Error(text) => ctx.reply_error(text),
        }
    }
}

/// The client of the running command joins the line; its reply comes later. The error is the reply where it may not.
pub fn wait(
    ctx: Ctx<'_>,
    name: &Name<'_>,
    request: LockRequestRef<'_>,
    rank: Rank,
    client: ClientId,
    wait: Wait,
) -> Result<(), String> {
    let (limits, room) = with(|s| (s.config.limits, s.waiting.has_room(name, s.config.limits)));
    if !room {
        with(|s| s.stats.queue_refusals += 1);
        return Err(queue_full(limits).into());
    }
    if let Some(cycle) = cycle(ctx, name, &request, rank) {
        with(|s| s.stats.deadlocks += 1);
        return Err(Error::Deadlock(cycle).into());
    }
    let since = clock::now();
    let handle = blocked::block(ctx).ok_or(Error::CannotWait)?;
    let newcomer = Newcomer { name: name.clone(), rank, request, client, since, until: wait.until(since) };
    let joined = with(|s| {
        let id = s.waiting.join(newcomer)?;
        s.blocked.insert(id, handle);
        s.by_handle.insert(handle, id);
        Some(())
    });
    match joined {
        Some(()) => deadlines::rearm(),
        None => {
            let reply = Reply::Error(queue_full(limits).into());
            blocked::unblock(handle, Some(Box::new(Answer::new(reply))));
        }
    }
    Ok(())
}

fn queue_full(limits: Limits) -> Error {
    Error::QueueFull { on_the_server: limits.on_the_server, on_a_key: limits.on_a_key }
}

/// The cycle of tokens that waiting for this would close.
fn cycle(ctx: Ctx<'_>, name: &Name<'_>, request: &LockRequestRef<'_>, rank: Rank) -> Option<Vec<Token>> {
    let (now, db) = (clock::now(), ctx.db());
    let most_holders = with(|s| s.config.max_holders);
    let mut search =
        Search::new(request.token.to_owned(), name, rank, request.mode, now).with_at_most(most_holders);
    loop {
        match with(|s| search.run(&s.waiting)) {
            Found::Nothing => return None,
            Found::Cycle(cycle) => return Some(cycle),
            Found::Ask(asked) => {
                ctx.select_db(asked.db);
                let raw = ctx.string(&asked.key);
                let mut key = Key::open_for_read(ctx, raw.raw()).ok();
                let lock = key.as_mut().and_then(|key| key.value()).map(|value| &value.lock);
                with(|s| search.learn(&asked, lock, &s.waiting));
                drop(key);
                ctx.select_db(db);
            }
        }
    }
}

/// Sends a waiter that has left the line its one answer.
pub fn answer(waiter: Waiter, outcome: Outcome, now: Instant) {
    let handle = with(|s| {
        s.stats.answered(&outcome, now.millis_since(waiter.since));
        s.unblock(waiter.id)
    });
    let Some(handle) = handle else { return };
    let answer = match outcome {
        Outcome::Granted(fence, _) => {
            let Waiter { id, name, request: LockRequest { token, .. }, client, .. } = waiter;
            with(|s| s.deliveries.sent(id, Delivery { name, token, client }));
            Answer { reply: Reply::Fence(fence), grant: Some(id) }
        }
        Outcome::TimedOut | Outcome::Cancelled => Answer::new(Reply::Null),
        Outcome::Refused(refusal) => Answer::new(Reply::Error(Error::Refused(refusal).into())),
    };
    blocked::unblock(handle, Some(Box::new(answer)));
}

/// An answer has done its work, or found nobody to work on.
pub fn answered(answer: Answer) {
    let Some(waiter) = answer.grant else { return };
    let noted = with(|s| {
        let Delivery { name, token, .. } = s.deliveries.came_back(waiter)?;
        s.pending.push_back(Task::Undelivered(name, token, waiter));
        Some(())
    });
    if noted.is_some() {
        deadlines::rearm();
    }
}

/// A connection is gone. If it was told of a grant in this turn of the event loop, then nobody has read it, but where
/// the server closed it only after all was written. Whether anything was noted.
pub fn unread(ctx: Ctx<'_>, client: ClientId) -> bool {
    let Some((waiter, delivery)) = with(|s| s.deliveries.gone(client)) else { return false };
    if ctx.closes_after_reply(client.0) {
        return false;
    }
    // One that is evicted for its memory is so after all is written, too. The count goes up behind its end.
    let evicted = evicted_clients(ctx);
    with(|s| s.pending.push_back(Task::Unread { delivery, waiter, evicted }));
    true
}

/// How many connections the server has closed for their memory.
pub fn evicted_clients(ctx: Ctx<'_>) -> Option<i64> {
    ctx.info_number("stats", "evicted_clients")
}

/// The time of a waiter is over while its lock may not be touched.
pub fn time_out(id: WaiterId, now: Instant) {
    let waiter = with(|s| {
        let waiter = s.waiting.leave(id)?;
        // Whoever leaves may have stood in the way of those behind.
        if s.waiting.head(&waiter.name).is_some_and(|head| (head.rank, head.id) > (waiter.rank, id)) {
            s.pending.push_back(Task::Serve(waiter.name.clone()));
        }
        Some(waiter)
    });
    if let Some(waiter) = waiter {
        answer(waiter, Outcome::TimedOut, now);
    }
}

/// The client of a waiter is gone, or was answered by the server: it leaves the line.
pub fn gone(handle: Handle) {
    let left = with(|s| {
        let id = *s.by_handle.get(&handle)?;
        s.unblock(id);
        let waiter = s.waiting.leave(id)?;
        s.stats.left_the_line();
        s.pending.push_back(Task::Serve(waiter.name));
        Some(())
    });
    // Answered already, the handle was used up by that.
    if left.is_some() {
        blocked::unblock(handle, None);
        deadlines::rearm();
    }
}

/// No lock can be granted there any more: everybody in the line is told why, but for those whose time is over.
pub fn fail_all(name: &Name<'_>, why: &str) {
    let now = clock::now();
    while let Some(waiter) = with(|s| {
        let id = s.waiting.head(name)?.id;
        s.waiting.leave(id)
    }) {
        if waiter.until.is_some_and(|until| until.passed(now)) {
            answer(waiter, Outcome::TimedOut, now);
        } else if let Some(handle) = with(|s| s.unblock(waiter.id)) {
            let reply = Reply::Error(why.to_owned());
            blocked::unblock(handle, Some(Box::new(Answer::new(reply))));
        }
    }
}
