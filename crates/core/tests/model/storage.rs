//! The bytes that a server sends and stores: effects for its two replicas (a near one on the same machine, a
//! far one on another machine), and snapshots for its disk.
//!
//! Some ACQUIREs are sent as the command itself (logged verbatim). A replica derives their holds from its log
//! position ([`LogState`]: a time and a fence). `assumed_log_state` is the position that the server assumes
//! for its replicas. `self.marks` has the situations that occurred: the random runs must meet each of them.

use std::collections::BTreeMap;

use dlock_core::codec::{self, Anchor, Origin, Reader};
use dlock_core::plain::{LogState, Plain};
use dlock_core::{Change, Instant, Lock};

use super::content::content;
use super::reference::{Key, Restart};
use super::system::System;

/// The number of microseconds by which the far replica's clock is ahead: nearly a day, and not a
/// whole number of milliseconds.
pub const FAR_AHEAD: u64 = 86_399_123_457;

impl System {
    /// Sends a change to both replicas: as the command itself (`plain`) if they derive exactly this lock
    /// from it, else as an effect.
    pub(super) fn replicate(&mut self, key: Key, lock: &Lock, change: &Change, plain: Option<Plain<'_>>) {
        if change.is_none() {
            return;
        }
        if let Change::Part(_) = change {
            self.marks.push("a part of a lock is replicated");
        }
        let anchor = self.anchor();
        let near = Reader { now: self.instant(), anchor, origin: Origin::Live };
        let far = self.far_reader();
        let plain = plain.filter(|plain| plain.advance_if_exact(&mut self.assumed_log_state, lock, anchor));
        let (mut bytes, greatest) = (Vec::new(), self.fences.last());
        match plain {
            Some(Plain::Acquire(..)) => self.marks.push("an ACQUIRE is logged verbatim"),
            Some(Plain::Release) => self.marks.push("a RELEASE is logged verbatim"),
            None => {
                codec::write_effect(lock, change, greatest, self.instant(), anchor, &mut bytes);
                self.assumed_log_state =
                    Some(LogState { written_by: anchor, at: self.now / 1000, last: greatest });
            }
        }
        let replicas = [(near, &mut self.near), (far, &mut self.far)];
        for ((reader, replica), position) in replicas.into_iter().zip(&mut self.replica_log_states) {
            let effect = match plain {
                Some(plain) => reader.plain(plain, position).expect("the replica has a log position"),
                None => reader.effect(&bytes).expect("written bytes are readable"),
            };
            if plain.is_none() {
                *position = Some(effect.log_state());
            }
            assert!(
                self.assumed_log_state.is_none() || *position == self.assumed_log_state,
                "the log positions are equal"
            );
            // A RELEASE that is logged verbatim contains no fence.
            assert!(effect.last == greatest || plain == Some(Plain::Release));
            let mut lock = replica.remove(&key).unwrap_or_default();
            assert!(effect.written.clone().apply(&mut lock), "the replica applies the effect");
            let applied_once = lock.clone();
            assert!(
                effect.written.apply(&mut lock) && content(&lock) == content(&applied_once),
                "effects are idempotent"
            );
            if !lock.is_gone() {
                replica.insert(key, lock);
            }
        }
    }

    fn far_reader(&self) -> Reader {
        let now = Instant::from_micros(self.now + FAR_AHEAD);
        Reader { now, anchor: Anchor { boot: 99, offset: 0 }, origin: Origin::Live }
    }

    /// The far replica resyncs from a snapshot of all locks. `child`: a child process writes the snapshot,
    /// which then does not contain the log position.
    pub(super) fn resync(&mut self, child: bool) {
        let reader = self.far_reader();
        self.far.clear();
        for (key, lock) in self.locks.iter().filter(|(_, lock)| !lock.is_gone()) {
            let (mut bytes, mut read) = (Vec::new(), Lock::default());
            codec::write(lock, &Change::Whole, self.instant(), self.anchor(), &mut bytes);
            assert!(reader.read(&bytes).expect("stored bytes are readable").apply(&mut read));
            self.far.insert(*key, read);
        }
        if child {
            // A replica without a log position cannot apply a verbatim ACQUIRE, so the next change must be
            // sent as an effect.
            (self.assumed_log_state, self.replica_log_states[1]) = (None, None);
            return self.marks.push("a snapshot by a child process");
        }
        self.replica_log_states[1] =
            self.assumed_log_state.map(LogState::to_numbers).and_then(LogState::from_numbers);
        self.marks.push("a snapshot with the log position");
    }

    /// Writes all locks, and reads them back with another clock, as a restarted server does. The replicas
    /// begin empty, and receive each lock as an effect.
    pub(super) fn restart(&mut self, Restart { same_boot, down, jump }: Restart) {
        self.demote();
        self.received.clear();
        let mut stored = BTreeMap::new();
        for (key, lock) in &self.locks {
            let mut bytes = Vec::new();
            codec::write(lock, &Change::Whole, self.instant(), self.anchor(), &mut bytes);
            stored.insert(*key, bytes);
        }
        self.now = (self.now + down * 1000).saturating_add_signed(jump * 1000);
        // Another boot has another clock offset: 7 is arbitrary.
        (self.boot, self.offset) =
            if same_boot { (self.boot, self.offset + jump) } else { (self.boot + 1, 7) };
        *self = System {
            now: self.now,
            boot: self.boot,
            offset: self.offset,
            fences: self.fences,
            greatest_fence: self.greatest_fence,
            max_grants_per_turn: self.max_grants_per_turn,
            ..System::default()
        };
        let reader = Reader { now: self.instant(), anchor: self.anchor(), origin: Origin::Stored };
        for (key, bytes) in stored {
            let written = reader.read(&bytes).expect("stored bytes are readable");
            assert!(written.is_whole() && written.greatest_fence() <= self.fences.last());
            let mut lock = Lock::default();
            assert!(written.apply(&mut lock));
            self.replicate(key, &lock, &Change::Whole, None);
            self.locks.insert(key, lock);
        }
    }
}
