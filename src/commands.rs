//! One short function a command: parse, open the key, let the core decide, reply. What happens in between is in
//! [`crate::effects`].

use dlock_core::codec::{self, Malformed, Origin, Reader};
use dlock_core::decide::Confirmed;
use dlock_core::{Acquired, ClientId, Fence, Name, Outcome, WaiterId};
use dlock_protocol::command::{self, Whom};
use dlock_protocol::error::Error;
use dlock_protocol::reply::{self, Reply};
use rand::TryRng;

use crate::effects::{self, Target};
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Flags};
use crate::state::with;
use crate::{clock, grace, mark, waiters};

mod looking;

pub use looking::{Holds, Inspect, Pttl, Waiters};

type Done = Result<(), String>;

fn open<'a>(ctx: Ctx<'a>, args: &Args<'a>, key: &'a [u8]) -> Result<Target<'a>, String> {
    Target::open(ctx, args.key, key)
}

pub struct Acquire;

impl Command for Acquire {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Acquire::parse(args.bytes, with(|s| s.config.longest_lease()))?;
        let (request, client) = (parsed.request, ClientId(ctx.client_id()));
        if request.ephemeral {
            can_end_with_connection(ctx)?;
        }
        let acquired = open(ctx, args, parsed.key)?.operate(|turn| turn.acquire(&request, client));
        match acquired {
            Acquired::Held(fence) => Some(fence).write(&mut ctx),
            Acquired::Refused(refusal) => return Err(Error::Refused(refusal).into()),
            Acquired::Grace => {
                with(|s| s.stats.grace_refusals += 1);
                return Err(Error::Grace(with(|s| s.grace.left(clock::now()))).into());
            }
            Acquired::Upgrading(other) => {
                with(|s| s.stats.deadlocks += 1);
                let token = request.token.to_owned();
                return Err(Error::Deadlock(vec![token.clone(), other, token]).into());
            }
            Acquired::NotNow(rank) => match parsed.block {
                // Where nothing may block (MULTI, scripts) it is one try.
                Some(wait) if !ctx.flags().contains(Flags::DENY_BLOCKING) => {
                    on_a_master(ctx.flags())?;
                    let name = Name::new(ctx.db(), parsed.key);
                    waiters::wait(ctx, &name, request, rank, client, wait)?;
                }
                _ => {
                    with(|s| s.stats.denials += 1);
                    None::<Fence>.write(&mut ctx);
                }
            },
        }
        Ok(())
    }
}

/// Whether an EPHEMERAL hold can be bound to the connection of the command. A script runs on a client of the server's
/// own, and no server says whose command started it.
fn can_end_with_connection(ctx: Ctx<'_>) -> Done {
    let flags = ctx.flags();
    if flags.contains(Flags::LUA) {
        return Err(Error::NoConnection.into());
    }
    on_a_master(flags)
}

/// A replica ends nothing by itself, one that may be written to neither.
fn on_a_master(flags: Flags) -> Done {
    if flags.contains(Flags::MASTER) { Ok(()) } else { Err(Error::Replica.into()) }
}

pub struct Release;

impl Command for Release {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Release::parse(args.bytes)?;
        let ended = open(ctx, args, parsed.key)?.operate(|turn| turn.release(parsed.token, parsed.count));
        u64::from(ended).write(&mut ctx);
        Ok(())
    }
}

pub struct Extend;

impl Command for Extend {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Extend::parse(args.bytes, with(|s| s.config.longest_lease()))?;
        let extended = open(ctx, args, parsed.key)?.operate(|turn| turn.extend(parsed.token, parsed.ttl));
        extended.write(&mut ctx);
        Ok(())
    }
}

pub struct Confirm;

impl Command for Confirm {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let (longest, bound) = with(|s| (s.config.longest_lease(), s.config.skew_bound()));
        let parsed = command::Confirm::parse(args.bytes, longest)?;
        let target = open(ctx, args, parsed.key)?;
        match target.operate(|turn| turn.confirm(parsed.token, parsed.fence, parsed.ttl, bound)) {
            Confirmed::Fence(fence) => {
                mark::raised(ctx);
                Some(fence).write(&mut ctx);
            }
            Confirmed::NotHeld => None::<Fence>.write(&mut ctx),
            Confirmed::Ahead(ms) => return Err(Error::FenceAhead { ms, bound }.into()),
        }
        Ok(())
    }
}

pub struct Cancel;

impl Command for Cancel {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Cancel::parse(args.bytes)?;
        let target = open(ctx, args, parsed.key)?;
        let cancelled = target.operate(|turn| {
            let waiters: Vec<WaiterId> = match parsed.who {
                Whom::Token(token) => turn.waiting.of_token_on(token.as_bytes(), turn.name).to_vec(),
                Whom::Client(id) => {
                    let waiter = turn.waiting.of_client(ClientId(id)).filter(|w| w.name == *turn.name);
                    waiter.map(|w| w.id).into_iter().collect()
                }
            };
            turn.dismiss(&waiters, Outcome::Cancelled);
            waiters.len()
        });
        (cancelled as u64).write(&mut ctx);
        Ok(())
    }
}

pub struct Break;

impl Command for Break {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let key = command::only_key(args.bytes)?;
        let broken = open(ctx, args, key)?.operate(|turn| turn.break_all());
        (broken as u64).write(&mut ctx);
        Ok(())
    }
}

pub struct Token;

impl Command for Token {
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
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
    fn run<'a>(mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        command::no_arguments(args.bytes)?;
        reply::Help::new().write(&mut ctx);
        Ok(())
    }
}

/// Does nothing: on Redis 7.0 the server is asked by it what it says to writes.
pub struct May;

impl Command for May {
    fn run<'a>(ctx: Ctx<'a>, _: &Args<'a>) -> Done {
        ctx.reply_null();
        Ok(())
    }
}

/// The effect that masters send.
pub struct Effect;

impl Command for Effect {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        if !ctx.flags().intersects(Flags::REPLICATED | Flags::LOADING) {
            return Err(Error::Effect.into());
        }
        Effect::take_in(ctx, args).inspect_err(|_| grace::effect_skipped())
    }
}

impl Effect {
    fn take_in<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let &[key, change] = args.bytes else { return Err(Error::Effect.into()) };
        let origin = if ctx.flags().contains(Flags::REPLICATED) { Origin::Live } else { Origin::Stored };
        let reader = Reader { now: clock::now(), anchor: clock::anchor(), origin };
        let error = |why: Malformed| format!("ERR {why}");
        let (last, change) = codec::split_effect(change).map_err(error)?;
        let written = reader.read(change).inspect_err(|why| {
            // A newer module wrote it. What it granted is lost here; that fences rise is not.
            if matches!(why, Malformed::Version(_)) {
                with(|s| s.fences.raise(last));
            }
        });
        let written = written.map_err(error)?;
        effects::take_in(open(ctx, args, key)?, written, last)?;
        ctx.replicate_verbatim();
        ctx.reply_simple(c"OK");
        Ok(())
    }
}
