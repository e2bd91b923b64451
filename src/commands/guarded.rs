//! GUARD runs another command only if the sender still holds the lock. FENCED does so only if the gate, a
//! string key, has seen no greater fence than the sender's. FENCED first raises the gate to this fence.
//!
//! The server runs the command before GUARD or FENCED returns, so that no other client comes between. The
//! command has the client's rights, is replicated as if it had been sent alone, and cannot block. The state
//! is not borrowed meanwhile, because the command may be a command of this module.

use dlock_protocol::command;
use dlock_protocol::error::Error;

use super::{Done, read_lock};
use crate::clock;
use crate::ffi::Ctx;
use crate::ffi::commands::Args;
use crate::ffi::inner::{Checks, Refused};
use crate::module::Module;

pub fn guard<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Guard::parse(args.bytes)?;
    let checks = checks(m, ctx, parsed.command)?;
    let now = clock::now();
    match read_lock(ctx, args, |lock| lock.at(now).hold_of(parsed.token.as_bytes()).is_some())? {
        true => run(m, ctx, args, checks),
        false => Err(Error::NotHeld.into()),
    }
}

pub fn fenced<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
    let parsed = command::Fenced::parse(args.bytes)?;
    let checks = checks(m, ctx, parsed.command)?;
    let raises = || ctx.read_string(args.key, |gate| parsed.raises(gate)).unwrap_or(Err(Error::WrongType));
    if raises()? {
        ctx.set_number(args.key, parsed.fence.get(), true)?;
    }
    let done = run(m, ctx, args, checks);
    // The command may have lowered or deleted the gate, so the gate is set again. Setting it fails only if
    // the gate has just moved to another node of the cluster. That node then has the raised gate.
    if !matches!(raises(), Ok(false) | Err(Error::StaleFence(_))) {
        let _ = ctx.set_number(args.key, parsed.fence.get(), false);
    }
    done
}

/// The kind of a guarded command, which decides about its checks.
enum Kind {
    Ordinary,
    /// Redis 7.0 refuses it in scripts, because it can block. In a guard no command blocks.
    Blocks,
    /// Reads keys that it does not name.
    Sorts,
    /// Concerns its connection, which in a guard is an internal client of the server. In a guard that a
    /// script runs, WAIT would crash Valkey 8.0.
    Connection,
}

fn kind(name: &[u8]) -> Kind {
    // No name below is longer than 10 bytes.
    let mut word = [0; 10];
    let Some(word) = word.get_mut(..name.len()) else { return Kind::Ordinary };
    word.copy_from_slice(name);
    word.make_ascii_uppercase();
    match &*word {
        b"BLPOP" | b"BRPOP" | b"BLMOVE" | b"BRPOPLPUSH" | b"BZPOPMIN" | b"BZPOPMAX" => Kind::Blocks,
        b"SORT" | b"SORT_RO" => Kind::Sorts,
        b"SELECT" | b"WAIT" | b"WAITAOF" | b"READONLY" | b"READWRITE" | b"ASKING" => Kind::Connection,
        _ => Kind::Ordinary,
    }
}

/// Returns the checks that the server makes before it runs a command, or the reason not to run it.
///
/// The checks for scripts also refuse scripts themselves, because a slow script in a guard could crash the
/// server. During a slow script the server serves other clients, but protects the client that sent the
/// script: the server neither frees this client nor reads from it. In a guard, an internal client sends the
/// script, so the client that sent the guard is not protected. Its disconnect or next command could crash
/// the server.
fn checks(m: &Module, ctx: Ctx<'_>, command: &[&[u8]]) -> Result<Checks, Error> {
    if m.with(|s| s.guarding) {
        return Err(Error::Nested);
    }
    match kind(command.first().copied().unwrap_or_default()) {
        Kind::Connection => Err(Error::CannotGuard),
        Kind::Sorts if !ctx.calls_run_as_user() && !ctx.user_has_all_rights() => Err(Error::NeedsAllRights),
        Kind::Blocks => Ok(Checks::AnyCommand),
        Kind::Sorts | Kind::Ordinary => Ok(Checks::AsInScripts),
    }
}

fn run(m: &Module, ctx: Ctx<'_>, args: &Args<'_>, checks: Checks) -> Done {
    m.with(|s| s.guarding = true);
    let done = ctx.run_carried(args, checks);
    m.with(|s| s.guarding = false);
    done.map_err(|refused| match refused {
        Refused::NotAllowed => Error::CannotGuard.into(),
        Refused::Error(text) => text,
    })
}
