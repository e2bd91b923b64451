//! One short function a command: parse, open the key, let the core decide, reply. What happens in between is
//! in [`crate::effects`].

use dlock_core::codec::{Origin, Reader};
use dlock_core::decide::Confirmed;
use dlock_core::log::What;
use dlock_core::{Acquired, Bytes, ClientId, Fence, Lock, Name, Queued, Rank};
use dlock_protocol::NotifyRef;
use dlock_protocol::command::{self, Queue};
use dlock_protocol::error::{Error, Misuse};
use dlock_protocol::reply::{self, Reply};
use rand::TryRng;

use crate::effects::{self, Target};
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Flags, WrongType, user};
use crate::module::Module;
use crate::value::Key;
use crate::{clock, deadlines, log, mark, waiters};

mod guarded;
mod listing;
mod looking;

pub use guarded::{Fenced, Guard};
pub use listing::{List, Log};
pub use looking::{Holds, Inspect, Pttl, Waiters};

type Done = Result<(), String>;

fn open<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>, key: &'a [u8]) -> Result<Target<'a>, String> {
    Target::open(m, ctx, args.key, key)
}

/// Reads a lock as it is now, without changing anything; works on replicas.
fn look<R>(ctx: Ctx<'_>, args: &Args<'_>, read: impl FnOnce(&Lock) -> R) -> Result<R, String> {
    let mut key = Key::open_for_read(ctx, args.key).map_err(|WrongType| Error::WrongType)?;
    let free = Lock::default();
    let lock = key.value().map_or(&free, |value| &value.lock);
    Ok(read(lock))
}

pub struct Acquire;

impl Command for Acquire {
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Acquire::parse(args.bytes, m.with(|s| s.config.bounds.longest_lease()))?;
        let (request, client) = (parsed.request, ClientId(ctx.client_id()));
        if request.ephemeral {
            can_end_with_connection(m, ctx)?;
        }
        let queued = parsed.queue.map(|queue| queued(m, ctx, parsed.key, client, queue)).transpose()?;
        let target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
        let is_strangers = target.is_strangers();
        let mut acquired = target.operate(|turn| match (&queued, parsed.queue) {
            (Some(queued), Some(queue)) => turn.queue(&request, queued.clone(), turn.now + queue.ms),
            _ => turn.acquire(&request, client),
        });
        if is_strangers && m.with(|s| s.grace_left(clock::now())) == 0 {
            if !matches!(acquired, Acquired::Queued(_)) {
                acquired = Acquired::NotNow(Rank::Newcomer);
            }
            // Also where this one does not wait: nothing has to be done then.
            deadlines::look_again(m, &Name::new(ctx.db(), parsed.key));
        }
        // Where nothing may block (MULTI, scripts) BLOCK is one try.
        let block = parsed.block.filter(|_| !ctx.flags().contains(Flags::DENY_BLOCKING));
        let name = Name::new(ctx.db(), parsed.key);
        let acquired = match (acquired, queued, parsed.queue) {
            (Acquired::NotNow(rank), Some(queued), Some(queue)) => {
                Acquired::Queued(waiters::queue(m, ctx, &name, request, rank, queued, queue.ms)?)
            }
            (acquired, ..) => acquired,
        };
        match acquired {
            Acquired::Held(fence) => Some(fence).write(&mut ctx),
            Acquired::Refused(refusal) => return Err(Error::Refused(refusal).into()),
            Acquired::Grace => {
                m.with(|s| s.stats.grace_refusals += 1);
                return Err(Error::Grace(m.with(|s| s.grace_left(clock::now()))).into());
            }
            Acquired::Upgrading(other) => {
                m.with(|s| s.stats.deadlocks += 1);
                log::refused(m, ctx, What::Deadlock, &Name::new(ctx.db(), parsed.key), &request);
                let token = request.token.to_owned();
                return Err(Error::Deadlock(vec![token.clone(), other, token]).into());
            }
            Acquired::Queued(position) => match block {
                Some(wait) => waiters::wait_beside(m, ctx, position, request, client, wait)?,
                None => None::<Fence>.write(&mut ctx),
            },
            Acquired::NotNow(rank) => match block {
                Some(wait) => {
                    on_a_master(ctx.flags())?;
                    waiters::wait(m, ctx, &name, request, rank, client, wait)?;
                }
                None => {
                    m.with(|s| s.stats.denials += 1);
                    None::<Fence>.write(&mut ctx);
                }
            },
        }
        Ok(())
    }
}

/// Looks at what QUEUE needs besides room in the queue.
fn queued(
    m: &Module,
    ctx: Ctx<'_>,
    key: &[u8],
    client: ClientId,
    queue: Queue<'_>,
) -> Result<Queued, String> {
    on_a_master(ctx.flags())?;
    let longest = m.with(|s| s.config.bounds.max_ttl);
    if queue.ms > longest {
        return Err(Misuse::Range("QUEUE ms", 1, longest.millis()).into());
    }
    if m.with(|s| s.guarding) && !ctx.calls_run_as_user() {
        return Err(Error::NoConnection.into());
    }
    let user = ctx.user_name();
    let channel = queue.notify.map(NotifyRef::channel);
    if let (Some(user), Some(channel)) = (&user, channel)
        && !user::may_publish(user, channel)
    {
        ctx.log_denied_channel(user, channel);
        return Err(Error::NoChannel.into());
    }
    let sharded = channel.is_some_and(|channel| {
        ctx.flags().contains(Flags::CLUSTER) && ctx.slot_of(channel) == ctx.slot_of(key)
    });
    let user = user.map(|name| Bytes::from(&name[..]));
    Ok(Queued::new(client, user, queue.notify.map(NotifyRef::to_owned), sharded))
}

/// Whether an EPHEMERAL hold can be bound to the connection of the command. A script and a guard run it on a
/// client of the server's own, and no server says whose command started it.
fn can_end_with_connection(m: &Module, ctx: Ctx<'_>) -> Done {
    let flags = ctx.flags();
    if flags.contains(Flags::LUA) || m.with(|s| s.guarding) {
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
    type Module = Module;

    fn run<'a>(m: &'a Module, mut ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Release::parse(args.bytes)?;
        let target = Target::open_to_wait(m, ctx, args.key, parsed.key)?;
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
                mark::raised(m, ctx);
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

/// Does nothing: on Redis 7.0 the server is asked by it what it says to writes.
pub struct May;

impl Command for May {
    type Module = Module;

    fn run<'a>(_: &'a Module, ctx: Ctx<'a>, _: &Args<'a>) -> Done {
        ctx.reply_null();
        Ok(())
    }
}

/// The effect that masters send.
pub struct Effect;

impl Command for Effect {
    type Module = Module;

    fn run<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        if !ctx.flags().intersects(Flags::REPLICATED | Flags::LOADING) {
            return Err(Error::Effect.into());
        }
        Effect::take_in(m, ctx, args).inspect_err(|_| m.with(|s| s.effect_skipped()))
    }
}

impl Effect {
    fn take_in<'a>(m: &'a Module, ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let &[key, change] = args.bytes else { return Err(Error::Effect.into()) };
        let origin = if ctx.flags().contains(Flags::REPLICATED) { Origin::Live } else { Origin::Stored };
        let reader = Reader { now: clock::now(), anchor: clock::anchor(), origin };
        let effect = reader.effect(change).map_err(|bad| {
            m.with(|s| s.fences.raise(bad.last.unwrap_or(0)));
            format!("ERR {}", bad.why)
        })?;
        effects::take_in(open(m, ctx, args, key)?, effect)?;
        ctx.reply_simple(c"OK");
        Ok(())
    }
}
