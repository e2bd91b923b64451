//! One short function a command: parse, open the key, let the core decide, reply. What happens in between is in
//! [`crate::effects`].

use dlock_core::codec::{Origin, Reader};
use dlock_core::command::{self, TABLE, Whom};
use dlock_core::decide::Confirmed;
use dlock_core::{Acquired, ClientId, Ephemeral, Hold, Lock, Mode, Name, Outcome, Request, WaiterId};
use rand::TryRng;

use crate::effects::{self, Target};
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Flags, Key, WrongType};
use crate::state::with;
use crate::{clock, grace, mark, waiters, words};

type Done = Result<(), String>;

fn text(misuse: command::Misuse) -> String {
    misuse.to_string()
}

fn open<'a>(ctx: Ctx<'a>, args: &Args<'a>, key: &'a [u8]) -> Result<Target<'a>, String> {
    Target::open(ctx, args.key, key)
}

pub struct Acquire;

impl Command for Acquire {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Acquire::parse(args.bytes, with(|s| s.config.longest_lease())).map_err(text)?;
        let bound_to = if parsed.ephemeral { Some(connection(ctx)?) } else { None };
        let request = Request {
            token: parsed.token,
            ttl: parsed.ttl,
            mode: parsed.mode,
            count: parsed.count,
            bound_to,
            delay: parsed.delay,
            label: parsed.label,
        };
        let acquired = open(ctx, args, parsed.key)?.operate(|turn| turn.acquire(&request));
        match acquired {
            Acquired::Held(fence) => ctx.reply_int(fence.get() as i64),
            Acquired::Refused(refusal) => return Err(words::refusal(refusal)),
            Acquired::Grace => {
                with(|s| s.stats.grace_refusals += 1);
                return Err(words::grace(with(|s| s.grace.left(clock::now()))));
            }
            Acquired::Upgrading(other) => {
                with(|s| s.stats.deadlocks += 1);
                let token = dlock_core::Token::new(parsed.token).ok_or_else(String::new)?;
                return Err(words::deadlock(&[token.clone(), other, token]));
            }
            Acquired::NotNow(rank) => match parsed.block {
                // Where nothing may block (MULTI, scripts) it is one try.
                Some(wait) if !ctx.flags().contains(Flags::DENY_BLOCKING) => {
                    on_a_master(ctx)?;
                    let name = Name::new(ctx.db(), parsed.key);
                    let client = ClientId(ctx.client_id());
                    waiters::wait(ctx, &name, request, rank, client, wait)?;
                }
                _ => {
                    with(|s| s.stats.denials += 1);
                    ctx.reply_null();
                }
            },
        }
        Ok(())
    }
}

/// The connection an EPHEMERAL hold is bound to. A script runs on a client of the server's own, and no server says
/// whose command started it.
fn connection(ctx: Ctx<'_>) -> Result<ClientId, String> {
    if ctx.flags().contains(Flags::LUA) {
        return Err(words::NO_CONNECTION.into());
    }
    on_a_master(ctx)?;
    Ok(ClientId(ctx.client_id()))
}

/// A replica ends nothing by itself, one that may be written to neither.
fn on_a_master(ctx: Ctx<'_>) -> Result<(), String> {
    if ctx.flags().contains(Flags::MASTER) { Ok(()) } else { Err(words::REPLICA.into()) }
}

pub struct Release;

impl Command for Release {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Release::parse(args.bytes).map_err(text)?;
        let ended = open(ctx, args, parsed.key)?.operate(|turn| turn.release(parsed.token, parsed.counts));
        ctx.reply_int(ended.into());
        Ok(())
    }
}

pub struct Extend;

impl Command for Extend {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Extend::parse(args.bytes, with(|s| s.config.longest_lease())).map_err(text)?;
        let extended = open(ctx, args, parsed.key)?.operate(|turn| turn.extend(parsed.token, parsed.ttl));
        ctx.reply_int(extended.into());
        Ok(())
    }
}

pub struct Confirm;

impl Command for Confirm {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let (longest, bound) = with(|s| (s.config.longest_lease(), s.config.skew_bound()));
        let parsed = command::Confirm::parse(args.bytes, longest).map_err(text)?;
        let target = open(ctx, args, parsed.key)?;
        match target.operate(|turn| turn.confirm(parsed.token, parsed.fence, parsed.ttl, bound)) {
            Confirmed::Fence(fence) => {
                mark::raised(ctx);
                ctx.reply_int(fence.get() as i64);
            }
            Confirmed::NotHeld => ctx.reply_null(),
            Confirmed::Ahead(ms) => return Err(words::fence_ahead(ms, bound)),
        }
        Ok(())
    }
}

/// Reads a lock as it is now, without changing anything; works on replicas.
fn look<R>(ctx: Ctx<'_>, args: &Args<'_>, read: impl FnOnce(&Lock) -> R) -> Result<R, String> {
    let mut key = Key::open_for_read(ctx, args.key).map_err(|WrongType| effects::WRONG_TYPE.to_owned())?;
    let free = Lock::default();
    let lock = key.value().map_or(&free, |value| &value.lock);
    Ok(read(lock))
}

pub struct Holds;

impl Command for Holds {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Holds::parse(args.bytes).map_err(text)?;
        let now = clock::now();
        let count = look(ctx, args, |lock| lock.at(now).hold_of(parsed.token).map_or(0, Hold::count))?;
        ctx.reply_int(count.into());
        Ok(())
    }
}

pub struct Pttl;

impl Command for Pttl {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Pttl::parse(args.bytes).map_err(text)?;
        let now = clock::now();
        let left = look(ctx, args, |lock| match parsed.token {
            Some(token) => lock.at(now).hold_of(token).map(|hold| hold.deadline().left(now)),
            None => lock.at(now).longest_left(),
        })?;
        ctx.reply_int(left.map_or(-2, |ms| ms as i64));
        Ok(())
    }
}

pub struct Inspect;

impl Command for Inspect {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let key = command::only_key(args.bytes).map_err(text)?;
        let name = Name::new(ctx.db(), key);
        let waiting = with(|s| s.waiting.len_of(&name));
        let now = clock::now();
        look(ctx, args, |lock| {
            let view = lock.at(now);
            let holders = view.holds().count();
            if holders == 0 && waiting == 0 && view.delay_left() == 0 {
                return ctx.reply_null();
            }
            let permits = match view.mode() {
                Some(Mode::Permits(n)) => n.get(),
                _ => 0,
            };
            ctx.reply_map(6);
            ctx.reply_bytes(b"mode");
            ctx.reply_bytes(view.mode().map_or("free", mode_word).as_bytes());
            field(ctx, "permits", permits.into());
            field(ctx, "fence", view.fence().map_or(0, |fence| fence.get() as i64));
            ctx.reply_bytes(b"holders");
            ctx.reply_array(holders);
            view.holds().for_each(|hold| holder(ctx, hold, hold.deadline().left(now)));
            field(ctx, "waiters", waiting as i64);
            field(ctx, "delay", view.delay_left() as i64);
        })
    }
}

fn field(ctx: Ctx<'_>, name: &str, value: i64) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_int(value);
}

fn field_bytes(ctx: Ctx<'_>, name: &str, value: &[u8]) {
    ctx.reply_bytes(name.as_bytes());
    ctx.reply_bytes(value);
}

fn mode_word(mode: Mode) -> &'static str {
    match mode {
        Mode::Exclusive => "exclusive",
        Mode::Shared => "shared",
        Mode::Permits(_) => "permits",
    }
}

fn holder(ctx: Ctx<'_>, hold: &Hold, left: u64) {
    ctx.reply_map(7);
    field_bytes(ctx, "token", hold.token().as_bytes());
    field(ctx, "count", hold.count().into());
    field(ctx, "fence", hold.fence().get() as i64);
    field(ctx, "pttl", left as i64);
    field_bytes(ctx, "label", hold.label());
    field(ctx, "ephemeral", (hold.ephemeral() != Ephemeral::No).into());
    // 0 where no connection is known, as after a restart.
    let client = if let Ephemeral::Bound(ClientId(id)) = hold.ephemeral() { id } else { 0 };
    field(ctx, "client", client as i64);
}

pub struct Waiters;

impl Command for Waiters {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Waiters::parse(args.bytes).map_err(text)?;
        look(ctx, args, |_| ())?;
        let (name, now) = (Name::new(ctx.db(), parsed.key), clock::now());
        let most = parsed.count.map_or(usize::MAX, |n| n.get() as usize);
        let line: Vec<_> = with(|s| s.waiting.line(&name).take(most).cloned().collect());
        ctx.reply_array(line.len());
        for waiter in line {
            ctx.reply_map(6);
            field(ctx, "client", waiter.client.0 as i64);
            field_bytes(ctx, "token", waiter.token.as_bytes());
            field_bytes(ctx, "mode", mode_word(waiter.mode).as_bytes());
            field(ctx, "waited", now.millis_since(waiter.since) as i64);
            field(ctx, "left", waiter.until.map_or(-1, |until| until.left(now) as i64));
            field_bytes(ctx, "label", &waiter.label);
        }
        Ok(())
    }
}

pub struct Cancel;

impl Command for Cancel {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let parsed = command::Cancel::parse(args.bytes).map_err(text)?;
        let target = open(ctx, args, parsed.key)?;
        let cancelled = target.operate(|turn| {
            let waiters: Vec<WaiterId> = match parsed.who {
                Whom::Token(token) => turn.waiting.of_token_on(token, turn.name).to_vec(),
                Whom::Client(id) => {
                    let waiter = turn.waiting.of_client(ClientId(id)).filter(|w| w.name == *turn.name);
                    waiter.map(|w| w.id).into_iter().collect()
                }
            };
            turn.dismiss(&waiters, Outcome::Cancelled);
            waiters.len()
        });
        ctx.reply_int(cancelled as i64);
        Ok(())
    }
}

pub struct Break;

impl Command for Break {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let key = command::only_key(args.bytes).map_err(text)?;
        let broken = open(ctx, args, key)?.operate(|turn| turn.break_all());
        ctx.reply_int(broken as i64);
        Ok(())
    }
}

pub struct Token;

impl Command for Token {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        command::no_arguments(args.bytes).map_err(text)?;
        let mut random = [0; 20];
        let drawn = rand::rngs::SysRng.try_fill_bytes(&mut random);
        drawn.map_err(|why| format!("ERR the operating system gives no randomness: {why}"))?;
        let token: String = random.iter().map(|byte| format!("{byte:02x}")).collect();
        ctx.reply_bytes(token.as_bytes());
        Ok(())
    }
}

pub struct Help;

impl Command for Help {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        command::no_arguments(args.bytes).map_err(text)?;
        ctx.reply_array(TABLE.len() * 2 + 1);
        ctx.reply_bytes(b"DLOCK.<command> [<arg> [value] ...]. Commands are:");
        for doc in TABLE {
            ctx.reply_bytes(format!("{} {}", doc.name, doc.form).trim_end().as_bytes());
            ctx.reply_bytes(format!("    {}.", doc.summary).as_bytes());
        }
        Ok(())
    }
}

/// The effect that masters send.
pub struct Effect;

impl Command for Effect {
    fn run<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        if !ctx.flags().intersects(Flags::REPLICATED | Flags::LOADING) {
            return Err(words::EFFECT.into());
        }
        Effect::take_in(ctx, args).inspect_err(|_| grace::effect_skipped())
    }
}

impl Effect {
    fn take_in<'a>(ctx: Ctx<'a>, args: &Args<'a>) -> Done {
        let &[key, change] = args.bytes else { return Err(words::EFFECT.into()) };
        let origin = if ctx.flags().contains(Flags::REPLICATED) { Origin::Live } else { Origin::Stored };
        let reader = Reader { now: clock::now(), anchor: clock::anchor(), origin };
        let (written, last) = reader.read_effect(change).map_err(|why| format!("ERR {why}"))?;
        effects::take_in(open(ctx, args, key)?, written, last)?;
        ctx.replicate_verbatim();
        ctx.reply_simple(c"OK");
        Ok(())
    }
}
