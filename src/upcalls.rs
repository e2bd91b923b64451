//! The callbacks of the server other than commands, including those of the key type. Most only call a
//! function of another file; the callbacks that read and write stored values are implemented here.

use std::ffi::CStr;

use dlock_core::admission;
use dlock_core::codec::{self, Origin, Reader};
use dlock_core::due_locks::DueLocks;
use dlock_core::plain::LogState;
use dlock_core::tasks::Task;
use dlock_core::{Change, Ephemeral, Fence, Lock, Name};

use crate::config::Config;
use crate::ffi::{Ctx, Flags, Handle, MainThread, Notice, Section, Upcalls, Waited};
use crate::module::{Loading, Module, free_in_background};
use crate::waiters::{self, Answer};
use crate::{background, clock, effects, grace, info, log, server_events};

/// Read by [`Upcalls::get`] only. Other code receives the module as an argument.
static MODULE: MainThread<Module> = MainThread::empty();

/// The version of Cargo.toml as MODULE LIST shows it, with two digits for each part: 100 for 0.1.0.
const fn packed_version() -> i32 {
    const fn number(text: &str) -> i32 {
        match i32::from_str_radix(text, 10) {
            Ok(number) if number < 100 => number,
            _ => panic!("not two digits"),
        }
    }
    let (major, minor) = (env!("CARGO_PKG_VERSION_MAJOR"), env!("CARGO_PKG_VERSION_MINOR"));
    (number(major) * 100 + number(minor)) * 100 + number(env!("CARGO_PKG_VERSION_PATCH"))
}

/// Creates the module of this process. Before that, the server's calls do nothing.
pub fn start(ctx: Ctx<'_>) -> &'static Module {
    MODULE.set(Module::new(ctx))
}

impl Upcalls for Module {
    type Value = Lock;
    type Answer = Answer;
    type Options = Config;

    const NAME: &'static CStr = c"dlock";
    const VERSION: i32 = packed_version();
    const TYPE: &'static CStr = c"dlock-key";
    const EFFECT: &'static CStr = effects::SET;

    #[inline]
    fn get() -> Option<&'static Module> {
        MODULE.get()
    }

    fn options<R>(&self, run: impl FnOnce(&mut Config) -> R + Send) -> R {
        self.with(|s| run(&mut s.config))
    }

    fn info(&self, section: &Section) {
        info::write(self, section);
    }

    fn notice(&self, ctx: Ctx<'_>, notice: Notice) {
        server_events::on_notice(self, ctx, notice);
    }

    fn evicted(&self, ctx: Ctx<'_>, db: i32, key: &[u8]) {
        grace::evicted(self, ctx, db, key);
    }

    fn on_timer(&self, ctx: Ctx<'_>) {
        background::on_timer(self, ctx);
    }

    fn deliver(&self, ctx: Ctx<'_>, answer: &mut Answer, waited: Waited) {
        answer.deliver(self, ctx, waited);
    }

    fn reply_reclaimed(&self, answer: Answer) {
        waiters::reply_reclaimed(self, answer);
    }

    fn gone(&self, handle: Handle) {
        waiters::gone(self, handle);
    }

    fn load(&self, bytes: &[u8], db: i32, key: &[u8]) -> Result<Box<Lock>, String> {
        let (loading, bounds) = self.with(|s| (s.loading, s.config.bounds));
        // A load may have millions of keys, so it does not call `server_flags` for each.
        let is_master = loading.is_none() && self.ctx().server_flags().contains(Flags::MASTER);
        let (origin, bounds) = admission::source(loading.map(|loading| loading.origin), is_master, bounds);
        // Only RESTORE on a master has bounds, which limit leases, delays and fences. Values of a file or of
        // the master were checked before.
        let is_restore = bounds.is_some();
        let now = match loading {
            // Every lease in the file was granted before the load began, so `began` can stand for the
            // current time. This saves a clock read for each key.
            Some(Loading { origin: Origin::Stored, began }) => began,
            _ => clock::now(),
        };
        let reader = Reader { now, anchor: clock::anchor(), origin };
        let written = reader.admit(bytes, bounds).inspect_err(|_| {
            if !is_restore {
                self.with(|s| s.stats.effects_skipped += 1);
            }
        })?;
        let (fence, is_foreign) = (written.greatest_fence(), written.is_foreign(reader.anchor));
        let mut lock = Box::<Lock>::default();
        written.apply(&mut lock);
        self.with(|s| {
            s.fences.raise(fence);
            s.schedule(&mut lock, db, key);
            // RESTORE may still drop the value, for example because its TTL has passed. So a task checks each
            // restored lock once, and removes the schedule entry of a lock that was dropped.
            if let Some(slot) = lock.slot().filter(|_| is_restore) {
                let name = Name::new(db, key).to_owned();
                // If the value has times of another machine's or boot's clock, `Task::Restored` replicates
                // the lock again, with times of this server's clock.
                if is_foreign {
                    s.background.add_task(Task::Restored(name.clone()));
                }
                s.background.add_task(Task::Due(name, slot));
            }
        });
        if loading.is_none() {
            self.rearm_timer();
        }
        Ok(lock)
    }

    fn save(&self, lock: &Lock) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::write(lock, &Change::Whole, clock::now(), clock::anchor(), &mut bytes);
        bytes
    }

    /// Returns the effect that creates this lock in a rewritten append only file. An empty lock has one, too:
    /// otherwise a later RENAME or MOVE of its key in the file would fail.
    fn effect(&self, lock: &Lock) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (last, now, anchor) = (self.with(|s| s.fences.last()), clock::now(), clock::anchor());
        if lock.is_gone() {
            codec::write_effect_of_nothing(last, now, anchor, &mut bytes);
        } else {
            codec::write_effect(lock, &Change::Whole, last, now, anchor, &mut bytes);
        }
        bytes
    }

    /// Adds each time as the boot-time clock shows it, because all servers on one machine share that clock.
    /// So a replica on the machine of its master has the same digest as the master.
    fn digest(&self, lock: &Lock, add: &mut dyn FnMut(&[u8])) {
        let offset = clock::anchor().offset;
        let delay = lock.delay_until().map(|until| until.millis() as i64 - offset);
        add(format!("{:?} {delay:?}", lock.mode()).as_bytes());
        let mut holds: Vec<_> = lock.stored().collect();
        holds.sort_by_key(|hold| hold.token());
        for hold in holds {
            add(hold.token().as_bytes());
            add(hold.label());
            let numbers = format!(
                "{} {} {} {} {} {} {}",
                hold.fence().get(),
                hold.deadline().millis() as i64 - offset,
                hold.granted().millis() as i64 - offset,
                hold.ttl().millis(),
                hold.count(),
                hold.delay().millis(),
                hold.ephemeral() != Ephemeral::No,
            );
            add(numbers.as_bytes());
        }
    }

    /// Includes the lock's entry in the schedule, and the bindings of its holds to connections.
    fn memory(&self, lock: &Lock) -> usize {
        lock.size() + lock.slot().map_or(0, |_| DueLocks::ENTRY_SIZE)
    }

    /// Ends the holds of a lock after the removal of its key, and empties the lock. RENAME and MOVE also
    /// remove the key, and store the value under another key, for which its holds were not granted.
    fn unlinked(&self, lock: &mut Lock, db: i32, key: &[u8]) {
        if let Some(slot) = lock.slot_mut().take() {
            self.with(|s| s.background.unschedule(slot, db));
        }
        if !lock.is_gone() {
            self.vanished(std::mem::take(lock), &Name::new(db, key));
        }
    }

    /// Returns the greatest fence that this server has issued or accepted, and the [`LogState`] (0 for none).
    /// With that state, a server that loads this snapshot continues in the middle of the replication stream
    /// or the append only file.
    fn stored_numbers(&self) -> [u64; 5] {
        let is_master = self.ctx().server_flags().contains(Flags::MASTER);
        self.with(|s| {
            let log_state = if is_master { s.followers.readers_state } else { s.replication_position };
            let [boot, offset, at, last_in_log] = log_state.map_or([0; 4], LogState::to_numbers);
            [s.fences.last(), boot, offset, at, last_in_log]
        })
    }

    fn load_numbers(&self, [last, boot, offset, at, last_in_log]: [u64; 5]) -> bool {
        self.with(|s| {
            s.fences.raise(last);
            s.replication_position = LogState::from_numbers([boot, offset, at, last_in_log]);
        });
        last <= Fence::MAX && last_in_log <= Fence::MAX
    }
}

impl Module {
    /// Accounts for a lock after the removal of its key by other means than RELEASE or expiry, for example
    /// DEL.
    #[inline(never)]
    fn vanished(&self, mut lock: Lock, name: &Name<'_>) {
        // Only a master serves queues and publishes events. A replica runs no background task. It also
        // records none: after its promotion, the tasks would publish the removals by its former master again.
        let master = self.ctx().server_flags().contains(Flags::MASTER);
        let has_listeners = self.has_listeners();
        if master {
            log::vanished(self, name, &lock, clock::now());
        }
        self.with(|s| {
            let unconfirmed = s.waiting.deliveries.forget(name);
            match lock.take_vanished(clock::now(), unconfirmed) {
                Some(ended) if !master => free_in_background(ended),
                Some(ended) => s.background.add_task(Task::EndedHolds(name.to_owned(), Box::new(ended))),
                None => {}
            }
            for hold in lock.stored() {
                if let Ephemeral::Bound(client) = hold.ephemeral() {
                    s.background.unbind(client, name, hold.token());
                }
            }
            s.evictions.removed(name);
            if master && s.loading.is_none() && (has_listeners || s.waiting.len_of(name) > 0) {
                s.background.add_task(Task::Vanished(name.to_owned()));
            }
        });
        self.rearm_timer();
    }
}
