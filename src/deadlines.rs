//! One timer over all deadlines, and the background job it runs: the only writer besides the commands.
//!
//! The timer runs by the wall clock, so it is a hint: the job looks at the server clock, and a tick of the event loop
//! that finds the timer late runs the job itself.

use dlock_core::{ClientId, Departed, Ephemeral, Event, Instant, Name, Outcome, Token};
use dlock_protocol::error::Error;

use crate::deliveries::Delivery;
use crate::effects::{self, Target};
use crate::ffi::{Ctx, Flags, Key, Verdict, notices};
use crate::pending::Bindings;
use crate::state::{Task, with};
use crate::{clock, grace, waiters};

/// The job works for so long at a stretch, then lets the event loop go round.
const STRETCH_MICROS: u64 = 1_000;

/// While the server refuses writes, it is asked again after so long.
const PAUSED_MILLIS: u64 = 25;

/// Arms the timer for the first thing that is due, where it is not armed for that or sooner.
pub fn rearm() {
    let now = clock::now().millis();
    let Some(due) = with(|s| s.next_due()) else { return };
    let ms = due.saturating_sub(now).min(24 * 3600 * 1000);
    arm_in(ms, now);
}

fn arm_in(ms: u64, now: u64) {
    let late = match with(|s| s.timer) {
        Some((_, armed_for)) if armed_for <= now + ms => return,
        other => other,
    };
    let ctx = notices::background();
    if let Some((timer, _)) = late {
        notices::disarm(ctx, timer);
    }
    let timer = notices::arm(ctx, ms);
    with(|s| s.timer = Some((timer, now + ms)));
}

/// The timer has fired.
pub fn on_timer(ctx: Ctx<'_>) {
    with(|s| s.timer = None);
    run(ctx);
}

/// The event loop ticks: looks whether the timer is late, as it is after the wall clock was set back.
pub fn on_tick(ctx: Ctx<'_>) {
    let now = clock::now().millis();
    if let Some((timer, armed_for)) = with(|s| s.timer)
        && armed_for + 2 < now
    {
        notices::disarm(notices::background(), timer);
        on_timer(ctx);
    }
}

fn run(ctx: Ctx<'_>) {
    if !ctx.flags().contains(Flags::MASTER) {
        // A replica ends nothing by itself; its promotion arms the timer.
        return;
    }
    let mut server = Server::new(ctx);
    let start = clock::now().micros();
    loop {
        let now = clock::now();
        if now.micros() > start + STRETCH_MICROS {
            return arm_in(0, now.millis());
        }
        let Some(task) = with(|s| s.next_task(now)) else { return rearm() };
        match task.name().map_or(Verdict::Allowed, |name| server.verdict(name)) {
            Verdict::Refused => {
                with(|s| s.put_back(task));
                return wait(start);
            }
            Verdict::NoMemory if somebody_waits(&task) => put_off(task, now),
            verdict => carry_out(ctx, task, verdict == Verdict::Elsewhere),
        }
    }
}

/// The server as the background finds it in one run: what it says to writes does not change in a millisecond, but for
/// the slots of a cluster.
struct Server<'a> {
    ctx: Ctx<'a>,
    is_cluster: bool,
    verdict: Option<Verdict>,
}

impl<'a> Server<'a> {
    fn new(ctx: Ctx<'a>) -> Server<'a> {
        let verdict = (!ctx.may_write()).then_some(Verdict::Refused);
        Server { ctx, is_cluster: ctx.flags().contains(Flags::CLUSTER), verdict }
    }

    fn verdict(&mut self, name: &Name<'_>) -> Verdict {
        if let Some(verdict) = self.verdict {
            return verdict;
        }
        let verdict = self.ctx.verdict(name.db, &self.ctx.string(&name.key));
        if !self.is_cluster || verdict == Verdict::Refused {
            self.verdict = Some(verdict);
        }
        verdict
    }
}

fn somebody_waits(task: &Task) -> bool {
    with(|s| task.name().is_some_and(|name| s.waiting.len_of(name) > 0))
}

/// Nothing may be written now. A wait ends in its time all the same.
fn wait(start: u64) {
    let mut now = clock::now();
    while now.micros() <= start + STRETCH_MICROS
        && let Some(id) = with(|s| s.waiting.timed_out(now))
    {
        waiters::time_out(id, now);
        now = clock::now();
    }
    let next = with(|s| s.waiting.next_timeout()).map_or(u64::MAX, |until| until.left(now));
    arm_in(next.min(PAUSED_MILLIS), now.millis());
}

/// Without memory nobody is granted anything, so the wait queue waits on, and with it what is to happen to its lock.
fn put_off(task: Task, now: Instant) {
    match task {
        Task::TimedOut(_, id) => waiters::time_out(id, now),
        task => with(|s| s.put_off(task, now.after_millis(PAUSED_MILLIS))),
    }
}

/// `elsewhere`: another node serves the key, and its line is told to go there.
fn carry_out(ctx: Ctx<'_>, task: Task, elsewhere: bool) {
    if let Some(name) = task.name().filter(|_| elsewhere) {
        waiters::fail_all(name, &String::from(Error::Moving));
    }
    match task {
        Task::Serve(name) => {
            on(ctx, &name, |target| target.operate(|turn| turn.advance()));
        }
        // It did not vanish, it has moved.
        Task::Vanished(_) if elsewhere => {}
        Task::Vanished(name) => {
            let served = on(ctx, &name, |target| target.operate(|turn| turn.vanished()));
            if !served {
                ctx.notify(effects::event_name(Event::Freed), ctx.string(&name.key).raw());
            }
        }
        Task::Disconnected(client, holds) => disconnect(ctx, client, holds),
        Task::Undelivered(name, token, waiter) => {
            on(ctx, &name, |target| target.operate(|turn| turn.undelivered(token.as_bytes(), waiter)));
        }
        Task::Unread { delivery, waiter, evicted } => {
            if waiters::evicted_clients(ctx) == evicted {
                let Delivery { name, token, .. } = delivery;
                on(ctx, &name, |target| target.operate(|turn| turn.undelivered(token.as_bytes(), waiter)));
            }
        }
        Task::TimedOut(name, waiter) => {
            let late = Outcome::TimedOut;
            on(ctx, &name, |target| target.operate(|turn| turn.dismiss(&[waiter], late)));
        }
        Task::Departed(name, departed) => close_the_books(ctx, name, departed),
        Task::GraceOver => grace::over(ctx, "its time has passed"),
        Task::Due(name, slot) => {
            let mut stale = true;
            on(ctx, &name, |mut target| {
                if target.value().is_some_and(|value| value.is_scheduled_at(slot)) {
                    stale = false;
                    target.operate(|turn| turn.advance());
                }
            });
            if stale {
                with(|s| s.db(name.db).remove_if_of(slot, &name.key));
            }
        }
    }
}

/// Ends some of the holds of a connection that has closed, all on one resource; the others come behind what else there
/// is to do.
fn disconnect(ctx: Ctx<'_>, client: ClientId, mut holds: Bindings) {
    let Some((name, first)) = holds.pop_first() else { return };
    let mut tokens = vec![first];
    while tokens.len() < Departed::SLICE
        && holds.first().is_some_and(|(other, _)| *other == name)
        && let Some((_, token)) = holds.pop_first()
    {
        tokens.push(token);
    }
    if !holds.is_empty() {
        with(|s| s.pending.push_back(Task::Disconnected(client, holds)));
    }
    let tokens = tokens.iter().map(Token::as_bytes);
    on(ctx, &name, |target| target.operate(|turn| turn.disconnect(tokens, client)));
}

/// Counts the next of a crowd that has left a lock, and unbinds them from their connections, but for those whose token
/// has come back with the same connection meanwhile.
fn close_the_books(ctx: Ctx<'_>, name: Name<'static>, mut departed: Box<Departed>) {
    let ended: Vec<_> = departed.next_slice().collect();
    ctx.select_db(name.db);
    let raw = ctx.string(&name.key);
    let mut key = Key::open_for_read(ctx, raw.raw()).ok();
    let lock = key.as_mut().and_then(|key| key.value()).map(|value| &value.lock);
    let now = clock::now();
    with(|s| {
        for (ended, token, client) in ended {
            if let Some((why, held_ms)) = ended {
                s.stats.ended(why, held_ms);
            }
            let Some(client) = client else { continue };
            let held = lock.and_then(|lock| lock.at(now).hold_of(token.as_bytes()));
            if held.is_none_or(|hold| hold.ephemeral() != Ephemeral::Bound(client)) {
                s.unbind(client, &name, &token);
            }
        }
        if !departed.is_empty() {
            s.pending.push_back(Task::Departed(name, departed));
        }
    });
}

/// Opens a resource in the background. False where the key holds a value of another type, of which its line is told.
fn on(ctx: Ctx<'_>, name: &Name<'static>, operate: impl FnOnce(Target<'_>)) -> bool {
    ctx.select_db(name.db);
    let key = ctx.string(&name.key);
    match Target::open_in_background(ctx, key.raw(), key.bytes()) {
        Ok(target) => operate(target),
        Err(why) => {
            waiters::fail_all(name, &why);
            return false;
        }
    }
    true
}
