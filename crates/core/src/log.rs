//! LOG: recent incidents, in memory only. Keys and labels are cut, and tokens shortened, so that every entry
//! is small.

use std::collections::VecDeque;

use dlock_protocol::bytes::cut;
use dlock_protocol::error::shortened;
use dlock_protocol::{Bytes, ClientId, Fence, Instant};

use crate::lock::Hold;
use crate::queue::{Name, Waiter};
use crate::step::End;

/// The kind of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum What {
    Expired,
    Broken,
    Disconnected,
    /// The key was removed: DEL, a flush, overwritten, renamed.
    Vanished,
    LongHold,
    LongWait,
    Deadlock,
    QueueFull,
    /// A grant could not be delivered.
    Undelivered,
}

impl What {
    pub fn word(self) -> &'static str {
        match self {
            What::Expired => "expired",
            What::Broken => "broken",
            What::Disconnected => "disconnected",
            What::Vanished => "vanished",
            What::LongHold => "long-hold",
            What::LongWait => "long-wait",
            What::Deadlock => "deadlock",
            What::QueueFull => "queue-full",
            What::Undelivered => "undelivered",
        }
    }

    /// Whether it is about a wait (and not a hold).
    pub fn is_of_a_wait(self) -> bool {
        matches!(self, What::LongWait | What::Deadlock | What::QueueFull)
    }
}

impl From<End> for What {
    fn from(why: End) -> What {
        match why {
            // Logged for long holds only.
            End::Released => What::LongHold,
            End::Expired => What::Expired,
            End::Disconnected => What::Disconnected,
            End::Broken => What::Broken,
        }
    }
}

/// An entry. Unknown fields are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Note {
    pub what: What,
    pub db: i32,
    pub key: Bytes,
    pub token: Bytes,
    pub label: Bytes,
    pub client: Option<ClientId>,
    pub address: Bytes,
    pub fence: Option<Fence>,
    /// Duration of the hold or the wait, in ms.
    pub lasted: u64,
}

impl Note {
    pub fn new(what: What, name: &Name<'_>) -> Note {
        Note {
            what,
            db: name.db,
            key: (&*cut(&name.key, KEPT)).into(),
            token: Bytes::EMPTY,
            label: Bytes::EMPTY,
            client: None,
            address: Bytes::EMPTY,
            fence: None,
            lasted: 0,
        }
    }

    pub fn of(self, token: &[u8], label: &[u8]) -> Note {
        Note { token: (&*shortened(token)).into(), label: (&*cut(label, KEPT)).into(), ..self }
    }

    pub fn of_hold(what: What, name: &Name<'_>, hold: &Hold, now: Instant) -> Note {
        let note = Note::new(what, name).of(hold.token().as_bytes(), hold.label());
        Note { client: hold.client(), fence: Some(hold.fence()), lasted: hold.held_millis(now), ..note }
    }

    pub fn of_wait(what: What, waiter: &Waiter, fence: Option<Fence>, now: Instant) -> Note {
        let request = &waiter.request;
        let note = Note::new(what, &waiter.name).of(request.token.as_bytes(), request.label.as_bytes());
        Note { client: waiter.client(), fence, lasted: now.millis_since(waiter.since), ..note }
    }

    /// Whether it is about this key, in any database.
    pub fn is_about(&self, key: &[u8]) -> bool {
        *self.key == *cut(key, KEPT)
    }
}

/// Longest part of a key or label that is kept, in bytes. A cut one ends in three dots.
const KEPT: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u64,
    pub at: Instant,
    pub note: Note,
}

#[derive(Debug, Default)]
pub struct Log {
    /// Oldest first.
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Adds an entry, and keeps at most `most`.
    pub fn note(&mut self, note: Note, at: Instant, most: usize) {
        if most > 0 {
            self.entries.push_back(Entry { id: self.next_id, at, note });
            self.next_id += 1;
        }
        self.keep(most);
    }

    /// Keeps the newest `most` entries.
    pub fn keep(&mut self, most: usize) {
        self.entries.drain(..self.entries.len().saturating_sub(most));
        if self.entries.capacity() > 4 * most.max(64) {
            self.entries.shrink_to(most);
        }
    }

    /// Newest first.
    pub fn entries(&self) -> impl Iterator<Item = &Entry> {
        self.entries.iter().rev()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(log: &Log) -> Vec<u64> {
        log.entries().map(|entry| entry.id).collect()
    }

    #[test]
    fn the_log_keeps_the_newest_entries_and_ids_continue() {
        let mut log = Log::default();
        let (name, now) = (Name::new(0, b"k"), Instant::from_millis(5));
        let note = || Note::new(What::Expired, &name);
        (0..5).for_each(|_| log.note(note(), now, 3));
        assert_eq!(ids(&log), [4, 3, 2]);
        log.keep(1);
        assert_eq!(ids(&log), [4]);
        log.keep(0);
        log.note(note(), now, 0);
        assert_eq!(ids(&log), []);
        log.note(note(), now, 3);
        assert_eq!(ids(&log), [5]);
    }

    #[test]
    fn an_entry_is_small_and_shows_no_whole_token() {
        let long = [b'x'; 5000];
        let note = Note::new(What::Broken, &Name::new(0, &long)).of(b"0123456789", &long[..255]);
        assert_eq!((note.key.len(), note.label.len(), &*note.token), (131, 131, &b"01234567..."[..]));
        assert!(note.is_about(&long) && !note.is_about(&long[1..2]) && !note.is_about(&long[..128]));
    }
}
