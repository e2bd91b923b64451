//! The read commands: HOLDS, PTTL, INSPECT, WAITERS.

use std::borrow::Cow;

use dlock_core::{ClientId, Ephemeral, Hold, Instant, Mode, Name, Waiter};
use dlock_protocol::command;
use dlock_protocol::error::shortened;
use dlock_protocol::reply::{Holder, Inspection, Left, Waiting};

use super::{Done, read_lock, reply_with};
use crate::ffi::Ctx;
use crate::ffi::commands::Args;
use crate::module::Module;
use crate::{clock, effects};

pub(super) type ShowToken = fn(&[u8]) -> Cow<'_, [u8]>;

/// Returns how tokens are shown: whole to a user that may write the key, shortened to any other and to an
/// unknown user.
fn show_token(m: &Module, ctx: Ctx<'_>, args: &Args<'_>) -> ShowToken {
    shown_to(!user_is_unknown(m, ctx) && ctx.user().may_write(args.key))
}

/// Returns how tokens are shown to a user that may write the key, or may not.
pub(super) fn shown_to(may_write: bool) -> ShowToken {
    if may_write { |token| token.into() } else { shortened }
}

/// On Redis 7.0, the user of a command inside GUARD or FENCED is unknown.
pub(super) fn user_is_unknown(m: &Module, ctx: Ctx<'_>) -> bool {
    m.with(|s| s.guarding) && !ctx.calls_run_as_user()
}

pub fn holds<'a>(_: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Holds::parse(args.bytes)?;
    let now = clock::now();
    let count =
        read_lock(ctx, args, |lock| lock.at(now).hold_of(parsed.token.as_bytes()).map_or(0, Hold::count))?;
    reply_with(ctx, u64::from(count))
}

pub fn pttl<'a>(_: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Pttl::parse(args.bytes)?;
    let now = clock::now();
    let left = read_lock(ctx, args, |lock| match parsed.token {
        Some(token) => lock.at(now).hold_of(token.as_bytes()).map(|hold| hold.deadline().left(now)),
        None => lock.at(now).longest_left(),
    })?;
    reply_with(ctx, Left(left))
}

pub fn inspect<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Inspect::parse(args.bytes)?;
    let max_shown = command::Inspect::shown(parsed.count);
    let name = Name::new(ctx.db(), parsed.key);
    let waiters = m.with(|s| s.waiting.len_of(&name)) as u64;
    let (now, show) = (clock::now(), show_token(m, ctx, args));
    // With `dlock.honour-strings`, a string counts as another library's lock.
    if effects::held_by_string(m, ctx, args.key) {
        let mode = Inspection::STRING.as_bytes().into();
        return reply_with(ctx, Some(Inspection { mode, waiters, ..Inspection::default() }));
    }
    read_lock(ctx, args, |lock| {
        let view = lock.at(now);
        let (holders_count, delay) = (view.holders() as u64, view.delay_left());
        let inspection = (holders_count > 0 || waiters > 0 || delay > 0).then(|| Inspection {
            mode: view.mode().map_or(Inspection::FREE, Mode::word).as_bytes().into(),
            permits: view.mode().map_or(0, Mode::permits).into(),
            fence: view.fence().map_or(0, |fence| fence.get()),
            holders: view.holds().take(max_shown).map(|hold| holder(ctx, hold, now, show)).collect(),
            holders_count,
            waiters,
            delay,
        });
        reply_with(ctx, inspection)
    })?
}

fn holder<'h>(ctx: Ctx<'_>, hold: &'h Hold, now: Instant, show: ShowToken) -> Holder<'h> {
    let connected = hold.client().and_then(|ClientId(id)| ctx.address(id).map(|address| (id, address)));
    let (client, addr) = connected.unwrap_or_default();
    Holder {
        token: show(hold.token().as_bytes()),
        count: hold.count().into(),
        fence: hold.fence().get(),
        pttl: hold.deadline().left(now),
        held: hold.held_millis(now),
        label: hold.label().into(),
        ephemeral: hold.ephemeral() != Ephemeral::No,
        client,
        addr: addr.into_bytes().into(),
    }
}

pub fn waiters<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Waiters::parse(args.bytes)?;
    // A key of another type is an error, except a string that counts as another library's lock.
    if !effects::held_by_string(m, ctx, args.key) {
        read_lock(ctx, args, |_| ())?;
    }
    let (name, now) = (Name::new(ctx.db(), parsed.key), clock::now());
    let show = show_token(m, ctx, args);
    let max_shown = command::Inspect::shown(parsed.count);
    // A copy, because replying calls the server, which must not happen while the state is borrowed.
    let queue: Vec<Waiter> = m.with(|s| s.waiting.queue(&name).take(max_shown).cloned().collect());
    let to_reply = |waiter| waiting(waiter, now, show);
    reply_with(ctx, queue.iter().map(to_reply).collect::<Vec<_>>())
}

fn waiting(waiter: &Waiter, now: Instant, show: ShowToken) -> Waiting<'_> {
    Waiting {
        client: waiter.client().map(|ClientId(id)| id),
        token: show(waiter.request.token.as_bytes()),
        mode: waiter.request.mode.word().as_bytes().into(),
        waited: now.millis_since(waiter.since),
        left: waiter.until.map(|until| until.left(now)),
        label: waiter.request.label.as_bytes().into(),
    }
}
