//! Blocked clients: how the core's answer reaches a connection, or comes back when there is none any more.

use dlock_core::deadlock::{Found, Search};
use dlock_core::{
    ClientId, Fence, Instant, Name, Newcomer, Outcome, Rank, Request, Token, Wait, Waiter, WaiterId,
};

use crate::ffi::{Ctx, Handle, Key, blocked};
use crate::state::{Task, with};
use crate::{clock, deadlines, words};

/// What a waiter is told.
pub struct Answer {
    reply: Reply,
    delivered: bool,
    grant: Option<(Name<'static>, Token, WaiterId)>,
}

enum Reply {
    Fence(Fence),
    Null,
    Error(String),
}

impl Answer {
    pub fn deliver(&mut self, ctx: Ctx<'_>) {
        match &self.reply {
            Reply::Fence(fence) => ctx.reply_int(fence.get() as i64),
            Reply::Null => ctx.reply_null(),
            Reply::Error(text) => ctx.reply_error(text),
        }
        self.delivered = true;
    }
}

/// The client of the running command joins the line; its reply comes later. The error is the reply where it may not.
pub fn wait(
    ctx: Ctx<'_>,
    name: &Name<'_>,
    request: Request<'_>,
    rank: Rank,
    client: ClientId,
    wait: Wait,
) -> Result<(), String> {
    let (limits, room) = with(|s| (s.config.limits, s.waiting.has_room(name, s.config.limits)));
    if !room {
        with(|s| s.stats.queue_refusals += 1);
        return Err(words::queue_full(limits));
    }
    if let Some(circle) = circle(ctx, name, &request, rank) {
        with(|s| s.stats.deadlocks += 1);
        return Err(words::deadlock(&circle));
    }
    let since = clock::now();
    let handle = blocked::block(ctx).ok_or(words::CANNOT_WAIT)?;
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
            let reply = Reply::Error(words::queue_full(limits));
            blocked::unblock(handle, Some(Box::new(Answer { reply, delivered: false, grant: None })));
        }
    }
    Ok(())
}

/// The circle of tokens that waiting for this would close.
fn circle(ctx: Ctx<'_>, name: &Name<'_>, request: &Request<'_>, rank: Rank) -> Option<Vec<Token>> {
    let (now, db) = (clock::now(), ctx.db());
    let mut search = Search::new(Token::new(request.token)?, name, rank, request.mode);
    loop {
        match with(|s| search.run(&s.waiting)) {
            Found::Nothing => return None,
            Found::Circle(circle) => return Some(circle),
            Found::Ask(asked) => {
                ctx.select_db(asked.db);
                let raw = ctx.string(&asked.key);
                let mut key = Key::open_for_read(ctx, raw.raw()).ok();
                let lock = key.as_mut().and_then(|key| key.value()).map(|value| &value.lock);
                search.learn(asked, lock, now);
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
    let (reply, grant) = match outcome {
        Outcome::Granted(fence, _) => (Reply::Fence(fence), Some((waiter.name, waiter.token, waiter.id))),
        Outcome::TimedOut | Outcome::Cancelled => (Reply::Null, None),
        Outcome::Refused(refusal) => (Reply::Error(words::refusal(refusal)), None),
    };
    if let Some(handle) = handle {
        blocked::unblock(handle, Some(Box::new(Answer { reply, delivered: false, grant })));
    }
}

/// An answer has done its work, or found nobody to work on.
pub fn answered(answer: Answer) {
    if answer.delivered {
        return;
    }
    if let Some((name, token, id)) = answer.grant {
        with(|s| s.pending.push_back(Task::Undelivered(name, token, id)));
        deadlines::rearm();
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
            blocked::unblock(handle, Some(Box::new(Answer { reply, delivered: false, grant: None })));
        }
    }
}
