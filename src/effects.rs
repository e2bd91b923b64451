//! The one place that changes Redis. What a core operation asks for is carried out in this order: store, replicate,
//! notify, wake. The key is closed before anybody is told, for a listener may change it.

use std::ffi::CStr;

use dlock_core::{Binding, Change, End, Event, Instant, Lock, Name, Step, Terms, Turn, codec};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;
use dlock_protocol::event;

use crate::ffi::{Ctx, Key, WrongType, rm};
use crate::state::{State, Task, with};
use crate::value::Value;
use crate::{clock, deadlines, waiters};

/// One resource, open for an operation.
pub struct Target<'a> {
    ctx: Ctx<'a>,
    raw: *mut rm::RedisModuleString,
    pub name: Name<'a>,
    key: Key<'a>,
    /// Stands for the value while there is no key.
    fresh: Option<Box<Value>>,
    /// No client's command runs.
    in_background: bool,
}

impl<'a> Target<'a> {
    /// `raw` and `key` are the same name, as the server has it and as bytes.
    #[inline]
    pub fn open(ctx: Ctx<'a>, raw: *mut rm::RedisModuleString, key: &'a [u8]) -> Result<Self, String> {
        let name = Name::new(ctx.db(), key);
        let key = Key::open_for_write(ctx, raw).map_err(|WrongType| Error::WrongType)?;
        Ok(Target { ctx, raw, name, key, fresh: None, in_background: false })
    }

    /// As [`Target::open`], where no client's command runs.
    pub fn open_in_background(
        ctx: Ctx<'a>,
        raw: *mut rm::RedisModuleString,
        key: &'a [u8],
    ) -> Result<Self, String> {
        let target = Target::open(ctx, raw, key)?;
        Ok(Target { in_background: true, ..target })
    }

    /// The stored value, if there is one.
    pub fn value(&mut self) -> Option<&mut Value> {
        self.key.value()
    }

    /// Lets the core decide at this moment, and carries out what it asks for.
    #[inline]
    pub fn operate<R>(mut self, decide: impl FnOnce(&mut Turn<'_>) -> R) -> R {
        let now = clock::now();
        let Target { name, key, fresh, .. } = &mut self;
        let lock = lock_of(key, fresh);
        let mut step = Step::default();
        let answer = with(|s| {
            let terms = Terms {
                grants_from: s.grace.grants_from(),
                longest_lease: s.config.longest_lease(),
                most_holders: s.config.max_holders,
            };
            let mut turn = Turn::new(now, terms, name, &mut s.fences, &mut s.waiting, lock, &mut step);
            let answer = decide(&mut turn);
            turn.finish();
            s.account(name, &mut step);
            answer
        });
        self.carry_out(&mut step, now);
        answer
    }

    fn carry_out(&mut self, step: &mut Step, now: Instant) {
        let (mut deleted, mut rearm) = (false, false);
        // A time to live that somebody gave the key was for the leases of then.
        if step.change.is_none() {
            if step.renewed && self.key.persist() {
                self.ctx.replicate_persist(self.raw);
                self.ctx.signal_modified(self.raw);
            }
        } else {
            let effect = self.effect(&step.change, now);
            let existed = self.key.value().is_some();
            (deleted, rearm) = self.store();
            let outlives = existed && (step.renewed || step.events.contains(&Event::Acquired));
            let persisted = outlives && self.key.persist();
            let followed = effect.is_some();
            self.replicate(effect);
            if persisted && followed {
                self.ctx.replicate_persist(self.raw);
            }
            self.ctx.signal_modified(self.raw);
        }
        self.key.close();
        let (ctx, raw) = (self.ctx, self.raw);
        if !step.events.is_empty() || deleted {
            announce(ctx, raw, &step.events, deleted);
        }
        let all_ended = step.events.iter().any(|event| matches!(event, Event::AllEnded(_)));
        if rearm || all_ended {
            deadlines::rearm();
        }
        if let Some(rest) = step.rest.take() {
            rest.outcomes.into_iter().for_each(|(waiter, outcome)| waiters::answer(waiter, outcome, now));
        }
    }

    /// The bytes of a change. None where nobody can follow, which spares a third of a command.
    fn effect(&mut self, change: &Change, now: Instant) -> Option<Vec<u8>> {
        let in_background = self.in_background;
        let (mut bytes, last) = with(|s| {
            (s.followed || in_background).then(|| (std::mem::take(&mut s.buffer), s.fences.last()))
        })?;
        let Target { key, fresh, .. } = self;
        let lock = lock_of(key, fresh);
        bytes.clear();
        codec::write_effect(lock, change, last, now, clock::anchor(), &mut bytes);
        Some(bytes)
    }

    fn replicate(&self, effect: Option<Vec<u8>>) {
        match effect {
            Some(bytes) => {
                self.ctx.replicate(SET, self.raw, &bytes);
                // Those of a crowd are not kept.
                if bytes.capacity() <= MOST_KEPT {
                    with(|s| s.buffer = bytes);
                }
            }
            None => self.ctx.replicate_verbatim(),
        }
    }

    /// Makes, updates or deletes the key. Answers whether it was deleted, and whether the timer is too late now.
    fn store(&mut self) -> (bool, bool) {
        let Target { name, key, fresh, .. } = self;
        match key.value() {
            Some(value) if value.lock.is_gone() => {
                let spare = key.delete();
                with(|s| s.spare = spare);
                (true, false)
            }
            Some(value) => (false, with(|s| value.schedule(s, name.db, &name.key))),
            None => match fresh.take().filter(|value| !value.lock.is_gone()) {
                Some(mut value) => {
                    let rearm = with(|s| value.schedule(s, name.db, &name.key));
                    key.set(value);
                    (false, rearm)
                }
                None => (false, false),
            },
        }
    }
}

/// So many bytes of an effect are kept for the next one.
const MOST_KEPT: usize = 64 * 1024;

const SET: &CStr = c"DLOCK._SET";
const _: () = assert!(table::SET.name.len() == SET.to_bytes().len());

/// The lock of an open key. A new one is made where it will be stored, so that it is never moved.
fn lock_of<'k>(key: &'k mut Key<'_>, fresh: &'k mut Option<Box<Value>>) -> &'k mut Lock {
    match key.value() {
        Some(value) => &mut value.lock,
        None => &mut fresh.get_or_insert_with(new_value).lock,
    }
}

fn new_value() -> Box<Value> {
    match with(|s| s.spare.take()) {
        Some(mut spare) => {
            *spare = Value::default();
            spare
        }
        None => Box::default(),
    }
}

/// Whether anybody may hear of what happens to locks.
pub fn is_heard(ctx: Ctx<'_>) -> bool {
    with(|s| s.alone) != Some(true) || ctx.announces().0
}

/// Tells listeners, where there may be any: see [`crate::followers`].
fn announce(ctx: Ctx<'_>, key: *mut rm::RedisModuleString, events: &[Event], deleted: bool) {
    let alone = with(|s| s.alone) == Some(true);
    let (module_events, generic_events) = ctx.announces();
    if module_events || !alone {
        events.iter().for_each(|event| ctx.notify(event_name(*event), key));
    }
    if deleted && (generic_events || !alone) {
        ctx.notify_generic(c"del", key);
    }
}

pub fn event_name(event: Event) -> &'static CStr {
    match event {
        Event::Acquired => event::ACQUIRE,
        Event::Extended => event::EXTEND,
        Event::Downgraded => event::DOWNGRADE,
        Event::Ended(why, _) | Event::AllEnded(why) => match why {
            End::Released => event::RELEASE,
            End::Expired => event::EXPIRED,
            End::Disconnected => event::DISCONNECT,
            End::Broken => event::BREAK,
        },
        Event::Freed => event::FREE,
    }
}

impl State {
    /// Counts what happened, and keeps the books of the connections that holds are bound to.
    fn account(&mut self, name: &Name<'_>, step: &mut Step) {
        self.stats.count(&step.events);
        let Some(rest) = &mut step.rest else { return };
        for binding in &rest.bindings {
            match binding {
                Binding::Begins(client, token) => self.bind(*client, name, token.clone()),
                Binding::Ends(client, token) => self.unbind(*client, name, token),
            }
        }
        for departed in rest.departed.drain(..) {
            self.pending.push_back(Task::Departed(name.to_owned(), Box::new(departed)));
        }
    }
}

/// Takes in an effect: on a replica from its master, or from the append only file.
pub fn take_in(mut target: Target<'_>, written: codec::Written, last: u64) -> Result<(), String> {
    let fence = written.greatest_fence();
    let Target { key, fresh, .. } = &mut target;
    let lock = lock_of(key, fresh);
    if !written.apply(lock) {
        return Err("ERR the effect does not fit the lock it is meant for".into());
    }
    with(|s| s.fences.raise(fence.max(last)));
    // No timer: a replica ends nothing by itself, and a loading server not yet.
    target.store();
    target.ctx.signal_modified(target.raw);
    Ok(())
}
