//! What comes from a master, or from the append only file: effects, and the plain commands that are logged as
//! they came. Nothing is decided here: see [`dlock_core::codec::Plain`].

use dlock_core::admission;
use dlock_core::codec::{Origin, Plain, Reader};
use dlock_protocol::error::Error;

use super::opening::{Done, open};
use crate::clock;
use crate::effects;
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Flags};
use crate::module::{Module, Place};

/// Whether a command is one of a log that is read here.
pub fn is_read(m: &Module, ctx: Ctx<'_>) -> bool {
    m.with(|s| s.followers.may_read) && ctx.flags().intersects(Flags::REPLICATED | Flags::LOADING)
}

/// The effect that masters send.
pub struct Effect;

impl Command for Effect {
    type Module = Module;

    fn run<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        if !is_read(m, ctx) {
            return Err(Error::Effect.into());
        }
        take_in(m, ctx, args, |reader| {
            let &[_, change] = args.bytes else { return Err(Error::Effect.into()) };
            // What follows one that cannot be read builds on it.
            m.with(|s| s.read = None);
            let effect = reader.effect(change).map_err(|bad| {
                m.with(|s| s.fences.raise(bad.last.unwrap_or(0)));
                format!("ERR {}", bad.why)
            })?;
            let leads_to = Some(effect.known());
            m.with(|s| s.read = leads_to);
            Ok((effect, Place { builds_on: None, leads_to }))
        })
    }
}

/// A plain command of a log; None for one that is none.
#[inline(never)]
pub fn plain<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>, plain: Option<Plain<'a>>) -> Done {
    take_in(m, ctx, args, |reader| {
        let builds_on = m.with(|s| s.read).filter(|_| plain != Some(Plain::Release));
        let effect = m.with(|s| {
            let effect = plain.and_then(|plain| reader.plain(plain, &mut s.read));
            // What follows one that cannot be read builds on it.
            effect.is_none().then(|| s.read = None);
            effect.ok_or(Error::Effect)
        })?;
        let leads_to = builds_on.and(m.with(|s| s.read));
        Ok((effect, Place { builds_on, leads_to }))
    })
}

fn take_in<'a>(
    m: &'a Module,
    ctx: Ctx<'a>,
    args: &Args<'a>,
    read: impl FnOnce(Reader) -> Result<(admission::Effect, Place), String>,
) -> Done {
    let origin = if ctx.flags().contains(Flags::REPLICATED) { Origin::Live } else { Origin::Stored };
    let reader = Reader { now: clock::now(), anchor: clock::anchor(), origin };
    let done = read(reader).and_then(|(effect, place)| {
        let &[key, ..] = args.bytes else { return Err(Error::Effect.into()) };
        effects::take_in(open(m, ctx, args, key)?, effect, &place)
    });
    done.inspect_err(|_| m.with(|s| s.stats.effects_skipped += 1))?;
    ctx.reply_simple(c"OK");
    Ok(())
}
