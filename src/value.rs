//! What a key holds: a lock, and where it stands in the schedule.

use dlock_core::codec::{self, Anchor, Origin, Reader};
use dlock_core::schedule::Slot;
use dlock_core::{Change, Ephemeral, Lock, Name};

use crate::ffi::{Flags, notices, types};
use crate::scheduled::Scheduled;
use crate::state::{State, Task, with};
use crate::{clock, deadlines, effects, grace};

#[derive(Default)]
pub struct Value {
    pub lock: Lock,
    slot: ScheduledAt,
}

/// Where the lock is scheduled; nowhere for what is not at home in the keyspace (renamed away, not yet stored).
#[derive(Clone, Copy, PartialEq, Eq)]
struct ScheduledAt(Slot);

impl Default for ScheduledAt {
    fn default() -> Self {
        ScheduledAt(Slot::NONE)
    }
}

impl Value {
    /// Reads a lock that comes in under this name: from a file, over the replication link, or by RESTORE, whose bytes
    /// anybody may have written. The error says why it is refused.
    pub fn load(bytes: &[u8], db: i32, key: &[u8]) -> Result<Box<Value>, String> {
        let by_restore = with(|s| s.loading.is_none()) && types::flags_now().contains(Flags::MASTER);
        let loaded = Value::accept(bytes, db, key, by_restore);
        if loaded.is_err() && !by_restore {
            // A master, or the append only file, tells of a RESTORE that was good there.
            grace::effect_skipped();
        }
        loaded
    }

    fn accept(bytes: &[u8], db: i32, key: &[u8], by_restore: bool) -> Result<Box<Value>, String> {
        let now = clock::now();
        let (loading, longest) = with(|s| (s.loading, s.config.longest_lease()));
        // RESTORE is how keys migrate: the clocks of two machines need not agree.
        let reader = Reader { now, anchor: clock::anchor(), origin: loading.unwrap_or(Origin::Live) };
        let written = reader.read(bytes).map_err(|why| why.to_string())?;
        if !written.is_whole() {
            return Err("the bytes are a change of a lock, not a lock".into());
        }
        if by_restore && written.longest_ttl() > longest.millis() {
            return Err("its ttl is longer than dlock.max-ttl, or dlock.restart-grace".into());
        }
        if by_restore && written.longest_delay(now) > longest.millis() {
            return Err("its lock-delay is longer than dlock.max-ttl, or dlock.restart-grace".into());
        }
        let fence = written.greatest_fence();
        if by_restore && fence > with(|s| s.fence_bound(now)) {
            return Err("its fence is further ahead of this server's clock than the skew bound".into());
        }
        let mut value = Box::<Value>::default();
        written.apply(&mut value.lock);
        with(|s| {
            s.fences.raise(fence);
            value.schedule(s, db, key);
            if by_restore {
                // The server may yet drop it, as it does with a TTL that has passed: looked at once, in any case.
                s.pending.push_back(Task::Due(Name::new(db, key).to_owned(), value.slot.0));
            }
        });
        if loading.is_none() {
            deadlines::rearm();
        }
        Ok(value)
    }

    pub fn save(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        codec::write(&self.lock, &Change::Whole, clock::now(), clock::anchor(), &mut bytes);
        bytes
    }

    /// The effect that makes it anew, its key above all: later commands in the file may name that.
    pub fn effect(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        let (last, now, anchor) = (last_fence(), clock::now(), clock::anchor());
        if self.lock.is_gone() {
            codec::write_effect_of_nothing(last, now, anchor, &mut bytes);
        } else {
            codec::write_effect(&self.lock, &Change::Whole, last, now, anchor, &mut bytes);
        }
        bytes
    }

    /// Bytes it takes, its place in a row of the schedule and what binds its holds to connections included.
    pub fn memory(&self, key: usize) -> usize {
        let scheduled = if self.slot.0 == Slot::NONE { 0 } else { Scheduled::ENTRY_SIZE };
        let bindings = self.lock.bound() * State::binding_size(key);
        size_of::<Value>() - size_of::<Lock>() + self.lock.size() + scheduled + bindings
    }

    /// Feeds what has to be equal on a replica. Deadlines by the boot-time clock, which two servers of a machine share.
    pub fn digest(&self, anchor: Anchor, mut add: impl FnMut(&[u8])) {
        let delay = self.lock.delay_until().map(|until| until.millis() as i64 - anchor.offset);
        add(format!("{:?} {delay:?}", self.lock.mode()).as_bytes());
        let mut holds: Vec<_> = self.lock.stored().collect();
        holds.sort_by_key(|hold| hold.token());
        for hold in holds {
            add(hold.token().as_bytes());
            add(hold.label());
            let deadline = hold.deadline().millis() as i64 - anchor.offset;
            let granted = hold.granted().millis() as i64 - anchor.offset;
            let ephemeral = hold.ephemeral() != Ephemeral::No;
            let numbers = format!(
                "{} {deadline} {granted} {} {} {} {ephemeral}",
                hold.fence().get(),
                hold.ttl().millis(),
                hold.count(),
                hold.delay().millis()
            );
            add(numbers.as_bytes());
        }
    }

    /// Puts it into the schedule, moves it there or takes it out, by what it holds. `true` where it is due before the
    /// armed timer.
    pub fn schedule(&mut self, state: &mut State, db: i32, key: &[u8]) -> bool {
        let armed = state.timer.map_or(u64::MAX, |(_, for_ms)| for_ms);
        let Some(due) = self.lock.next_due() else {
            state.db(db).remove(self.slot.0);
            self.slot = ScheduledAt::default();
            return false;
        };
        self.slot.0 = state.db(db).put(self.slot.0, due, key, self.lock.stored_len());
        due.millis() < armed
    }

    /// Whether this is the lock that is scheduled there.
    pub fn is_scheduled_at(&self, slot: Slot) -> bool {
        self.slot.0 == slot
    }

    /// Its key is taken out of the keyspace. Where the value itself lives on under another name (RENAME, MOVE) it is
    /// no lock any more: the hold was of the resource, and the resource is a name.
    pub fn unlinked(&mut self, db: i32, key: &[u8]) {
        let slot = std::mem::take(&mut self.slot);
        if slot.0 != Slot::NONE {
            with(|s| s.db(db).remove(slot.0));
        }
        // Deleted by ourselves, all is said already.
        if self.lock.is_gone() {
            return;
        }
        let mut lock = std::mem::take(&mut self.lock);
        let name = Name::new(db, key);
        // A replica has no line to serve and tells nobody; its promotion must not find what its master did long ago.
        let master = types::flags_now().contains(Flags::MASTER);
        let heard = effects::is_heard(notices::background());
        with(|s| {
            match lock.take_vanished(clock::now()) {
                // Its job does not run.
                Some(crowd) if !master => drop(std::thread::spawn(move || drop(crowd))),
                Some(crowd) => s.pending.push_back(Task::Departed(name.to_owned(), Box::new(crowd))),
                None => {}
            }
            for hold in lock.stored() {
                if let Ephemeral::Bound(client) = hold.ephemeral() {
                    s.unbind(client, &name, hold.token());
                }
            }
            grace::taken_away(s, &name);
            if master && s.loading.is_none() && (heard || s.waiting.len_of(&name) > 0) {
                s.pending.push_back(Task::Vanished(name.to_owned()));
            }
        });
        deadlines::rearm();
    }
}

/// The greatest fence this server has issued or accepted.
pub fn last_fence() -> u64 {
    with(|s| s.fences.last())
}

/// False for a number that no fence can have.
pub fn raise_fence(number: u64) -> bool {
    with(|s| s.fences.raise(number));
    number <= dlock_core::Fence::MAX
}
