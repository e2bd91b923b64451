//! The key type's callbacks: locks as they are read, written, and taken out of the keyspace.

use dlock_core::admission::{Clock, Source};
use dlock_core::codec;
use dlock_core::tasks::Task;
use dlock_core::{Change, Ephemeral, Fence, Name};

use crate::ffi::Flags;
use crate::module::Module;
use crate::value::Value;
use crate::{clock, followers, timer};

fn reader() -> Clock {
    Clock { now: clock::now(), anchor: clock::anchor() }
}

/// Reads a lock that comes in under this name: from a file, over the replication link, or by RESTORE. The
/// error says why it is refused.
pub fn load(m: &Module, bytes: &[u8], db: i32, key: &[u8]) -> Result<Box<Value>, String> {
    let (loading, bounds) = m.with(|s| (s.loading, s.config.bounds));
    // While keys are loaded, by the million, the server is not asked for each.
    let is_master = loading.is_none() && m.ctx().server_flags().contains(Flags::MASTER);
    let source = Source::of(loading, is_master);
    let written = reader().admit(bytes, source, bounds).map_err(|why| {
        if source != Source::Anybody {
            // A master, or the append only file, tells of a RESTORE that was good there.
            m.with(|s| s.effect_skipped());
        }
        why.to_string()
    })?;
    let fence = written.greatest_fence();
    let mut value = Box::<Value>::default();
    written.apply(&mut value.lock);
    m.with(|s| {
        s.fences.raise(fence);
        s.schedule(&mut value, db, key);
        // The server may yet drop it, as it does with a TTL that has passed: looked at once, in any case.
        if let Some(slot) = value.slot.filter(|_| source == Source::Anybody) {
            s.background.note(Task::Due(Name::new(db, key).to_owned(), slot));
        }
    });
    if loading.is_none() {
        timer::rearm(m);
    }
    Ok(value)
}

pub fn save(value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::write(&value.lock, &Change::Whole, clock::now(), clock::anchor(), &mut bytes);
    bytes
}

/// The effect that makes it anew, its key above all: later commands in the file may name that.
pub fn effect(m: &Module, value: &Value) -> Vec<u8> {
    let mut bytes = Vec::new();
    let (last, now, anchor) = (last_fence(m), clock::now(), clock::anchor());
    if value.lock.is_gone() {
        codec::write_effect_of_nothing(last, now, anchor, &mut bytes);
    } else {
        codec::write_effect(&value.lock, &Change::Whole, last, now, anchor, &mut bytes);
    }
    bytes
}

/// Its key is taken out of the keyspace. Where the value itself lives on under another name (RENAME, MOVE) it
/// is no lock any more: the hold was of the resource, and the resource is a name.
pub fn unlinked(m: &Module, value: &mut Value, db: i32, key: &[u8]) {
    if let Some(slot) = value.slot.take() {
        m.with(|s| s.background.unschedule(slot, db));
    }
    // Deleted by ourselves, all is said already.
    if value.lock.is_gone() {
        return;
    }
    let mut lock = std::mem::take(&mut value.lock);
    let name = Name::new(db, key);
    // A replica has no queue to serve and tells nobody; its promotion must not find what its master did long
    // ago.
    let master = m.ctx().server_flags().contains(Flags::MASTER);
    let heard = followers::is_heard(m);
    m.with(|s| {
        match lock.take_vanished(clock::now()) {
            // Its job does not run.
            Some(crowd) if !master => drop(std::thread::spawn(move || drop(crowd))),
            Some(crowd) => s.background.note(Task::Departed(name.to_owned(), Box::new(crowd))),
            None => {}
        }
        for hold in lock.stored() {
            if let Ephemeral::Bound(client) = hold.ephemeral() {
                s.background.unbind(client, &name, hold.token());
            }
        }
        s.evictions.taken_away(&name);
        if master && s.loading.is_none() && (heard || s.waiting.len_of(&name) > 0) {
            s.background.note(Task::Vanished(name.to_owned()));
        }
    });
    timer::rearm(m);
}

/// The greatest fence this server has issued or accepted.
pub fn last_fence(m: &Module) -> u64 {
    m.with(|s| s.fences.last())
}

/// False for a number that no fence can have.
pub fn raise_fence(m: &Module, number: u64) -> bool {
    m.with(|s| s.fences.raise(number));
    number <= Fence::MAX
}
