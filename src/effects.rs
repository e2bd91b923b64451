//! The one place that changes Redis. What a core operation asks for is carried out in this order: store,
//! replicate, notify, wake. The key is closed before anybody is told, for a listener may change it.

mod announced;
mod logged;
mod waited;

use std::ffi::CStr;

use dlock_core::admission::Effect;
use dlock_core::codec::Plain;
use dlock_core::{Change, Event, Instant, Lock, Mode, Name, Step, Token, Turn, WaiterId};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;

use crate::ffi::{Ctx, Flags, KeyName, WrongType, c_text};
use crate::module::{Module, Place};
use crate::value::{Key, Value};
use crate::{clock, log, timer};

use announced::announce;
pub use announced::announce_freed;
use logged::Log;
pub use waited::{answer, publish};

/// One resource, open for an operation.
pub struct Target<'a> {
    m: &'a Module,
    ctx: Ctx<'a>,
    raw: KeyName<'a>,
    name: Name<'a>,
    key: Key<'a>,
    /// Stands for the value while there is no key.
    fresh: Option<Box<Value>>,
    /// A string, which counts as held by somebody who knows nothing of dlock: until it is gone nobody is
    /// granted anything, and there is nothing to store.
    is_strangers: bool,
    /// No client's command runs.
    in_background: bool,
    /// The command that runs, where it may be logged as it came.
    pub plain: Option<Plain<'a>>,
}

impl<'a> Target<'a> {
    /// `raw` and `key` are the same name, as the server has it and as bytes.
    #[inline(always)]
    pub fn open(m: &'a Module, ctx: Ctx<'a>, raw: KeyName<'a>, key: &'a [u8]) -> Result<Self, String> {
        let name = Name::new(ctx.db(), key);
        let key = Key::open_for_write(ctx, raw).map_err(|WrongType| Error::WrongType)?;
        Ok(Target::new(m, ctx, raw, name, key))
    }

    #[inline(always)]
    fn new(m: &'a Module, ctx: Ctx<'a>, raw: KeyName<'a>, name: Name<'a>, key: Key<'a>) -> Self {
        let (is_strangers, in_background) = (false, false);
        Target { m, ctx, raw, name, key, fresh: None, is_strangers, in_background, plain: None }
    }

    /// As [`Target::open`], for operations of the wait queue too: of a string where strings are honoured.
    #[inline(always)]
    pub fn open_to_wait(
        m: &'a Module,
        ctx: Ctx<'a>,
        raw: KeyName<'a>,
        key: &'a [u8],
    ) -> Result<Self, String> {
        let (open, is_strangers) = match Key::open_for_write(ctx, raw) {
            Ok(open) => (open, false),
            Err(WrongType) => open_strangers(m, ctx, raw)?,
        };
        let name = Name::new(ctx.db(), key);
        Ok(Target { is_strangers, ..Target::new(m, ctx, raw, name, open) })
    }

    pub fn is_strangers(&self) -> bool {
        self.is_strangers
    }

    /// As [`Target::open_to_wait`], where no client's command runs.
    pub fn open_in_background(
        m: &'a Module,
        ctx: Ctx<'a>,
        raw: KeyName<'a>,
        key: &'a [u8],
    ) -> Result<Self, String> {
        let target = Target::open_to_wait(m, ctx, raw, key)?;
        Ok(Target { in_background: true, ..target })
    }

    /// The stored value, if there is one.
    pub fn value(&mut self) -> Option<&mut Value> {
        self.key.value()
    }

    /// Lets the core decide at this moment, and carries out what it asks for.
    #[inline]
    pub fn operate<R>(mut self, decide: impl FnOnce(&mut Turn<'_>) -> R + Send) -> R {
        let now = clock::now();
        let is_strangers = self.is_strangers;
        let Target { m, name, key, fresh, .. } = &mut self;
        let lock = lock_of(m, key, fresh);
        let mut step = Step::default();
        let answer = m.with(|s| {
            let terms = if is_strangers { s.terms().with_no_grants() } else { s.terms() };
            step.long_hold = s.config.log_slower_than;
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
        if step.rest.is_some() {
            log::ended(self.m, self.ctx, &self.name, step, now);
        }
        let stored = if step.change.is_none() {
            if step.renewed {
                self.renewed();
            }
            Stored::Same
        } else {
            self.change(step, now)
        };
        self.key.close();
        announce(self.m, self.ctx, self.raw, &step.events, stored);
        if stored == Stored::DueSooner {
            timer::rearm(self.m);
        }
        if step.rest.is_some() {
            self.attend(step, now);
        }
    }

    /// Stores the lock as it is now, and tells those who follow.
    #[inline]
    fn change(&mut self, step: &Step, now: Instant) -> Stored {
        let log = self.log(&step.change, now);
        let existed = self.key.value().is_some();
        let stored = self.store();
        let followed = !matches!(log, Log::Nobody);
        self.replicate(log);
        if existed && stored != Stored::Deleted && (step.renewed || step.events.contains(&Event::Acquired)) {
            self.outlive(followed);
        }
        self.ctx.signal_modified(self.raw);
        stored
    }

    /// A lease was set anew, to what it was.
    #[inline(never)]
    fn renewed(&mut self) {
        if self.outlive(true) {
            self.ctx.signal_modified(self.raw);
        }
    }

    /// A time to live that somebody gave the key was for the leases of then. Whether there was one.
    #[inline(never)]
    fn outlive(&mut self, followed: bool) -> bool {
        let persisted = self.key.persist();
        if persisted && followed {
            self.ctx.replicate_persist(self.raw);
        }
        persisted
    }

    /// Somebody waits, or holds by a connection.
    #[inline(never)]
    fn attend(&mut self, step: &mut Step, now: Instant) {
        let Some(rest) = step.rest.take() else { return };
        if rest.unserved || step.events.iter().any(|event| matches!(event, Event::AllEnded(_))) {
            timer::rearm(self.m);
        }
        let answers = rest.outcomes.into_iter();
        answers.for_each(|(waiter, outcome)| answer(self.m, waiter, outcome, now));
    }

    #[inline(always)]
    fn replicate(&self, log: Log) {
        match log {
            Log::Effect(bytes) => self.replicate_effect(bytes),
            Log::AsItCame | Log::Nobody => self.ctx.replicate_verbatim(),
        }
    }

    #[inline(never)]
    fn replicate_effect(&self, bytes: Vec<u8>) {
        self.ctx.replicate(SET, self.raw, &bytes);
        // Those of a crowd are not kept.
        if bytes.capacity() <= MOST_KEPT {
            self.m.with(|s| s.buffer = bytes);
        }
    }

    /// Makes, updates or deletes the key.
    fn store(&mut self) -> Stored {
        let Target { m, name, key, fresh, .. } = self;
        let stored = key.value();
        let is_new = stored.is_none();
        let Some(value) = stored.or(fresh.as_deref_mut()) else { return Stored::Same };
        let is_gone = value.lock.is_gone();
        let due_sooner = m.with(|s| s.schedule(value, name.db, &name.key));
        match (is_new, is_gone) {
            (false, true) => {
                let spare = key.delete();
                m.with(|s| s.keep(spare));
                return Stored::Deleted;
            }
            (true, false) => _ = fresh.take().map(|value| key.set(value)),
            _ => {}
        }
        if due_sooner { Stored::DueSooner } else { Stored::Same }
    }
}

/// What holds something else: nothing is to be done with a string that counts as held.
#[cold]
fn open_strangers<'a>(m: &Module, ctx: Ctx<'a>, raw: KeyName<'a>) -> Result<(Key<'a>, bool), String> {
    if is_strangers(m, ctx, raw) {
        return Ok((Key::none(), true));
    }
    // A string may have expired between the two looks: whoever waits for that is not to be told of another
    // type.
    Ok((Key::open_for_write(ctx, raw).map_err(|WrongType| Error::WrongType)?, false))
}

/// Whether a key is a string that counts as held.
pub fn is_strangers(m: &Module, ctx: Ctx<'_>, key: KeyName<'_>) -> bool {
    m.with(|s| s.config.honour_strings) && Key::is_string(ctx, key)
}

/// What has become of a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Stored {
    /// It is there as before, or not.
    Same,
    /// The timer is too late now.
    DueSooner,
    Deleted,
}

/// So many bytes of an effect are kept for the next one.
const MOST_KEPT: usize = 64 * 1024;

/// The effect command.
pub const SET: &CStr = c_text!(table::SET.name);

/// The lock of an open key. A new one is made where it will be stored, so that it is never moved.
fn lock_of<'k>(m: &Module, key: &'k mut Key<'_>, fresh: &'k mut Option<Box<Value>>) -> &'k mut Lock {
    match key.value() {
        Some(value) => &mut value.lock,
        None => &mut fresh.get_or_insert_with(|| new_value(m)).lock,
    }
}

fn new_value(m: &Module) -> Box<Value> {
    match m.with(|s| s.spare.take()) {
        Some(mut spare) => {
            *spare = Value::default();
            spare
        }
        None => Box::default(),
    }
}

/// Takes in an effect: on a replica from its master, or from the append only file. Of that, too, a log is
/// kept here, whose readers may know other things: what it says by the clock of another boot is told anew, by
/// this server's, for to a file the wall clocks would have to be the same.
pub fn take_in(mut target: Target<'_>, effect: Effect, place: &Place) -> Result<(), String> {
    let Effect { last, written } = effect;
    let fence = written.greatest_fence();
    let Target { m, ctx, key, fresh, .. } = &mut target;
    let is_foreign = written.is_foreign(clock::anchor())
        && ctx.flags().intersection(Flags::AOF | Flags::LOADING) == Flags::AOF;
    let part = written.part().filter(|_| is_foreign);
    let lock = lock_of(m, key, fresh);
    if !written.apply(lock) {
        return Err("ERR the effect does not fit the lock it is meant for".into());
    }
    let is_crowd = matches!(lock.mode(), Some(Mode::Shared | Mode::Permits(_)));
    let change = part.filter(|_| is_crowd).map_or(Change::Whole, Change::Part);
    let is_readable = m.with(|s| {
        s.fences.raise(fence.max(last));
        !is_foreign && s.followers.can_read(place)
    });
    let log = if is_readable { Log::AsItCame } else { target.log(&change, clock::now()) };
    // No timer: a replica ends nothing by itself, and a loading server not yet.
    target.store();
    target.ctx.signal_modified(target.raw);
    target.replicate(log);
    Ok(())
}

/// Keys that a tick opens. They take about 0.1 ms.
const OPENED: usize = 256;

/// Opens the keys of some wait queues, so that the server deletes each whose native TTL has passed: it does
/// so when a key is opened, or by chance, which takes minutes among many keys with a TTL. The deletion ends
/// the hold, and the queue is served. Opened for writing, which counts as no read in the server's statistics.
pub fn open_queued_keys(m: &Module, ctx: Ctx<'_>) {
    let names = m.with(|s| {
        let queues = s.waiting.queues_behind(s.opened).take(OPENED);
        let queues: Vec<_> = queues.map(|(began, name)| (began, name.clone())).collect();
        s.opened = queues.get(OPENED - 1).map_or(WaiterId::default(), |(began, _)| *began);
        queues
    });
    for (_, name) in names {
        ctx.select_db(name.db);
        drop(Key::open_for_write(ctx, ctx.string(&name.key).name()));
    }
}

/// The connections that these holds of one resource are bound to are not known any more. Nobody is told: that
/// a hold is bound to one is stored, to which is not.
pub fn orphan(ctx: Ctx<'_>, name: &Name<'_>, tokens: impl Iterator<Item = Token>) {
    ctx.select_db(name.db);
    let raw = ctx.string(&name.key);
    if let Ok(mut key) = Key::open_for_read(ctx, raw.name())
        && let Some(value) = key.value()
    {
        tokens.for_each(|token| value.lock.orphan(token.as_bytes()));
    }
}
