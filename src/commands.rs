//! The commands, each a short function: parse, open the key, let the core decide, reply. [`crate::effects`]
//! carries out the decision. The folder `commands` has the longer ones; [`table`] lists all of them.

use dlock_core::codec::{self, Origin, Reader};
use dlock_core::decide::Confirmed;
use dlock_core::plain::Plain;
use dlock_core::{Fence, Lock};
use dlock_protocol::command;
use dlock_protocol::error::{Error, Misuse};
use dlock_protocol::reply::{self, Reply, Sink};
use rand::TryRng;

use crate::effects::{self, Target};
use crate::ffi::commands::Args;
use crate::ffi::{Ctx, Flags};
use crate::followers::LogPosition;
use crate::module::{Key, Module};
use crate::{clock, fence_mark};

mod acquire;
mod guarded;
mod listing;
mod read_commands;
pub mod table;

/// Result of a command. The error is the reply.
type Done = Result<(), String>;

/// Returns the reply to arguments that cannot be parsed. Takes a reference because callers borrow the
/// result of the parser: `parsed.as_ref().map_err(misuse)`.
#[cold]
fn misuse(why: &Misuse) -> String {
    why.to_string()
}

#[inline(always)]
fn reply_with(mut ctx: Ctx<'_>, reply: impl Reply) -> Done {
    reply.write(&mut ctx);
    Ok(())
}

/// Reads the lock of the command's key without changing it. Works on replicas.
fn read_lock<R>(ctx: Ctx<'_>, args: &Args<'_>, read: impl FnOnce(&Lock) -> R) -> Result<R, String> {
    let key = Key::open_for_read(ctx, args.key)?;
    Ok(read(key.value().unwrap_or(&Lock::default())))
}

pub fn release<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let (may_read_log, longest_delay) = m.with(|s| (s.followers.server_may_read, s.config.bounds.max_ttl));
    if may_read_log && comes_from_a_log(ctx) {
        return replay_plain(m, ctx, args, Some(Plain::Release));
    }
    let parsed = command::Release::parse(args.bytes, longest_delay);
    let parsed = parsed.as_ref().map_err(misuse)?;
    // A string that counts as held (`dlock.honour-strings`) is no error here: the token may wait for its
    // removal, and RELEASE ends that wait.
    let mut target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
    target.plain = Some(Plain::Release);
    let released = target.operate(|turn| turn.release(parsed.token, parsed.count, parsed.delay));
    reply_with(ctx, u64::from(released))
}

pub fn extend<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Extend::parse(args.bytes, m.with(|s| s.config.bounds.longest_lease()))?;
    let extended =
        Target::open(m, ctx, args.key, parsed.key)?.operate(|turn| turn.extend(parsed.token, parsed.ttl));
    reply_with(ctx, extended)
}

pub fn confirm<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let bounds = m.with(|s| s.config.bounds);
    let (longest, skew) = (bounds.longest_lease(), bounds.skew());
    let parsed = command::Confirm::parse(args.bytes, longest)?;
    let target = Target::open(m, ctx, args.key, parsed.key)?;
    match target.operate(|turn| turn.confirm(parsed.token, parsed.fence, parsed.ttl, skew)) {
        Confirmed::Fence(fence) => {
            fence_mark::raised(m, ctx);
            reply_with(ctx, Some(fence))
        }
        Confirmed::NotHeld => reply_with(ctx, None::<Fence>),
        Confirmed::Ahead(ms) => Err(Error::FenceAhead { ms, bound: skew.millis() }.into()),
    }
}

pub fn cancel<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Cancel::parse(args.bytes)?;
    let target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
    let cancelled = target.operate(|turn| turn.cancel(parsed.waiters));
    reply_with(ctx, cancelled as u64)
}

pub fn break_holds<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let key = command::only_key(args.bytes)?;
    let broken = Target::open(m, ctx, args.key, key)?.operate(|turn| turn.break_all());
    reply_with(ctx, broken as u64)
}

pub fn token<'a>(_: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    command::no_arguments(args.bytes)?;
    let mut random = [0; 20];
    let drawn = rand::rngs::SysRng.try_fill_bytes(&mut random);
    drawn.map_err(|why| Error::NoRandomness(why.to_string()))?;
    reply_with(ctx, dlock_core::Token::of_random(random))
}

pub fn help<'a>(_: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    command::no_arguments(args.bytes)?;
    reply_with(ctx, reply::Help::of_all_commands())
}

/// A write that does nothing. On Redis 7.0 the module runs it to learn whether the server accepts writes.
pub fn write_probe<'a>(_: &'a Module, mut ctx: Ctx<'a>, _: &Args<'a>) -> Done {
    ctx.null();
    Ok(())
}

// Commands from a log: the replication stream of the master, or the append only file. A log contains effects,
// and plain commands that were logged verbatim. Replaying makes no decisions: see [`dlock_core::plain`].

/// Returns whether the running command comes from a log. `server_may_read` is false while this server reads
/// no log.
fn is_replayed(m: &Module, ctx: Ctx<'_>) -> bool {
    m.with(|s| s.followers.server_may_read) && comes_from_a_log(ctx)
}

/// Like [`is_replayed`], for a caller that has checked `server_may_read`.
fn comes_from_a_log(ctx: Ctx<'_>) -> bool {
    ctx.flags().intersects(Flags::REPLICATED | Flags::LOADING)
}

/// The command that carries an effect.
pub fn effect<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    if !is_replayed(m, ctx) {
        return Err(Error::EffectFromClient.into());
    }
    apply(m, ctx, args, |reader| {
        let &[_, change] = args.bytes else { return Err(Error::EffectFromClient.into()) };
        // After an effect that cannot be read, the position in the log is unknown.
        m.with(|s| s.replication_position = None);
        let effect = reader.effect(change).map_err(|bad| {
            // If a newer module wrote the effect, its greatest fence can be read, and nothing else.
            m.with(|s| s.fences.raise(bad.last.unwrap_or(0)));
            format!("ERR {}", bad.why)
        })?;
        let leads_to = Some(effect.log_state());
        m.with(|s| s.replication_position = leads_to);
        Ok((effect, LogPosition { builds_on: None, leads_to }))
    })
}

/// Applies a plain command of a log. `None` means that the command is not plain, which is an error in a log.
#[inline(never)]
fn replay_plain<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>, plain: Option<Plain<'a>>) -> Done {
    apply(m, ctx, args, |reader| {
        // A plain ACQUIRE contains no fence: the fence follows from the position in the log. A plain RELEASE
        // leaves an empty lock, whatever the position is.
        let builds_on = m.with(|s| s.replication_position).filter(|_| plain != Some(Plain::Release));
        let effect = m.with(|s| {
            let effect = plain.and_then(|plain| reader.plain(plain, &mut s.replication_position));
            // After a command that cannot be read, the position in the log is unknown.
            s.replication_position = s.replication_position.filter(|_| effect.is_some());
            effect.ok_or(Error::EffectFromClient)
        })?;
        let leads_to = builds_on.and(m.with(|s| s.replication_position));
        Ok((effect, LogPosition { builds_on, leads_to }))
    })
}

fn apply<'a>(
    m: &'a Module,
    ctx: Ctx<'a>,
    args: &Args<'a>,
    read: impl FnOnce(Reader) -> Result<(codec::Effect, LogPosition), String>,
) -> Done {
    let origin = if ctx.flags().contains(Flags::REPLICATED) { Origin::Live } else { Origin::Stored };
    let reader = Reader { now: clock::now(), anchor: clock::anchor(), origin };
    let done = read(reader).and_then(|(effect, position)| {
        let &[key, ..] = args.bytes else { return Err(Error::EffectFromClient.into()) };
        effects::apply(Target::open(m, ctx, args.key, key)?, effect, &position)
    });
    done.inspect_err(|_| m.with(|s| s.stats.effects_skipped += 1))?;
    ctx.reply_simple(c"OK");
    Ok(())
}
