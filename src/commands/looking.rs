//! The commands that change nothing: HOLDS, PTTL, INSPECT, WAITERS.

use std::borrow::Cow;

use dlock_core::{ClientId, Ephemeral, Hold, Instant, Lock, Mode, Name};
use dlock_protocol::command;

use super::{Done, text};
use crate::ffi::setup::{Args, Command};
use crate::ffi::{Ctx, Key, WrongType};
use crate::state::with;
use crate::{clock, effects, words};

/// Reads a lock as it is now, without changing anything; works on replicas.
fn look<R>(ctx: Ctx<'_>, args: &Args<'_>, read: impl FnOnce(&Lock) -> R) -> Result<R, String> {
    let mut key = Key::open_for_read(ctx, args.key).map_err(|WrongType| effects::WRONG_TYPE.to_owned())?;
    let free = Lock::default();
    let lock = key.value().map_or(&free, |value| &value.lock);
    Ok(read(lock))
}

type Shown = fn(&[u8]) -> Cow<'_, [u8]>;

/// How tokens are shown: whole to those who may write the key, and to nobody else.
fn shown_to(ctx: Ctx<'_>, args: &Args<'_>) -> Shown {
    if ctx.user_may_write(args.key) { |token| token.into() } else { words::shortened }
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
        let parsed = command::Inspect::parse(args.bytes).map_err(text)?;
        let most = parsed.count.map_or(command::Inspect::SHOWN, |n| n.get() as usize);
        let name = Name::new(ctx.db(), parsed.key);
        let waiting = with(|s| s.waiting.len_of(&name));
        let (now, show) = (clock::now(), shown_to(ctx, args));
        look(ctx, args, |lock| {
            let view = lock.at(now);
            let holders = view.holders();
            if holders == 0 && waiting == 0 && view.delay_left() == 0 {
                return ctx.reply_null();
            }
            let permits = match view.mode() {
                Some(Mode::Permits(n)) => n.get(),
                _ => 0,
            };
            ctx.reply_map(7);
            ctx.reply_bytes(b"mode");
            ctx.reply_bytes(view.mode().map_or("free", mode_word).as_bytes());
            field(ctx, "permits", permits.into());
            field(ctx, "fence", view.fence().map_or(0, |fence| fence.get() as i64));
            ctx.reply_bytes(b"holders");
            ctx.reply_array(holders.min(most));
            view.holds().take(most).for_each(|hold| holder(ctx, hold, now, show));
            field(ctx, "holders-count", holders as i64);
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

fn holder(ctx: Ctx<'_>, hold: &Hold, now: Instant, show: Shown) {
    ctx.reply_map(8);
    field_bytes(ctx, "token", &show(hold.token().as_bytes()));
    field(ctx, "count", hold.count().into());
    field(ctx, "fence", hold.fence().get() as i64);
    field(ctx, "pttl", hold.deadline().left(now) as i64);
    field(ctx, "held", hold.held_millis(now) as i64);
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
        let show = shown_to(ctx, args);
        let most = parsed.count.map_or(usize::MAX, |n| n.get() as usize);
        let line: Vec<_> = with(|s| s.waiting.line(&name).take(most).cloned().collect());
        ctx.reply_array(line.len());
        for waiter in line {
            ctx.reply_map(6);
            field(ctx, "client", waiter.client.0 as i64);
            field_bytes(ctx, "token", &show(waiter.token.as_bytes()));
            field_bytes(ctx, "mode", mode_word(waiter.mode).as_bytes());
            field(ctx, "waited", now.millis_since(waiter.since) as i64);
            field(ctx, "left", waiter.until.map_or(-1, |until| until.left(now) as i64));
            field_bytes(ctx, "label", &waiter.label);
        }
        Ok(())
    }
}
