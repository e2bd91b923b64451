//! The background job: ends leases and waits when they are due, and makes the writes that server callbacks
//! must not make. The timer runs the job; if the timer is overdue, a tick of the event loop does.
//!
//! Only commands and this job write. Before each task the job asks the server whether a client's ACQUIRE of
//! the key would be accepted at this moment. While the server would refuse the ACQUIRE, no lock is granted.
//! Out of memory, holds still end where no client waits; with waiters, the end of a hold and the next grant
//! are one step, which waits until there is memory. (No read shows an expired hold.)

use dlock_core::deliveries::Delivery;
use dlock_core::tasks::{Bindings, Task};
use dlock_core::{ClientId, Deadline, EndedHolds, Ephemeral, Instant, Name, Outcome, Token, WaiterId};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;

use crate::effects::{self, Target};
use crate::ffi::verdict::{DryRun, Verdict};
use crate::ffi::{Ctx, Flags, c_text};
use crate::module::{Key, Module};
use crate::{clock, grace, log, waiters};

/// The command of the dry run before each write. On a server without dry runs, the job runs `stand_in`
/// instead: a command that does nothing, and that the server refuses in the same situations as ACQUIRE.
static ACQUIRE: DryRun = DryRun {
    command: c_text!(table::ACQUIRE.name),
    // A token and a lease.
    arguments: [c"?", c"1"],
    stand_in: c_text!(table::MAY.name),
};

/// Longest run of the job before it returns to the event loop, in µs.
///
/// An event-loop turn also has other work: up to 0.4 ms while the server checks its memory. Together, the job
/// and this work delay a client by less than 1 ms. The job continues by a timer, which fires after 1 ms at
/// the earliest. So with a much lower limit, the job would be idle most of the time.
const MAX_RUN_MICROS: u64 = 500;

/// Interval in ms at which the job checks whether a server that refuses writes accepts them again, and
/// whether a string that counts as a lock (`dlock.honour-strings`) has left the key of a queue.
const RETRY_MILLIS: u64 = 25;

pub fn on_timer(m: &Module, ctx: Ctx<'_>) {
    m.timer_fired();
    run(m, ctx);
}

pub fn on_tick(m: &Module, ctx: Ctx<'_>) {
    if m.disarm_overdue_timer() {
        run(m, ctx);
    }
}

fn run(m: &Module, ctx: Ctx<'_>) {
    let start = clock::now().micros();
    if !finish_scheduled_refusals(m, start) {
        // The time of this run is over, and some waiters are still to be refused.
        return m.arm_timer_in(0, clock::now().millis());
    }
    if !ctx.flags().contains(Flags::MASTER) {
        // A replica ends no hold by itself. Its promotion arms the timer.
        return;
    }
    let mut verdicts = Verdicts::new(m, ctx);
    loop {
        let now = clock::now();
        if now.micros() > start + MAX_RUN_MICROS {
            return m.arm_timer_in(0, now.millis());
        }
        let Some(task) = m.with(|s| s.next_task(now)) else { return m.rearm_timer() };
        match task.name().map_or(Verdict::Allowed, |name| verdicts.of(&name)) {
            Verdict::Refused => {
                m.with(|s| s.background.put_back(task));
                return end_due_waits(m, start);
            }
            Verdict::NoMemory if has_waiters(m, &task) => put_off(m, task, now),
            verdict => carry_out(m, ctx, task, verdict == Verdict::Elsewhere),
        }
    }
}

/// Caches the server's verdict on writes for one run of the job. In a cluster the verdict depends on the slot
/// of the key, so only a refusal of all writes is cached there.
struct Verdicts<'a> {
    m: &'a Module,
    ctx: Ctx<'a>,
    is_cluster: bool,
    cached: Option<Verdict>,
}

impl<'a> Verdicts<'a> {
    fn new(m: &'a Module, ctx: Ctx<'a>) -> Verdicts<'a> {
        let cached = (!ctx.may_write()).then_some(Verdict::Refused);
        Verdicts { m, ctx, is_cluster: ctx.flags().contains(Flags::CLUSTER), cached }
    }

    fn of(&mut self, name: &Name<'_>) -> Verdict {
        if let Some(verdict) = self.cached {
            return verdict;
        }
        let verdict = self.ctx.verdict(self.m.ctx(), &ACQUIRE, name.db, self.ctx.string(&name.key).name());
        if !self.is_cluster || verdict == Verdict::Refused {
            self.cached = Some(verdict);
        }
        verdict
    }
}

fn has_waiters(m: &Module, task: &Task) -> bool {
    m.with(|s| task.name().is_some_and(|name| s.waiting.len_of(&name) > 0))
}

// Tasks that may write.

/// Carries out a task. `elsewhere` means that another node serves the key: the waiters get an error that says
/// so.
fn carry_out(m: &Module, ctx: Ctx<'_>, task: Task, elsewhere: bool) {
    if let Some(name) = task.name().filter(|_| elsewhere) {
        refuse_some(m, &name, &String::from(Error::Moving));
        // The task would grant the lock to the remaining waiters, so it is put back. When it is taken again,
        // more waiters are refused.
        if m.with(|s| s.waiting.len_of(&name) > 0) {
            return m.with(|s| s.background.put_back(task));
        }
    }
    match task {
        Task::Serve(name) => {
            with_target(m, ctx, &name, |target| target.operate(|turn| turn.advance()));
        }
        // The queues that began after the queue of this waiter.
        Task::ServeQueues(first_waiter, db) => m.with(|s| s.background.serve(&s.waiting, db, first_waiter)),
        // The key was not deleted: it moved to another node.
        Task::Vanished(_) if elsewhere => {}
        Task::Vanished(name) => {
            let served = with_target(m, ctx, &name, |target| target.operate(|turn| turn.vanished()));
            if !served {
                effects::announce_freed(ctx, &name);
            }
        }
        Task::Disconnected(client, db, holds) => disconnect(m, ctx, client, db, holds),
        Task::Undelivered(name, token, waiter) => {
            undelivered(m, ctx, &name, &token, waiter);
        }
        Task::Unread { delivery, waiter, evicted_before } => {
            // The server counts an eviction only after the connection has closed. If the count has changed
            // since then, the job assumes that the server sent all replies and then evicted this connection:
            // see `waiters::note_missed_grant`.
            if waiters::evicted_clients(ctx) != evicted_before {
                return m.with(|s| s.waiting.deliveries.delivered(waiter, &delivery));
            }
            let Delivery { name, token, .. } = delivery;
            undelivered(m, ctx, &name, &token, waiter);
        }
        Task::Over(name, waiter, outcome) => {
            with_target(m, ctx, &name, |target| target.operate(|turn| turn.dismiss(&[waiter], outcome)));
        }
        Task::EndedHolds(name, ended_holds) => account_ended_holds(m, ctx, name, ended_holds),
        Task::Restored(name) => {
            with_target(m, ctx, &name, |target| target.operate(|turn| turn.restored()));
        }
        Task::GraceOver => grace::end(m, ctx, "its time has passed"),
        Task::Due(name, slot) => {
            // Stale if the lock is gone, or has another slot in the schedule by now.
            let mut stale = true;
            with_target(m, ctx, &name, |target| {
                if target.lock().is_some_and(|lock| lock.slot() == Some(slot)) {
                    stale = false;
                    target.operate(|turn| turn.advance());
                }
            });
            if stale {
                m.with(|s| s.background.unschedule_if_key_is(slot, &name));
            }
        }
    }
}

/// Runs an operation on a resource. If the key holds another data type, refuses some of the waiters instead,
/// and returns false.
fn with_target(m: &Module, ctx: Ctx<'_>, name: &Name<'static>, operate: impl FnOnce(Target<'_>)) -> bool {
    ctx.select_db(name.db);
    let key = ctx.string(&name.key);
    match Target::open_in_background(m, ctx, key.name(), key.bytes()) {
        Ok(target) => {
            let held_by_string = target.held_by_string;
            operate(target);
            if held_by_string && m.with(|s| s.waiting.len_of(name) > 0) {
                check_string_later(m, name, clock::now());
            }
        }
        Err(why) => {
            refuse_some(m, name, &why);
            m.with(|s| {
                if s.waiting.len_of(name) > 0 {
                    s.background.add_task(Task::Serve(name.clone()));
                }
            });
            return false;
        }
    }
    true
}

fn undelivered(m: &Module, ctx: Ctx<'_>, name: &Name<'static>, token: &Token, waiter: WaiterId) {
    with_target(m, ctx, name, |target| {
        log::undelivered(m, ctx, name, token, target.lock());
        target.operate(|turn| turn.undelivered(token.as_bytes(), waiter));
    });
}

/// Ends the holds of a closed connection on one resource, at most [`EndedHolds::SLICE`] of them. A new task
/// for the background job ends the rest.
fn disconnect(m: &Module, ctx: Ctx<'_>, client: ClientId, db: i32, mut holds: Bindings) {
    let Some((key, first)) = holds.pop_first() else { return };
    let mut tokens = vec![first];
    while tokens.len() < EndedHolds::SLICE
        && holds.first().is_some_and(|(other, _)| *other == key)
        && let Some((_, token)) = holds.pop_first()
    {
        tokens.push(token);
    }
    if !holds.is_empty() {
        m.with(|s| s.background.add_task(Task::Disconnected(client, db, holds)));
    }
    let name = Name::new(db, &key).to_owned();
    let tokens = tokens.iter().map(Token::as_bytes);
    with_target(m, ctx, &name, |target| target.operate(|turn| turn.disconnect(tokens, client)));
}

/// Counts a slice of the holds that ended together, and unbinds their tokens from their connections. A token
/// that has acquired the lock again on the same connection stays bound.
fn account_ended_holds(m: &Module, ctx: Ctx<'_>, name: Name<'static>, mut ended_holds: Box<EndedHolds>) {
    let slice: Vec<_> = ended_holds.next_slice().collect();
    ctx.select_db(name.db);
    let raw = ctx.string(&name.key);
    let key = Key::open_for_read(ctx, raw.name()).ok();
    let lock = key.as_ref().and_then(Key::value);
    let now = clock::now();
    m.with(|s| {
        for (ended, token, client) in slice {
            if let Some((why, held_ms)) = ended {
                s.stats.ended(why, held_ms);
            }
            let Some(client) = client else { continue };
            let held = lock.and_then(|lock| lock.at(now).hold_of(token.as_bytes()));
            if held.is_none_or(|hold| hold.ephemeral() != Ephemeral::Bound(client)) {
                s.background.unbind(client, &name, &token);
            }
        }
        if !ended_holds.is_empty() {
            s.background.add_task(Task::EndedHolds(name, ended_holds));
        }
    });
}

/// Schedules another check of a queue while a string occupies its key.
///
/// The module polls because no server reports every removal of a string. Subscribing to the removals that a
/// server does report would slow down every write of every client.
pub fn check_string_later(m: &Module, name: &Name<'_>, now: Instant) {
    let (task, at) = (Task::Serve(name.to_owned()), next_check(now));
    m.with(|s| s.background.put_off(task, at));
}

/// Returns the end of the current interval of [`RETRY_MILLIS`]. All checks of an interval run together, so
/// that one dry run serves them all.
fn next_check(now: Instant) -> Deadline {
    Deadline::at_millis((now.millis() / RETRY_MILLIS + 1) * RETRY_MILLIS)
}

// Waits that end while the server refuses writes.

/// Ends the waits that have timed out, then arms the timer for the next check.
fn end_due_waits(m: &Module, start: u64) {
    let mut now = clock::now();
    while now.micros() <= start + MAX_RUN_MICROS
        && let Some((id, outcome)) = m.with(|s| s.waiting.next_over(now).map(|(w, outcome)| (w.id, outcome)))
    {
        end_wait(m, id, outcome, now);
        now = clock::now();
    }
    let next = m.with(|s| s.waiting.next_due()).map_or(u64::MAX, |until| until.left(now));
    m.arm_timer_in(next.min(RETRY_MILLIS), now.millis());
}

/// Puts a task off while the server is out of memory, because no lock is granted then. A wait that is over
/// ends all the same.
fn put_off(m: &Module, task: Task, now: Instant) {
    match task {
        Task::Over(_, id, outcome) => end_wait(m, id, outcome, now),
        task => m.with(|s| s.background.put_off(task, next_check(now))),
    }
}

/// Ends a wait without an operation on the lock.
fn end_wait(m: &Module, id: WaiterId, outcome: Outcome, now: Instant) {
    let ended = m.with(|s| {
        let ended = s.waiting.leave_all(id);
        // If the head of the queue has left, the waiters behind it may be compatible with the holders.
        if let Some(waiter) = ended.first()
            && s.waiting.head(&waiter.name).is_some_and(|head| (head.rank, head.id) > (waiter.rank, id))
        {
            s.background.add_task(Task::Serve(waiter.name.clone()));
        }
        ended
    });
    ended.into_iter().for_each(|waiter| waiters::answer(m, waiter, outcome, now));
}

// Waits that cannot end in a grant on this server.

/// Refuses the first waiters of a queue, at most [`EndedHolds::SLICE`].
fn refuse_some(m: &Module, name: &Name<'_>, why: &str) {
    for _ in 0..EndedHolds::SLICE {
        let Some(head) = m.with(|s| s.waiting.head(name).map(|head| head.id)) else { return };
        refuse(m, head, why);
    }
}

/// Refuses a waiter. If the waiter is a token with a queued wait (QUEUE), also refuses the connections that
/// block for the same token (BLOCK). A wait that has already timed out ends as a timeout.
fn refuse(m: &Module, id: WaiterId, why: &str) {
    let now = clock::now();
    let (outcome_if_over, waiters) = m.with(|s| {
        let outcome = s.waiting.get(id).and_then(|waiter| s.waiting.outcome_if_over(waiter, now));
        (outcome, s.waiting.leave_all(id))
    });
    for waiter in waiters {
        match outcome_if_over {
            Some(outcome) => waiters::answer(m, waiter, outcome, now),
            None => waiters::refuse(m, &waiter, why),
        }
    }
}

/// Schedules the refusal of every waiter with this error. Called from server events, in which the module must
/// not end a wait.
///
/// A server that becomes a replica, or whose cluster is down, usually unblocks the waiting connections
/// itself. There are two exceptions. Valkey does not do so when its cluster is down. Valkey 9 and later do
/// not when they become a replica, if they run in a cluster or the connection has sent
/// `CLIENT CAPA redirect`.
pub fn schedule_refusal_of_all_waiters(m: &Module, why: Error) {
    let any = m.with(|s| {
        s.refusal_of_all = Some(why).filter(|_| !s.waiting.is_empty());
        s.refusal_of_all.is_some()
    });
    if any {
        m.arm_timer_in(0, clock::now().millis());
    }
}

/// Refuses all waiters if [`schedule_refusal_of_all_waiters`] was called. Returns false if some of them
/// remain for the next run.
fn finish_scheduled_refusals(m: &Module, start: u64) -> bool {
    let Some(why) = m.with(|s| s.refusal_of_all.as_ref().map(Error::to_string)) else { return true };
    while let Some(head) = m.with(|s| s.waiting.any_head().map(|head| head.id)) {
        if clock::now().micros() > start + MAX_RUN_MICROS {
            return false;
        }
        refuse(m, head, &why);
    }
    m.with(|s| s.refusal_of_all = None);
    true
}
