//! The background job: the only one besides the commands that has anything written. The timer runs it, or a
//! tick of the event loop that finds the timer late.

use dlock_core::deliveries::Delivery;
use dlock_core::tasks::{Bindings, Task};
use dlock_core::{ClientId, Deadline, Departed, Ephemeral, Instant, Name, Outcome, Owner, Token, WaiterId};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;
use dlock_protocol::notify::Ended;

use crate::effects::{self, Target};
use crate::ffi::verdict::{Rehearsal, Verdict};
use crate::ffi::{Ctx, Flags, c_text};
use crate::module::Module;
use crate::value::Key;
use crate::{clock, grace, log, timer, waiters};

/// What the server is asked about before the background writes.
static ACQUIRE: Rehearsal = Rehearsal {
    command: c_text!(table::ACQUIRE.name),
    arguments: [c"?", c"1"],
    stand_in: c_text!(table::MAY.name),
};

/// The job works for so long at a stretch, then lets the event loop go round: with what else there is to do
/// in a turn, up to 0.4 ms when the server looks at its memory, nobody waits a millisecond. Much less would
/// have it rest for most of the time, as no timer fires before the next millisecond.
const STRETCH_MICROS: u64 = 500;

/// While the server refuses writes, or a string is in the way, that is looked at again after so long.
const PAUSED_MILLIS: u64 = 25;

/// The timer has fired.
pub fn on_timer(m: &Module, ctx: Ctx<'_>) {
    timer::fired(m);
    run(m, ctx);
}

/// The event loop ticks.
pub fn on_tick(m: &Module, ctx: Ctx<'_>) {
    if timer::is_late(m) {
        run(m, ctx);
    }
}

fn run(m: &Module, ctx: Ctx<'_>) {
    let start = clock::now().micros();
    if !finish_waits(m, start) {
        return timer::arm_in(m, 0, clock::now().millis());
    }
    if !ctx.flags().contains(Flags::MASTER) {
        // A replica ends no hold by itself; its promotion arms the timer.
        return;
    }
    let mut server = Server::new(m, ctx);
    loop {
        let now = clock::now();
        if now.micros() > start + STRETCH_MICROS {
            return timer::arm_in(m, 0, now.millis());
        }
        let Some(task) = m.with(|s| s.next_task(now)) else { return timer::rearm(m) };
        match task.name().map_or(Verdict::Allowed, |name| server.verdict(&name)) {
            Verdict::Refused => {
                m.with(|s| s.background.put_back(task));
                return wait(m, start);
            }
            Verdict::NoMemory if somebody_waits(m, &task) => put_off(m, task, now),
            verdict => carry_out(m, ctx, task, verdict == Verdict::Elsewhere),
        }
    }
}

/// The server as the background finds it in one run: what it says to writes does not change in a millisecond,
/// but for the slots of a cluster.
struct Server<'a> {
    m: &'a Module,
    ctx: Ctx<'a>,
    is_cluster: bool,
    verdict: Option<Verdict>,
}

impl<'a> Server<'a> {
    fn new(m: &'a Module, ctx: Ctx<'a>) -> Server<'a> {
        let verdict = (!ctx.may_write()).then_some(Verdict::Refused);
        Server { m, ctx, is_cluster: ctx.flags().contains(Flags::CLUSTER), verdict }
    }

    fn verdict(&mut self, name: &Name<'_>) -> Verdict {
        if let Some(verdict) = self.verdict {
            return verdict;
        }
        let verdict = self.ctx.verdict(self.m.ctx(), &ACQUIRE, name.db, self.ctx.string(&name.key).name());
        if !self.is_cluster || verdict == Verdict::Refused {
            self.verdict = Some(verdict);
        }
        verdict
    }
}

fn somebody_waits(m: &Module, task: &Task) -> bool {
    m.with(|s| task.name().is_some_and(|name| s.waiting.len_of(&name) > 0))
}

/// Nothing may be written now. A wait ends in its time all the same.
fn wait(m: &Module, start: u64) {
    let mut now = clock::now();
    while now.micros() <= start + STRETCH_MICROS
        && let Some((id, outcome)) = m.with(|s| s.waiting.next_over(now).map(|(w, outcome)| (w.id, outcome)))
    {
        is_over(m, id, outcome, now);
        now = clock::now();
    }
    let next = m.with(|s| s.waiting.next_due()).map_or(u64::MAX, |until| until.left(now));
    timer::arm_in(m, next.min(PAUSED_MILLIS), now.millis());
}

/// Without memory nobody is granted anything, so the wait queue waits on, and with it what is to happen to
/// its lock.
fn put_off(m: &Module, task: Task, now: Instant) {
    match task {
        Task::Over(_, id, outcome) => is_over(m, id, outcome, now),
        task => m.with(|s| s.background.put_off(task, next_look(now))),
    }
}

/// `elsewhere`: another node serves the key, and its queue is told to go there.
fn carry_out(m: &Module, ctx: Ctx<'_>, task: Task, elsewhere: bool) {
    if let Some(name) = task.name().filter(|_| elsewhere) {
        fail_some(m, &name, &String::from(Error::Moving));
        // Who is left is told first: what touches the lock would serve its queue.
        if m.with(|s| s.waiting.len_of(&name) > 0) {
            return m.with(|s| s.background.put_back(task));
        }
    }
    match task {
        Task::Serve(name) => {
            on(m, ctx, &name, |target| target.operate(|turn| turn.advance()));
        }
        Task::ServeBehind(began, db) => m.with(|s| s.background.serve(&s.waiting, db, began)),
        // It did not vanish, it has moved.
        Task::Vanished(_) if elsewhere => {}
        Task::Vanished(name) => {
            let served = on(m, ctx, &name, |target| target.operate(|turn| turn.vanished()));
            if !served {
                effects::announce_freed(ctx, &name);
            }
        }
        Task::Disconnected(client, db, holds) => disconnect(m, ctx, client, db, holds),
        Task::Undelivered(name, token, waiter) => {
            undelivered(m, ctx, &name, &token, waiter);
        }
        Task::Unread { delivery, waiter, evicted } => {
            if waiters::evicted_clients(ctx) != evicted {
                return m.with(|s| s.waiting.deliveries.delivered(waiter, &delivery));
            }
            let Delivery { name, token, .. } = delivery;
            undelivered(m, ctx, &name, &token, waiter);
        }
        Task::Over(name, waiter, outcome) => {
            on(m, ctx, &name, |target| target.operate(|turn| turn.dismiss(&[waiter], outcome)));
        }
        Task::Departed(name, departed) => close_the_books(m, ctx, name, departed),
        Task::Restored(name) => {
            on(m, ctx, &name, |target| target.operate(|turn| turn.restored()));
        }
        Task::GraceOver => grace::over(m, ctx, "its time has passed"),
        Task::Due(name, slot) => {
            let mut stale = true;
            on(m, ctx, &name, |mut target| {
                if target.value().is_some_and(|value| value.lock.slot() == Some(slot)) {
                    stale = false;
                    target.operate(|turn| turn.advance());
                }
            });
            if stale {
                m.with(|s| s.background.unschedule_if_of(slot, &name));
            }
        }
    }
}

fn undelivered(m: &Module, ctx: Ctx<'_>, name: &Name<'static>, token: &Token, waiter: WaiterId) {
    on(m, ctx, name, |mut target| {
        log::undelivered(m, ctx, name, token, target.value().map(|value| &value.lock));
        target.operate(|turn| turn.undelivered(token.as_bytes(), waiter));
    });
}

/// A wait is over while its lock may not be touched.
fn is_over(m: &Module, id: WaiterId, outcome: Outcome, now: Instant) {
    let over = m.with(|s| {
        let over = s.waiting.leave_all(id);
        // Whoever leaves may have stood in the way of those behind.
        if let Some(waiter) = over.first()
            && s.waiting.head(&waiter.name).is_some_and(|head| (head.rank, head.id) > (waiter.rank, id))
        {
            s.background.note(Task::Serve(waiter.name.clone()));
        }
        over
    });
    over.into_iter().for_each(|waiter| effects::answer(m, waiter, outcome, now));
}

/// No lock can be granted there any more: the first in the queue are told why, but for those whose wait is
/// over. The others are left to the next turn of the job.
fn fail_some(m: &Module, name: &Name<'_>, why: &str) {
    for _ in 0..Departed::SLICE {
        let Some(head) = m.with(|s| s.waiting.head(name).map(|head| head.id)) else { return };
        refuse(m, head, why);
    }
}

/// Takes a waiter out of its queue, with the connections beside it, and sends them this error, or `refused`.
/// A wait whose time is over ends as any other.
fn refuse(m: &Module, id: WaiterId, why: &str) {
    let now = clock::now();
    let (over, waiters) = m.with(|s| {
        let over = s.waiting.get(id).and_then(|waiter| s.waiting.is_over(waiter, now));
        (over, s.waiting.leave_all(id))
    });
    for waiter in waiters {
        match (over, &waiter.owner) {
            (Some(outcome), _) => effects::answer(m, waiter, outcome, now),
            (None, Owner::Token(queued)) => effects::publish(m, queued, Ended::Refused),
            (None, _) => waiters::refuse(m, waiter.id, why),
        }
    }
}

/// Ends every wait on this server, each with this error or `refused`. Only notes that, for an event: the
/// background job does it.
///
/// Most servers end the waits of connections themselves. Valkey does not when the cluster is down, nor, from
/// 9 on, when it becomes a replica and the connection is a cluster's or has asked for redirection.
pub fn end_waits(m: &Module, why: Error) {
    if m.with(|s| {
        s.waits_end = Some(why).filter(|_| !s.waiting.is_empty());
        s.waits_end.is_some()
    }) {
        timer::arm_in(m, 0, clock::now().millis());
    }
}

/// Does what [`end_waits`] has noted. False where there are more waits than fit into a stretch.
fn finish_waits(m: &Module, start: u64) -> bool {
    let Some(why) = m.with(|s| s.waits_end.as_ref().map(Error::to_string)) else { return true };
    while let Some(head) = m.with(|s| s.waiting.any_head().map(|head| head.id)) {
        if clock::now().micros() > start + STRETCH_MICROS {
            return false;
        }
        refuse(m, head, &why);
    }
    m.with(|s| s.waits_end = None);
    true
}

/// Ends some of the holds of a connection that has closed, all on one resource; the others come behind what
/// else there is to do.
fn disconnect(m: &Module, ctx: Ctx<'_>, client: ClientId, db: i32, mut holds: Bindings) {
    let Some((key, first)) = holds.pop_first() else { return };
    let mut tokens = vec![first];
    while tokens.len() < Departed::SLICE
        && holds.first().is_some_and(|(other, _)| *other == key)
        && let Some((_, token)) = holds.pop_first()
    {
        tokens.push(token);
    }
    if !holds.is_empty() {
        m.with(|s| s.background.note(Task::Disconnected(client, db, holds)));
    }
    let name = Name::new(db, &key).to_owned();
    let tokens = tokens.iter().map(Token::as_bytes);
    on(m, ctx, &name, |target| target.operate(|turn| turn.disconnect(tokens, client)));
}

/// Counts the next of a crowd that has left a lock, and unbinds them from their connections, but for those
/// whose token has come back with the same connection meanwhile.
fn close_the_books(m: &Module, ctx: Ctx<'_>, name: Name<'static>, mut departed: Box<Departed>) {
    let ended: Vec<_> = departed.next_slice().collect();
    ctx.select_db(name.db);
    let raw = ctx.string(&name.key);
    let mut key = Key::open_for_read(ctx, raw.name()).ok();
    let lock = key.as_mut().and_then(|key| key.value()).map(|value| &value.lock);
    let now = clock::now();
    m.with(|s| {
        for (ended, token, client) in ended {
            if let Some((why, held_ms)) = ended {
                s.stats.ended(why, held_ms);
            }
            let Some(client) = client else { continue };
            let held = lock.and_then(|lock| lock.at(now).hold_of(token.as_bytes()));
            if held.is_none_or(|hold| hold.ephemeral() != Ephemeral::Bound(client)) {
                s.background.unbind(client, &name, &token);
            }
        }
        if !departed.is_empty() {
            s.background.note(Task::Departed(name, departed));
        }
    });
}

/// What is put off is looked at together: the server is asked once for all.
fn next_look(now: Instant) -> Deadline {
    Deadline::at_millis((now.millis() / PAUSED_MILLIS + 1) * PAUSED_MILLIS)
}

/// A string that somebody waits for is looked at again and again: no server tells of every way in which it
/// can go, and to be told of most would cost each write of any client.
pub fn look_again(m: &Module, name: &Name<'_>) {
    let (task, at) = (Task::Serve(name.to_owned()), next_look(clock::now()));
    m.with(|s| s.background.put_off(task, at));
}

/// Opens a resource in the background. False where the key holds a value of another type, of which its queue
/// is told, bit by bit.
fn on(m: &Module, ctx: Ctx<'_>, name: &Name<'static>, operate: impl FnOnce(Target<'_>)) -> bool {
    ctx.select_db(name.db);
    let key = ctx.string(&name.key);
    match Target::open_in_background(m, ctx, key.name(), key.bytes()) {
        Ok(target) => {
            let is_strangers = target.is_strangers();
            operate(target);
            if is_strangers && m.with(|s| s.waiting.len_of(name) > 0) {
                look_again(m, name);
            }
        }
        Err(why) => {
            fail_some(m, name, &why);
            m.with(|s| {
                if s.waiting.len_of(name) > 0 {
                    s.background.note(Task::Serve(name.clone()));
                }
            });
            return false;
        }
    }
    true
}
