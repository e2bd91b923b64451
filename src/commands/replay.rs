//! Commands that this server reads from a log, its master's or the append only file: effects, and plain
//! commands that were logged verbatim. Replaying makes no decisions: see [`dlock_core::codec::Plain`].

use dlock_core::codec::{self, Origin, Plain, Reader};
use dlock_protocol::error::Error;

use super::open_key::{Done, open};
use crate::clock;
use crate::effects;
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Flags};
use crate::module::{LogPosition, Module};

/// Returns whether the running command comes from a log.
pub fn is_read(m: &Module, ctx: Ctx<'_>) -> bool {
    m.with(|s| s.followers.may_read) && comes_from_a_log(ctx)
}

/// Like [`is_read`], if this server may read a log.
pub fn comes_from_a_log(ctx: Ctx<'_>) -> bool {
    ctx.flags().intersects(Flags::REPLICATED | Flags::LOADING)
}

/// The command that carries an effect.
pub struct Effect;

impl Command for Effect {
    type Module = Module;

    fn run<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        if !is_read(m, ctx) {
            return Err(Error::Effect.into());
        }
        apply(m, ctx, args, |reader| {
            let &[_, change] = args.bytes else { return Err(Error::Effect.into()) };
            // After an effect that cannot be read, the position in the log is unknown.
            m.with(|s| s.replication_position = None);
            let effect = reader.effect(change).map_err(|bad| {
                m.with(|s| s.fences.raise(bad.last.unwrap_or(0)));
                format!("ERR {}", bad.why)
            })?;
            let leads_to = Some(effect.known());
            m.with(|s| s.replication_position = leads_to);
            Ok((effect, LogPosition { builds_on: None, leads_to }))
        })
    }
}

/// Applies a plain command of a log. `None` means that the command is not plain, which is an error there.
#[inline(never)]
pub fn plain<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>, plain: Option<Plain<'a>>) -> Done {
    apply(m, ctx, args, |reader| {
        let builds_on = m.with(|s| s.replication_position).filter(|_| plain != Some(Plain::Release));
        let effect = m.with(|s| {
            let effect = plain.and_then(|plain| reader.plain(plain, &mut s.replication_position));
            // After a command that cannot be read, the position in the log is unknown.
            effect.is_none().then(|| s.replication_position = None);
            effect.ok_or(Error::Effect)
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
        let &[key, ..] = args.bytes else { return Err(Error::Effect.into()) };
        effects::apply(open(m, ctx, args, key)?, effect, &position)
    });
    done.inspect_err(|_| m.with(|s| s.stats.effects_skipped += 1))?;
    ctx.reply_simple(c"OK");
    Ok(())
}
