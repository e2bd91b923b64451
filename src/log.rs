//! DLOCK.LOG: records incidents, with the address of the client if it is still connected.

use dlock_core::background::Db;
use dlock_core::log::{Incident, IncidentKind};
use dlock_core::{ClientId, Event, Instant, Lock, LockRequestRef, Name, Outcome, Step, Token, Waiter};

use crate::clock;
use crate::ffi::Ctx;
use crate::module::Module;

fn record(m: &Module, ctx: Ctx<'_>, mut incident: Incident, now: Instant) {
    if let Some(ClientId(id)) = incident.client {
        incident.address = ctx.address(id).unwrap_or_default().as_bytes().into();
    }
    m.with(|s| s.log.push(incident, now, s.config.log_max_len));
}

/// Records the incidents of an operation: holds that ended, or only the lock if many holds ended at once, and
/// holds that began with another number of permits than the one before.
#[inline(never)]
pub fn incidents(m: &Module, ctx: Ctx<'_>, name: &Name<'_>, step: &mut Step, now: Instant) {
    let Some(rare) = &mut step.rare_effects else { return };
    for (why, hold) in rare.incidents.drain(..) {
        record(m, ctx, Incident::of_hold(why.into(), name, &hold, now), now);
    }
    for hold in rare.limit_changes.drain(..) {
        record(m, ctx, Incident::of_hold(IncidentKind::LimitChanged, name, &hold, now), now);
    }
    for event in &step.events {
        if let Event::AllEnded(why) = event {
            record(m, ctx, Incident::new((*why).into(), name), now);
        }
    }
}

/// Records the holds of a lock after its key was removed. If there are many holds, records only the lock.
pub fn vanished(m: &Module, name: &Name<'_>, lock: &Lock, now: Instant) {
    const MAX_RECORDED_HOLDS: usize = 8;
    let lock = lock.at(now);
    match lock.holders() {
        0 => {}
        1..=MAX_RECORDED_HOLDS => {
            lock.holds().for_each(|hold| {
                record(m, m.ctx(), Incident::of_hold(IncidentKind::Vanished, name, hold, now), now);
            });
        }
        _ => record(m, m.ctx(), Incident::new(IncidentKind::Vanished, name), now),
    }
}

/// Records the locks of a flushed database, or of all databases, up to the length of the log.
pub fn flushed(m: &Module, db: Option<i32>, emptied: &[Db]) {
    let now = clock::now();
    m.with(|s| {
        let max_len = s.config.log_max_len;
        let keys = emptied.iter().enumerate().flat_map(|(at, emptied)| {
            let db = db.unwrap_or(at as i32);
            // The slots of `scheduled` have the keys of the locks. A free slot has no key.
            emptied.scheduled.slots(0).filter_map(move |(_, key)| Some(Name::new(db, key?)))
        });
        keys.take(max_len)
            .for_each(|name| s.log.push(Incident::new(IncidentKind::Vanished, &name), now, max_len));
    });
}

/// Records a long wait that has ended.
pub fn waited(m: &Module, waiter: &Waiter, outcome: &Outcome, now: Instant) {
    let waited = now.millis_since(waiter.since);
    if m.with(|s| s.config.log_slower_than).is_some_and(|long| waited >= long.into()) {
        let fence = match outcome {
            Outcome::Granted(fence, _) => Some(*fence),
            Outcome::TimedOut | Outcome::Cancelled | Outcome::Left | Outcome::Refused(_) => None,
        };
        record(m, m.ctx(), Incident::of_wait(IncidentKind::LongWait, waiter, fence, now), now);
    }
}

/// Records that the client of the running command was not allowed to wait.
pub fn refused(m: &Module, ctx: Ctx<'_>, kind: IncidentKind, name: &Name<'_>, request: &LockRequestRef<'_>) {
    let refused = Incident::new(kind, name).with_token(request.token.as_bytes(), request.label.as_bytes());
    record(m, ctx, Incident { client: Some(ClientId(ctx.client_id())), ..refused }, clock::now());
}

/// Records a grant that reached no client, with its hold if the lock still has it.
pub fn undelivered(m: &Module, ctx: Ctx<'_>, name: &Name<'_>, token: &Token, lock: Option<&Lock>) {
    let now = clock::now();
    let undelivered = match lock.and_then(|lock| lock.at(now).hold_of(token.as_bytes())) {
        Some(hold) => Incident::of_hold(IncidentKind::Undelivered, name, hold, now),
        None => Incident::new(IncidentKind::Undelivered, name).with_token(token.as_bytes(), b""),
    };
    record(m, ctx, undelivered, now);
}
