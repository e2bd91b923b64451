//! The commands, each a short function: parse, open the key, let the core decide, reply. [`crate::effects`]
//! carries out the decision.

use dlock_core::Fence;
use dlock_core::codec::Plain;
use dlock_core::decide::Confirmed;
use dlock_protocol::command;
use dlock_protocol::error::Error;
use dlock_protocol::reply::{self, Reply};
use rand::TryRng;

use crate::effects::Target;
use crate::fence_mark;
use crate::ffi::Ctx;
use crate::ffi::setup::{Args, Command};
use crate::module::Module;

mod acquire;
mod guarded;
mod listing;
mod open_key;
mod read_commands;
mod replay;
pub mod table;

pub use acquire::Acquire;
pub use guarded::{Fenced, Guard};
pub use listing::{List, Log};
use open_key::{Done, misuse, open};
pub use read_commands::{Holds, Inspect, Pttl, Waiters};
pub use replay::Effect;

pub struct Release;

impl Command for Release {
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        if replay::is_read(m, ctx) {
            return replay::plain(m, ctx, args, Some(Plain::Release));
        }
        let parsed = command::Release::parse(args.bytes);
        let parsed = parsed.as_ref().map_err(misuse)?;
        let mut target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
        target.plain = Some(Plain::Release);
        let ended = target.operate(|turn| turn.release(parsed.token, parsed.count));
        u64::from(ended).write(&mut ctx);
        Ok(())
    }
}

pub struct Extend;

impl Command for Extend {
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Extend::parse(args.bytes, m.with(|s| s.config.bounds.longest_lease()))?;
        let extended = open(m, ctx, args, parsed.key)?.operate(|turn| turn.extend(parsed.token, parsed.ttl));
        extended.write(&mut ctx);
        Ok(())
    }
}

pub struct Confirm;

impl Command for Confirm {
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let bounds = m.with(|s| s.config.bounds);
        let (longest, skew) = (bounds.longest_lease(), bounds.skew());
        let parsed = command::Confirm::parse(args.bytes, longest)?;
        let target = open(m, ctx, args, parsed.key)?;
        match target.operate(|turn| turn.confirm(parsed.token, parsed.fence, parsed.ttl, skew)) {
            Confirmed::Fence(fence) => {
                fence_mark::raised(m, ctx);
                Some(fence).write(&mut ctx);
            }
            Confirmed::NotHeld => None::<Fence>.write(&mut ctx),
            Confirmed::Ahead(ms) => return Err(Error::FenceAhead { ms, bound: skew.millis() }.into()),
        }
        Ok(())
    }
}

pub struct Cancel;

impl Command for Cancel {
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Cancel::parse(args.bytes)?;
        let target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
        let cancelled = target.operate(|turn| turn.cancel(parsed.who));
        (cancelled as u64).write(&mut ctx);
        Ok(())
    }
}

pub struct Break;

impl Command for Break {
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let key = command::only_key(args.bytes)?;
        let broken = open(m, ctx, args, key)?.operate(|turn| turn.break_all());
        (broken as u64).write(&mut ctx);
        Ok(())
    }
}

pub struct Token;

impl Command for Token {
    type Module = Module;

    fn run<'a>(_: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        command::no_arguments(args.bytes)?;
        let mut random = [0; 20];
        let drawn = rand::rngs::SysRng.try_fill_bytes(&mut random);
        drawn.map_err(|why| Error::NoRandomness(why.to_string()))?;
        dlock_core::Token::of_random(random).write(&mut ctx);
        Ok(())
    }
}

pub struct Help;

impl Command for Help {
    type Module = Module;

    fn run<'a>(_: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        command::no_arguments(args.bytes)?;
        reply::Help::new().write(&mut ctx);
        Ok(())
    }
}

/// A write that does nothing. On Redis 7.0 the module runs it to learn whether the server accepts writes.
pub struct WriteProbe;

impl Command for WriteProbe {
    type Module = Module;

    fn run<'a>(_: &'a Module, ctx: Ctx<'a>, _: &Args<'a>) -> Done {
        ctx.reply_null();
        Ok(())
    }
}
