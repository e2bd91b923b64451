//! The bytes that a server sends and stores: effects for its replicas, and snapshots for its disk.

use std::collections::BTreeMap;

use dlock_core::codec::{self, Anchor, Origin, Reader};
use dlock_core::plain::{Known, Plain};
use dlock_core::{Change, Instant, Lock};

use super::content::content;
use super::page::{Key, Restart};
use super::system::System;

/// The time by which the far replica's clock is ahead, in microseconds.
pub const FAR: u64 = 86_399_123_457;

impl System {
    pub(super) fn replicate(&mut self, key: Key, lock: &Lock, change: &Change, plain: Option<Plain<'_>>) {
        if change.is_none() {
            return;
        }
        if let Change::Part(_) = change {
            self.saw.push("a part of a lock is replicated");
        }
        let anchor = self.anchor();
        let near = Reader { now: self.instant(), anchor, origin: Origin::Live };
        let far = self.far_reader();
        let plain = plain.filter(|plain| plain.suffices(&mut self.known, lock, anchor));
        let (mut bytes, greatest) = (Vec::new(), self.fences.last());
        match plain {
            Some(Plain::Acquire(..)) => self.saw.push("an ACQUIRE is logged verbatim"),
            Some(Plain::Release) => self.saw.push("a RELEASE is logged verbatim"),
            None => {
                codec::write_effect(lock, change, greatest, self.instant(), anchor, &mut bytes);
                self.known = Some(Known { written_by: anchor, at: self.now / 1000, last: greatest });
            }
        }
        let [knows, far_knows] = &mut self.read;
        for (reader, replica, knows) in [(near, &mut self.near, knows), (far, &mut self.far, far_knows)] {
            let effect = match plain {
                Some(plain) => reader.plain(plain, knows).expect("what it builds on has been read"),
                None => reader.effect(&bytes).expect("what was written can be read"),
            };
            if plain.is_none() {
                *knows = Some(effect.known());
            }
            assert!(
                self.known.is_none() || *knows == self.known,
                "readers know what the writer takes them to know"
            );
            assert!(effect.last == greatest || plain == Some(Plain::Release));
            let mut lock = replica.remove(&key).unwrap_or_default();
            assert!(effect.written.clone().apply(&mut lock), "an effect is refused");
            let once = lock.clone();
            assert!(
                effect.written.apply(&mut lock) && content(&lock) == content(&once),
                "effects are idempotent"
            );
            if !lock.is_gone() {
                replica.insert(key, lock);
            }
        }
    }

    fn far_reader(&self) -> Reader {
        let now = Instant::from_micros(self.now + FAR);
        Reader { now, anchor: Anchor { boot: 99, offset: 0 }, origin: Origin::Live }
    }

    pub(super) fn follow(&mut self, child: bool) {
        let reader = self.far_reader();
        self.far.clear();
        for (key, lock) in self.locks.iter().filter(|(_, lock)| !lock.is_gone()) {
            let (mut bytes, mut read) = (Vec::new(), Lock::default());
            codec::write(lock, &Change::Whole, self.instant(), self.anchor(), &mut bytes);
            assert!(reader.read(&bytes).expect("what was stored can be read").apply(&mut read));
            self.far.insert(*key, read);
        }
        if child {
            (self.known, self.read[1]) = (None, None);
            return self.saw.push("a snapshot by a child process");
        }
        self.read[1] = self.known.map(Known::to_numbers).and_then(Known::from_numbers);
        self.saw.push("a snapshot with the log position");
    }

    /// Writes all locks, and reads them by another server with another clock. The replicas resync.
    pub(super) fn restart(&mut self, Restart { same_boot, down, jump }: Restart) {
        self.demote();
        self.told.clear();
        let mut stored = BTreeMap::new();
        for (key, lock) in &self.locks {
            let mut bytes = Vec::new();
            codec::write(lock, &Change::Whole, self.instant(), self.anchor(), &mut bytes);
            stored.insert(*key, bytes);
        }
        self.now = (self.now + down * 1000).saturating_add_signed(jump * 1000);
        (self.boot, self.offset) =
            if same_boot { (self.boot, self.offset + jump) } else { (self.boot + 1, 7) };
        *self = System {
            now: self.now,
            boot: self.boot,
            offset: self.offset,
            fences: self.fences,
            greatest_grant: self.greatest_grant,
            max_grants_per_turn: self.max_grants_per_turn,
            ..System::default()
        };
        let reader = Reader { now: self.instant(), anchor: self.anchor(), origin: Origin::Stored };
        for (key, bytes) in stored {
            let written = reader.read(&bytes).expect("what was stored can be read");
            assert!(written.is_whole() && written.greatest_fence() <= self.fences.last());
            let mut lock = Lock::default();
            assert!(written.apply(&mut lock));
            self.replicate(key, &lock, &Change::Whole, None);
            self.locks.insert(key, lock);
        }
    }
}
