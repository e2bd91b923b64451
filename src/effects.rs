//! The one place that changes the keyspace. Carries out what an operation of the core asks for (its
//! [`Step`]), in this order: store, replicate, announce, answer waiters.
//!
//! The key is closed before anything is announced, because a listener may change it.

use std::ffi::CStr;

use dlock_core::codec::{self, Effect};
use dlock_core::plain::{LogState, Plain};
use dlock_core::{Change, End, Event, Grants, Instant, Lock, Mode, Name, Step, Token, Turn, WaiterId};
use dlock_protocol::command::table;
use dlock_protocol::error::Error;
use dlock_protocol::event;

use crate::ffi::{Ctx, EventFlags, Flags, KeyName, WrongType, c_text};
use crate::followers::LogPosition;
use crate::module::{Key, Module};
use crate::{clock, followers, log, waiters};

/// Name of `DLOCK._SET`, the command that carries an effect to replicas and the append only file.
pub const SET: &CStr = c_text!(table::SET.name);

/// The key of one resource, open for an operation.
pub struct Target<'a> {
    m: &'a Module,
    ctx: Ctx<'a>,
    raw: KeyName<'a>,
    name: Name<'a>,
    key: Key<'a>,
    /// The lock of a key that does not exist yet. The box becomes the value of the key.
    fresh: Option<Box<Lock>>,
    /// Whether the key is a string that counts as a lock of another library. Nothing is granted or stored
    /// until the string is gone.
    pub held_by_string: bool,
    /// True in the background job, where no command runs that could be replicated verbatim.
    in_background: bool,
    /// The running command, if it may be replicated verbatim instead of an effect.
    pub plain: Option<Plain<'a>>,
}

/// What [`Target::carry_out`] needs of the module's state, which is borrowed only during the operation.
struct Facts {
    /// Whether the lock's next deadline is earlier than the end of the armed timer.
    due_sooner: bool,
    /// Whether replicas or the append only file may get the change.
    followed: bool,
    other_modules_may_listen: bool,
}

impl<'a> Target<'a> {
    /// Opens a key. `raw` and `name` are the same name: the server's string, and its bytes.
    #[inline(always)]
    pub fn open(m: &'a Module, ctx: Ctx<'a>, raw: KeyName<'a>, name: &'a [u8]) -> Result<Self, String> {
        Ok(Target::new(m, ctx, raw, name, Key::open_for_write(ctx, raw)?))
    }

    #[inline(always)]
    fn new(m: &'a Module, ctx: Ctx<'a>, raw: KeyName<'a>, name: &'a [u8], key: Key<'a>) -> Self {
        let (name, held_by_string, in_background) = (Name::new(ctx.db(), name), false, false);
        Target { m, ctx, raw, name, key, fresh: None, held_by_string, in_background, plain: None }
    }

    /// Like [`Target::open`], but also opens a string if `dlock.honour-strings` is on: clients can wait
    /// for its removal.
    #[inline(always)]
    pub fn open_to_wait(
        m: &'a Module,
        ctx: Ctx<'a>,
        raw: KeyName<'a>,
        name: &'a [u8],
    ) -> Result<Self, String> {
        match Key::open_for_write(ctx, raw) {
            Ok(key) => Ok(Target::new(m, ctx, raw, name, key)),
            Err(WrongType) => Target::open_other(m, ctx, raw, name),
        }
    }

    /// Opens a key with a value of another type. A string that counts as held is opened without its value.
    #[cold]
    fn open_other(m: &'a Module, ctx: Ctx<'a>, raw: KeyName<'a>, name: &'a [u8]) -> Result<Self, String> {
        if held_by_string(m, ctx, raw) {
            return Ok(Target { held_by_string: true, ..Target::new(m, ctx, raw, name, Key::none()) });
        }
        // The string may have expired since the first open, and a waiter must not get WRONGTYPE for that.
        Target::open(m, ctx, raw, name)
    }

    /// Like [`Target::open_to_wait`], for the background job.
    pub fn open_in_background(
        m: &'a Module,
        ctx: Ctx<'a>,
        raw: KeyName<'a>,
        name: &'a [u8],
    ) -> Result<Self, String> {
        let target = Target::open_to_wait(m, ctx, raw, name)?;
        Ok(Target { in_background: true, ..target })
    }

    /// Returns the stored lock, if the key exists.
    pub fn lock(&self) -> Option<&Lock> {
        self.key.value()
    }

    /// Runs one operation of the core at this moment, and carries out its [`Step`].
    #[inline]
    pub fn operate<R>(mut self, operation: impl FnOnce(&mut Turn<'_>) -> R + Send) -> R {
        let now = clock::now();
        let (held_by_string, in_background) = (self.held_by_string, self.in_background);
        let Target { m, name, key, fresh, .. } = &mut self;
        let stored = key.value_mut();
        let mut step = Step::default();
        let (answer, facts) = m.with(|s| {
            let lock = match stored {
                Some(lock) => lock,
                None => fresh.insert(s.new_lock()),
            };
            let mut terms = s.terms();
            if held_by_string && s.grace_left(now) == 0 {
                terms.grants = Grants::HeldByString;
            }
            step.long_hold = s.config.log_slower_than;
            let mut turn = Turn::new(now, terms, name, &mut s.fences, &mut s.waiting, &mut *lock, &mut step);
            let answer = operation(&mut turn);
            turn.finish();
            s.account(name, &mut step);
            let facts = Facts {
                due_sooner: !step.change.is_none() && s.schedule(lock, name.db, &name.key),
                followed: in_background || s.followers.may_follow,
                other_modules_may_listen: s.followers.other_modules_may_listen(),
            };
            (answer, facts)
        });
        self.carry_out(&mut step, &facts, now);
        answer
    }

    fn carry_out(&mut self, step: &mut Step, facts: &Facts, now: Instant) {
        if step.rare_effects.is_some() {
            log::incidents(self.m, self.ctx, &self.name, step, now);
        }
        let mut deleted = false;
        if !step.change.is_none() {
            deleted = self.change(step, facts, now);
        } else if step.renewed && self.clear_key_ttl(true) {
            self.ctx.signal_modified(self.raw);
        }
        self.key.close();
        self.announce(&step.events, deleted, facts);
        if facts.due_sooner {
            self.m.rearm_timer();
        }
        if step.rare_effects.is_some() {
            self.answer_waiters(step, now);
        }
    }

    /// Stores the changed lock and replicates the change. Returns whether the key was deleted.
    #[inline]
    fn change(&mut self, step: &Step, facts: &Facts, now: Instant) -> bool {
        let form = if facts.followed { self.log_form(&step.change, now) } else { LogForm::Verbatim };
        let existed = self.key.value().is_some();
        let deleted = self.store();
        self.replicate(form);
        if existed && !deleted && (step.renewed || step.events.contains(&Event::Acquired)) {
            self.clear_key_ttl(facts.followed);
        }
        self.ctx.signal_modified(self.raw);
        deleted
    }

    /// Creates the key of a new lock, or deletes the key of a lock without holds and lock-delay. Returns
    /// whether the key was deleted.
    #[inline]
    fn store(&mut self) -> bool {
        match (self.key.value(), self.fresh.as_deref()) {
            (Some(lock), _) if lock.is_gone() => {
                let spare = self.key.delete();
                self.m.with(|s| s.keep_spare(spare));
                return true;
            }
            (None, Some(lock)) if !lock.is_gone() => {
                if let Some(lock) = self.fresh.take() {
                    self.key.set(lock);
                }
            }
            _ => {}
        }
        false
    }

    /// Clears a TTL that another command, such as EXPIRE, has set on the key for an earlier lease. Returns
    /// whether the key had a TTL.
    #[inline(never)]
    fn clear_key_ttl(&mut self, followed: bool) -> bool {
        let cleared = self.key.persist();
        if cleared && followed {
            self.ctx.replicate_persist(self.raw);
        }
        cleared
    }

    /// Answers the waiters that have left the queue. Rearms the timer if the operation has left work to the
    /// background job: more waiters to serve, or many ended holds to count.
    #[inline(never)]
    fn answer_waiters(&mut self, step: &mut Step, now: Instant) {
        let Some(rare) = step.rare_effects.take() else { return };
        if rare.unserved || step.events.iter().any(|event| matches!(event, Event::AllEnded(_))) {
            self.m.rearm_timer();
        }
        let answers = rare.outcomes.into_iter();
        answers.for_each(|(waiter, outcome)| waiters::answer(self.m, waiter, outcome, now));
    }
}

/// The reply to a command for a key that holds data.
impl From<WrongType> for String {
    fn from(_: WrongType) -> String {
        Error::WrongType.into()
    }
}

/// Returns whether the key is a string that counts as held (`dlock.honour-strings`).
pub fn held_by_string(m: &Module, ctx: Ctx<'_>, key: KeyName<'_>) -> bool {
    m.with(|s| s.config.honour_strings) && Key::is_string(ctx, key)
}

// Replication. The log of a server is its replication stream and its append only file. The readers of the log
// are the replicas, and a server that loads the file.

/// The form in which replicas and the append only file get a change.
enum LogForm {
    /// As an effect: a `DLOCK._SET` with these bytes, which contain the changed lock.
    Effect(Vec<u8>),
    /// The running command itself. Also used if nothing follows this server: the command then reaches
    /// nothing, and costs less than an effect.
    Verbatim,
}

/// Capacity up to which the buffer of an effect is kept for the next one, in bytes.
const MAX_BUFFER: usize = 64 * 1024;

impl Target<'_> {
    #[inline(never)]
    fn log_form(&self, change: &Change, now: Instant) -> LogForm {
        let Target { m, ctx, key, fresh, plain, .. } = self;
        // Always `Some`: after an operation or an applied effect, the lock is in the key or in `fresh`.
        let Some(lock) = key.value().or(fresh.as_deref()) else { return LogForm::Verbatim };
        let anchor = clock::anchor();
        // A RELEASE that frees the lock is always logged verbatim. It builds on no earlier entry of the log,
        // so `advance_if_exact` gets no state of the log.
        if plain.is_some_and(|plain| plain.advance_if_exact(&mut None, lock, anchor)) {
            return LogForm::Verbatim;
        }
        // An ACQUIRE is logged verbatim if readers derive exactly this hold from the last effect and the
        // ACQUIREs since that effect (`readers_state`).
        let next_entry_can_build_on_this = followers::next_entry_can_build_on_this(*ctx);
        m.with(|s| {
            let state = &mut s.followers.readers_state;
            if plain.is_some_and(|plain| {
                next_entry_can_build_on_this && plain.advance_if_exact(state, lock, anchor)
            }) {
                return LogForm::Verbatim;
            }
            let (mut bytes, last) = (std::mem::take(&mut s.buffer), s.fences.last());
            *state = next_entry_can_build_on_this.then_some(LogState {
                written_by: anchor,
                at: now.millis(),
                last,
            });
            bytes.clear();
            codec::write_effect(lock, change, last, now, anchor, &mut bytes);
            LogForm::Effect(bytes)
        })
    }

    #[inline(always)]
    fn replicate(&self, form: LogForm) {
        match form {
            LogForm::Effect(bytes) => self.replicate_effect(bytes),
            LogForm::Verbatim => self.ctx.replicate_verbatim(),
        }
    }

    #[inline(never)]
    fn replicate_effect(&self, bytes: Vec<u8>) {
        self.ctx.replicate(SET, self.raw, &bytes);
        if bytes.capacity() <= MAX_BUFFER {
            self.m.with(|s| s.buffer = bytes);
        }
    }
}

/// Applies an effect that a replica receives from its master, or that a server loads from its file.
///
/// A replica with an append only file logs the effect again. If another machine wrote the effect, its times
/// are first converted to this server's clock: leases count from the arrival of the effect. A reader of the
/// file does not know when the effect arrived, and would have to trust the wall clocks of both machines.
pub fn apply(mut target: Target<'_>, effect: Effect, position: &LogPosition) -> Result<(), String> {
    let Effect { last, written } = effect;
    let fence = written.greatest_fence();
    let Target { m, ctx, name, key, fresh, .. } = &mut target;
    let writes_file = ctx.flags().intersection(Flags::AOF | Flags::LOADING) == Flags::AOF;
    let is_rewritten = writes_file && written.is_foreign(clock::anchor());
    let part = written.changed_tokens().filter(|_| is_rewritten);
    let lock = match key.value_mut() {
        Some(lock) => lock,
        None => fresh.insert(m.with(|s| s.new_lock())),
    };
    if !written.apply(lock) {
        return Err("ERR the effect does not fit the lock it is meant for".into());
    }
    // Only a lock that can have several holders is logged in parts.
    let has_parts = matches!(lock.mode(), Some(Mode::Shared | Mode::Permits(_)));
    let change = part.filter(|_| has_parts).map_or(Change::Whole, Change::Part);
    let (can_pass_on, followed) = m.with(|s| {
        s.fences.raise(fence.max(last));
        // The timer is not armed: neither a replica nor a loading server ends a hold by itself.
        s.schedule(lock, name.db, &name.key);
        // The running command is passed on verbatim only if the readers of this server's log have the state
        // that the command builds on.
        (!is_rewritten && s.followers.advance_past(position), s.followers.may_follow)
    });
    let form =
        if can_pass_on || !followed { LogForm::Verbatim } else { target.log_form(&change, clock::now()) };
    target.store();
    target.ctx.signal_modified(target.raw);
    target.replicate(form);
    Ok(())
}

// Announcements.

impl Target<'_> {
    /// Announces events to listeners, if there may be any.
    #[inline]
    fn announce(&self, events: &[Event], deleted: bool, facts: &Facts) {
        let flags = if facts.other_modules_may_listen { EventFlags::all() } else { self.ctx.event_flags() };
        if flags.intersects(EventFlags::MODULE | EventFlags::GENERIC) {
            self.announce_to(flags, events, deleted);
        }
    }

    #[inline(never)]
    fn announce_to(&self, flags: EventFlags, events: &[Event], deleted: bool) {
        if flags.contains(EventFlags::MODULE) {
            events.iter().for_each(|event| self.ctx.notify(EventFlags::MODULE, event_name(*event), self.raw));
        }
        if deleted && flags.contains(EventFlags::GENERIC) {
            self.ctx.notify(EventFlags::GENERIC, c"del", self.raw);
        }
    }
}

/// Announces that a resource has become free because a command has overwritten its key with another data
/// type.
pub fn announce_freed(ctx: Ctx<'_>, name: &Name<'_>) {
    ctx.notify(EventFlags::MODULE, event_name(Event::Freed), ctx.string(&name.key).name());
}

fn event_name(event: Event) -> &'static CStr {
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

// Keys outside of an operation.

/// Number of keys that one tick of the server's cron opens, which takes about 0.1 ms.
const KEYS_PER_TICK: usize = 256;

/// Opens the keys of some wait queues, so that the server deletes every key with a native TTL that has
/// passed. A deletion ends the hold, and the queue is served.
///
/// The server deletes a key past its TTL when a command names the key, or when its expire cycle meets the key
/// at random. Among many keys with a TTL, that takes minutes. The keys are opened for writing, because the
/// server's statistics count the keys that are opened for reading.
pub fn open_queued_keys(m: &Module, ctx: Ctx<'_>) {
    if !ctx.may_write() {
        return;
    }
    let queues = m.with(|s| {
        let queues = s.waiting.queues_behind(s.last_opened_queue).take(KEYS_PER_TICK);
        let queues: Vec<_> = queues.map(|(began, name)| (began, name.clone())).collect();
        // After the last queue, the next tick begins at the first one again.
        s.last_opened_queue = queues.get(KEYS_PER_TICK - 1).map_or(WaiterId::default(), |(began, _)| *began);
        queues
    });
    for (_, name) in queues {
        ctx.select_db(name.db);
        drop(Key::open_for_write(ctx, ctx.string(&name.key).name()));
    }
}

/// Marks EPHEMERAL holds on one resource as bound to no connection. The mark needs neither storing nor
/// replication: the stored bytes of a hold do not say to which connection it is bound.
pub fn orphan(ctx: Ctx<'_>, name: &Name<'_>, tokens: impl Iterator<Item = Token>) {
    ctx.select_db(name.db);
    let raw = ctx.string(&name.key);
    if let Ok(mut key) = Key::open_for_read(ctx, raw.name())
        && let Some(lock) = key.value_mut()
    {
        tokens.for_each(|token| lock.orphan(token.as_bytes()));
    }
}
