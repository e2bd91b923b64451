//! GUARD and FENCED: another command, run only while its sender still holds the lock.
//!
//! The server runs it, in this same step: with the client's rights, replicated as if it had been sent alone,
//! and unable to block. The state is not borrowed meanwhile, for the command may be one of ours.

use dlock_protocol::command;
use dlock_protocol::error::Error;

use super::opening::{Done, look};
use crate::clock;
use crate::ffi::docs::KeyUse;
use crate::ffi::inner::{Carrier, Checks, Refused};
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Flags, WrongType};
use crate::module::Module;

pub struct Guard;

impl Carrier for Guard {
    const KEY: KeyUse = KeyUse::ReadAndMore;
}

impl Command for Guard {
    type Module = Module;

    fn run<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Guard::parse(args.bytes)?;
        let checks = checks(m, ctx, parsed.command)?;
        let now = clock::now();
        match look(ctx, args, |lock| lock.at(now).hold_of(parsed.token.as_bytes()).is_some())? {
            true => run(m, ctx, args, checks),
            false => Err(Error::NotHeld.into()),
        }
    }
}

pub struct Fenced;

impl Carrier for Fenced {
    const KEY: KeyUse = KeyUse::ChangeAndMore;
}

impl Command for Fenced {
    type Module = Module;

    fn run<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Fenced::parse(args.bytes)?;
        let checks = checks(m, ctx, parsed.command)?;
        let raises = || match ctx.read_string(args.key, |gate| parsed.raises(gate)) {
            Ok(answer) => answer,
            Err(WrongType) => Err(Error::WrongType),
        };
        if raises()? {
            ctx.set_number(args.key, parsed.fence.get(), true)?;
        }
        let done = run(m, ctx, args, checks);
        // Whatever the command did to the gate, what the gate has seen it has seen. Only a gate that has just
        // been moved to another node of a cluster cannot be set any more, and was raised before it left.
        if !matches!(raises(), Ok(false) | Err(Error::StaleFence(_))) {
            let _ = ctx.set_number(args.key, parsed.fence.get(), false);
        }
        done
    }
}

const SCRIPTS: [&[u8]; 6] = [b"EVAL", b"EVALSHA", b"EVAL_RO", b"EVALSHA_RO", b"FCALL", b"FCALL_RO"];
/// What Redis 7.0 keeps out of scripts for it can block, which here nothing can.
const BLOCKING: [&[u8]; 6] = [b"BLPOP", b"BRPOP", b"BLMOVE", b"BRPOPLPUSH", b"BZPOPMIN", b"BZPOPMAX"];
/// They read keys that they do not name.
const SORTS: [&[u8]; 2] = [b"SORT", b"SORT_RO"];

/// Which checks the server has to make of a command, or why it is not run. What changes the connection that
/// it comes from is not run: it would change one of the server's own.
fn checks(m: &Module, ctx: Ctx<'_>, command: &[&[u8]]) -> Result<Checks, Error> {
    if m.with(|s| s.guarding) {
        return Err(Error::Nested);
    }
    let name = command.first().copied().unwrap_or_default();
    let is_one_of = |names: &[&[u8]]| names.iter().any(|one| one.eq_ignore_ascii_case(name));
    let script = is_one_of(&SCRIPTS);
    // To run a script inside a script ends the server.
    if is_one_of(&[b"SELECT"]) || (script && ctx.flags().contains(Flags::LUA)) {
        return Err(Error::NotGuarded);
    }
    if (script || is_one_of(&SORTS)) && !ctx.calls_run_as_user() && !ctx.user_has_all_rights() {
        return Err(Error::AllRights);
    }
    Ok(if script || is_one_of(&BLOCKING) { Checks::AnyCommand } else { Checks::AsInScripts })
}

fn run(m: &Module, ctx: Ctx<'_>, args: &Args<'_>, checks: Checks) -> Done {
    m.with(|s| s.guarding = true);
    let done = ctx.run_carried(args, checks);
    m.with(|s| s.guarding = false);
    done.map_err(|refused| match refused {
        Refused::NotInScripts => Error::NotGuarded.into(),
        Refused::Error(text) => text,
    })
}
