//! The locks of one database, and the number of holders of each. The locks are sorted by the time at which
//! the background job must next handle them. A lock is due when a lease or a lock-delay ends. A lock-delay is
//! the pause before the next grant after a hold that expired or lost its connection.
//!
//! The value of each lock contains its slot in this structure. When the key is deleted, the lock is removed
//! here by that slot. The server may drop a value that it has just read from RESTORE or a file, for example
//! because the key's TTL has passed. It does not notify the module of this. The background job finds the
//! stale entry: at once after RESTORE on a master, otherwise when the entry is due.

use std::collections::BTreeMap;

use dlock_protocol::{Bytes, Deadline};

use crate::schedule::{Schedule, Slot};

#[derive(Default)]
pub struct DueLocks {
    /// The keys of the locks. Short keys need no allocation of their own.
    schedule: Schedule<Bytes>,
    holders: usize,
    /// The number of holders of each lock that does not have exactly one.
    holder_counts: BTreeMap<Slot, usize>,
}

impl DueLocks {
    /// Bytes of a lock in this structure.
    pub const ENTRY_SIZE: usize = Schedule::<Bytes>::ENTRY_SIZE;

    /// Number of locks that are held or in a lock-delay.
    pub fn locks(&self) -> usize {
        self.schedule.len()
    }

    /// Number of holders.
    pub fn holders(&self) -> usize {
        self.holders
    }

    /// The lock that is due first.
    pub fn first(&self) -> Option<(Deadline, Slot)> {
        self.schedule.first()
    }

    pub fn key(&self, slot: Slot) -> Option<&[u8]> {
        self.schedule.get(slot).map(|key| &**key)
    }

    /// The slots from this one on, each with the key of its lock. Of consecutive empty slots, possibly only
    /// the first is returned. A lock keeps its slot until it is removed.
    pub fn slots(&self, from: u32) -> impl Iterator<Item = (u32, Option<&[u8]>)> {
        self.schedule.slots(from).map(|(slot, key)| (slot, key.map(|key| &**key)))
    }

    /// Adds a lock that has no slot, or changes when it is due. Returns its slot, or `None` if
    /// no slot is free.
    pub fn put(&mut self, slot: Option<Slot>, due: Deadline, key: &[u8], holders: usize) -> Option<Slot> {
        if slot.is_some_and(|slot| self.schedule.get(slot).is_some()) {
            return self.reschedule(slot?, due, holders);
        }
        let slot = self.schedule.insert(due, key.into())?;
        if holders != 1 || !self.holder_counts.is_empty() {
            self.set_holder_count(slot, holders);
        }
        self.holders += holders;
        Some(slot)
    }

    #[inline(never)]
    fn reschedule(&mut self, slot: Slot, due: Deadline, holders: usize) -> Option<Slot> {
        self.schedule.reschedule(slot, due);
        let before = self.set_holder_count(slot, holders).unwrap_or(1);
        self.holders = self.holders + holders - before;
        Some(slot)
    }

    /// Stores the number of holders of a lock. Returns the former number, or `None` if that was one.
    #[inline(never)]
    fn set_holder_count(&mut self, slot: Slot, holders: usize) -> Option<usize> {
        match holders {
            1 => self.holder_counts.remove(&slot),
            _ => self.holder_counts.insert(slot, holders),
        }
    }

    /// Delays the lock that is due first, so that it is not found again at once. Has no effect on other
    /// locks.
    pub fn put_off(&mut self, slot: Slot, until: Deadline) {
        if self.first().is_some_and(|(due, first)| first == slot && due < until) {
            self.schedule.reschedule(slot, until);
        }
    }

    /// Removes a lock, if it is present.
    pub fn remove(&mut self, slot: Slot) {
        if self.schedule.remove(slot).is_some() {
            let count = if self.holder_counts.is_empty() { None } else { self.holder_counts.remove(&slot) };
            self.holders -= count.unwrap_or(1);
        }
    }

    /// Like [`DueLocks::remove`], but has no effect if the slot belongs to another key by now.
    pub fn remove_if_key_is(&mut self, slot: Slot, key: &[u8]) {
        if self.key(slot) == Some(key) {
            self.remove(slot);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(ms: u64) -> Deadline {
        Deadline::at_millis(ms)
    }

    #[test]
    fn first_is_the_lock_that_is_due_next_and_holders_are_counted() {
        let mut scheduled = DueLocks::default();
        let late = scheduled.put(None, at(20), b"late", 3).unwrap();
        let soon = scheduled.put(None, at(10), b"soon", 1).unwrap();
        assert_eq!((scheduled.locks(), scheduled.holders()), (2, 4));
        assert_eq!(scheduled.first(), Some((at(10), soon)));
        assert_eq!(scheduled.put(Some(late), at(5), b"late", 1), Some(late));
        assert_eq!((scheduled.first(), scheduled.holders()), (Some((at(5), late)), 2));
        let crowd = scheduled.put(None, at(30), b"crowd", 5).unwrap();
        scheduled.remove(late);
        scheduled.remove(late);
        assert_eq!((scheduled.locks(), scheduled.holders()), (2, 6));
        scheduled.put(Some(crowd), at(30), b"crowd", 7);
        assert_eq!(scheduled.holders(), 8);
        scheduled.remove(crowd);
        let next = scheduled.put(None, at(40), b"next", 1);
        assert_eq!((next, scheduled.holders()), (Some(crowd), 2), "a reused slot has one holder");
    }

    #[test]
    fn only_the_first_lock_can_be_put_off() {
        let mut scheduled = DueLocks::default();
        let soon = scheduled.put(None, at(10), b"soon", 1).unwrap();
        let late = scheduled.put(None, at(20), b"late", 1).unwrap();
        scheduled.put_off(late, at(30));
        scheduled.put_off(soon, at(25));
        assert_eq!(scheduled.first(), Some((at(20), late)));
    }

    #[test]
    fn remove_if_key_is_keeps_the_slot_of_another_key() {
        let mut scheduled = DueLocks::default();
        let slot = scheduled.put(None, at(10), b"new", 1).unwrap();
        scheduled.remove_if_key_is(slot, b"old");
        assert_eq!(scheduled.key(slot), Some(&b"new"[..]));
        scheduled.remove_if_key_is(slot, b"new");
        assert_eq!(scheduled.locks(), 0);
    }
}
