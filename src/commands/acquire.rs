//! ACQUIRE: granted at once, queued, blocked, or refused.

use dlock_core::plain::Plain;
use dlock_core::{
    Acquired, Bytes, CannotJoin, ClientId, Fence, Instant, LockRequestRef, Name, NewPosition, NewWait,
    Queued, Ttl,
};
use dlock_protocol::NotifyRef;
use dlock_protocol::command::{self, Queue};
use dlock_protocol::error::Error;

use super::{Done, comes_from_a_log, misuse, replay_plain, reply_with};
use crate::background;
use crate::effects::Target;
use crate::ffi::commands::Args;
use crate::ffi::{Ctx, Flags, user};
use crate::module::Module;
use crate::waiters::{self, Place};

pub fn acquire<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    // Only a replica, or a server that loads its append only file, reads a log.
    let (may_read_log, bounds) = m.with(|s| (s.followers.server_may_read, s.config.bounds));
    if may_read_log && comes_from_a_log(ctx) {
        return replayed(m, ctx, args);
    }
    let parsed = command::Acquire::parse(args.bytes, bounds.longest_lease(), bounds.max_ttl);
    let parsed = parsed.as_ref().map_err(misuse)?;
    if parsed.queue.is_some() || parsed.request.ephemeral {
        return acquire_with_options(m, ctx, args, parsed);
    }
    let client = ClientId(ctx.client_id());
    let mut target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
    target.plain = plain(parsed, args.bytes);
    let held_by_string = target.held_by_string;
    match target.operate(|turn| (turn.acquire(&parsed.request, client), turn.now)) {
        (Acquired::Held(fence), _) => reply_with(ctx, Some(fence)),
        (acquired, now) => {
            check_string_later(m, ctx, parsed.key, held_by_string, now);
            answer(m, ctx, parsed, acquired, now, None)
        }
    }
}

/// Applies an ACQUIRE from a log: the replication stream of the master, or the append only file.
#[inline(never)]
fn replayed<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Acquire::parse(args.bytes, Ttl::MAX, Ttl::MAX).ok();
    replay_plain(m, ctx, args, parsed.and_then(|parsed| plain(&parsed, args.bytes)))
}

/// Runs an ACQUIRE with QUEUE or EPHEMERAL.
#[inline(never)]
fn acquire_with_options<'a>(
    m: &'a Module,
    ctx: Ctx<'a>,
    args: &Args<'a>,
    parsed: &command::Acquire<'a>,
) -> Done {
    let (request, client) = (&parsed.request, ClientId(ctx.client_id()));
    if request.ephemeral {
        can_be_ephemeral(ctx, client)?;
    }
    let position = parsed.queue.map(|queue| position(m, ctx, parsed.key, client, queue)).transpose()?;
    let target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
    let held_by_string = target.held_by_string;
    let (acquired, now) = target.operate(|turn| {
        let acquired = match &position {
            Some(position) => turn.queue(request, position),
            None => turn.acquire(request, client),
        };
        (acquired, turn.now)
    });
    check_string_later(m, ctx, parsed.key, held_by_string, now);
    answer(m, ctx, parsed, acquired, now, position)
}

/// Schedules a check whether a string that counts as held (`dlock.honour-strings`) is gone. If no client
/// waits, the check does nothing.
fn check_string_later(m: &Module, ctx: Ctx<'_>, key: &[u8], held_by_string: bool, now: Instant) {
    if held_by_string {
        background::check_string_later(m, &Name::new(ctx.db(), key), now);
    }
}

/// Replies to an ACQUIRE that was decided at `now`, or begins a wait.
#[inline(never)]
fn answer<'a>(
    m: &'a Module,
    ctx: Ctx<'a>,
    parsed: &command::Acquire<'a>,
    acquired: Acquired,
    now: Instant,
    position: Option<Box<NewPosition>>,
) -> Done {
    let (request, client) = (parsed.request, ClientId(ctx.client_id()));
    let name = Name::new(ctx.db(), parsed.key);
    // Where blocking is denied (MULTI, scripts), an ACQUIRE with BLOCK does not wait.
    let block = parsed.block.filter(|_| !ctx.flags().contains(Flags::DENY_BLOCKING));
    let place = match acquired {
        Acquired::Held(fence) => return reply_with(ctx, Some(fence)),
        Acquired::Refused(refusal) => return Err(Error::Refused(refusal).into()),
        Acquired::Grace => {
            m.with(|s| s.stats.grace_refusals += 1);
            return Err(Error::Grace(m.with(|s| s.grace_left(now))).into());
        }
        Acquired::Deadlock(cycle) => {
            return Err(waiters::refused(m, ctx, CannotJoin::Deadlock(cycle), &name, &request));
        }
        Acquired::NotNow(_) if position.is_none() && block.is_none() => {
            m.with(|s| s.stats.denials += 1);
            return reply_with(ctx, None::<Fence>);
        }
        Acquired::NotNow(rank) => Place::At(rank),
        Acquired::Kept(kept) => Place::Kept(kept),
    };
    check_master(ctx.flags())?;
    let position = position.map(|position| *position);
    let wait = NewWait { name, request, client, position, block, since: now };
    match waiters::wait(m, ctx, place, wait)? {
        true => Ok(()),
        false => reply_with(ctx, None::<Fence>),
    }
}

/// Returns the command to log verbatim instead of an effect (the changed holds): only an ACQUIRE without
/// options and with an explicit ttl.
fn plain<'a>(parsed: &command::Acquire<'a>, args: &[&[u8]]) -> Option<Plain<'a>> {
    let LockRequestRef { token, ttl, .. } = parsed.request;
    command::Acquire::is_plain(args).then_some(Plain::Acquire(token, ttl))
}

/// Returns the queue position that is asked for, after checking the requirements of QUEUE except for room in
/// the queue. Boxed, because it is large and most ACQUIREs have none.
fn position(
    m: &Module,
    ctx: Ctx<'_>,
    key: &[u8],
    client: ClientId,
    queue: Queue<'_>,
) -> Result<Box<NewPosition>, String> {
    check_master(ctx.flags())?;
    // Before the module grants the lock to a queued position, it checks the rights of the position's user. If
    // DLOCK.GUARD or DLOCK.FENCED runs this ACQUIRE on Redis 7.0, the module cannot read that user.
    if m.with(|s| s.guarding) && !ctx.calls_run_as_user() {
        return Err(Error::CannotGuard.into());
    }
    if queue.notify.is_some_and(NotifyRef::is_sharded) && !ctx.flags().contains(Flags::CLUSTER) {
        return Err(Error::NoCluster.into());
    }
    let user = ctx.user_name();
    let channel = queue.notify.map(NotifyRef::channel);
    if let (Some(user), Some(channel)) = (&user, channel)
        && !user::may_publish(user, channel)
    {
        ctx.log_denied_channel(user, channel);
        return Err(Error::NoChannel.into());
    }
    if let Some(sharded) = queue.notify.filter(|notify| notify.is_sharded())
        && ctx.slot_of(sharded.channel()) != ctx.slot_of(key)
    {
        return Err(Error::OtherSlot.into());
    }
    let user = user.map(|name| Bytes::from(&name[..]));
    let queued = Queued::new(client, user, queue.notify.map(NotifyRef::to_owned));
    Ok(NewPosition { queued, ms: queue.ms }.into())
}

/// Checks that an EPHEMERAL hold can be bound to this client. Scripts, guards and calls of other modules run
/// on an internal client. Neither Redis nor Valkey tells the module for which connection that client works.
fn can_be_ephemeral(ctx: Ctx<'_>, ClientId(client): ClientId) -> Done {
    if !ctx.is_connected(client) {
        return Err(Error::NoConnection.into());
    }
    check_master(ctx.flags())
}

/// Refuses to wait, or to bind a hold, on a replica. A replica, even a writable one, ends no wait and no hold
/// by itself.
fn check_master(flags: Flags) -> Done {
    if flags.contains(Flags::MASTER) { Ok(()) } else { Err(Error::Replica.into()) }
}
