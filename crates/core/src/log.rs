//! The incidents that DLOCK.LOG lists, in memory only. Keys, labels and tokens are cut to keep entries small.

use std::collections::VecDeque;

use dlock_protocol::bytes::cut;
use dlock_protocol::error::shortened;
use dlock_protocol::{Bytes, ClientId, Fence, Instant};

use crate::lock::Hold;
use crate::queue::{Name, Waiter};
use crate::step::End;

/// The kind of an incident.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum IncidentKind {
    Expired,
    Broken,
    Disconnected,
    /// The key was deleted, flushed, overwritten or renamed.
    Vanished,
    LongHold,
    /// A hold began with another number of permits than the one before.
    LimitChanged,
    LongWait,
    Deadlock,
    QueueFull,
    /// A grant could not be delivered.
    Undelivered,
}

impl IncidentKind {
    pub fn word(self) -> &'static str {
        match self {
            IncidentKind::Expired => "expired",
            IncidentKind::Broken => "broken",
            IncidentKind::Disconnected => "disconnected",
            IncidentKind::Vanished => "vanished",
            IncidentKind::LongHold => "long-hold",
            IncidentKind::LimitChanged => "limit-changed",
            IncidentKind::LongWait => "long-wait",
            IncidentKind::Deadlock => "deadlock",
            IncidentKind::QueueFull => "queue-full",
            IncidentKind::Undelivered => "undelivered",
        }
    }

    /// Whether the incident is about a wait, not a hold.
    pub fn is_about_a_wait(self) -> bool {
        matches!(self, IncidentKind::LongWait | IncidentKind::Deadlock | IncidentKind::QueueFull)
    }
}

impl From<End> for IncidentKind {
    fn from(why: End) -> IncidentKind {
        match why {
            // A released hold is an incident only if it was held for long.
            End::Released => IncidentKind::LongHold,
            End::Expired => IncidentKind::Expired,
            End::Disconnected => IncidentKind::Disconnected,
            End::Broken => IncidentKind::Broken,
        }
    }
}

/// An incident. Unknown fields are empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Incident {
    pub kind: IncidentKind,
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

impl Incident {
    pub fn new(kind: IncidentKind, name: &Name<'_>) -> Incident {
        Incident {
            kind,
            db: name.db,
            key: (&*cut(&name.key, MAX_SHOWN)).into(),
            token: Bytes::EMPTY,
            label: Bytes::EMPTY,
            client: None,
            address: Bytes::EMPTY,
            fence: None,
            lasted: 0,
        }
    }

    pub fn with_token(self, token: &[u8], label: &[u8]) -> Incident {
        Incident { token: (&*shortened(token)).into(), label: (&*cut(label, MAX_SHOWN)).into(), ..self }
    }

    pub fn of_hold(kind: IncidentKind, name: &Name<'_>, hold: &Hold, now: Instant) -> Incident {
        let (client, fence, lasted) = (hold.client(), Some(hold.fence()), hold.held_millis(now));
        let incident = Incident::new(kind, name).with_token(hold.token().as_bytes(), hold.label());
        Incident { client, fence, lasted, ..incident }
    }

    pub fn of_wait(kind: IncidentKind, waiter: &Waiter, fence: Option<Fence>, now: Instant) -> Incident {
        let (token, label) = (waiter.request.token.as_bytes(), waiter.request.label.as_bytes());
        let incident = Incident::new(kind, &waiter.name).with_token(token, label);
        Incident { client: waiter.client(), fence, lasted: now.millis_since(waiter.since), ..incident }
    }

    /// Whether the incident is about this key, in any database.
    pub fn is_about(&self, key: &[u8]) -> bool {
        *self.key == *cut(key, MAX_SHOWN)
    }
}

/// Longest part of a key or label that an incident shows, in bytes. Three dots follow a part that was cut.
const MAX_SHOWN: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Entry {
    pub id: u64,
    pub at: Instant,
    pub incident: Incident,
}

#[derive(Debug, Default)]
pub struct Log {
    /// Oldest first.
    entries: VecDeque<Entry>,
    next_id: u64,
}

impl Log {
    /// Adds an entry, and keeps the newest `max_len` entries.
    pub fn push(&mut self, incident: Incident, at: Instant, max_len: usize) {
        if max_len > 0 {
            self.entries.push_back(Entry { id: self.next_id, at, incident });
            self.next_id += 1;
        }
        self.keep_newest(max_len);
    }

    pub fn keep_newest(&mut self, max_len: usize) {
        self.entries.drain(..self.entries.len().saturating_sub(max_len));
        if self.entries.capacity() > 4 * max_len.max(64) {
            self.entries.shrink_to(max_len);
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
        let incident = || Incident::new(IncidentKind::Expired, &name);
        (0..5).for_each(|_| log.push(incident(), now, 3));
        assert_eq!(ids(&log), [4, 3, 2]);
        log.keep_newest(1);
        assert_eq!(ids(&log), [4]);
        log.keep_newest(0);
        log.push(incident(), now, 0);
        assert_eq!(ids(&log), []);
        log.push(incident(), now, 3);
        assert_eq!(ids(&log), [5]);
    }

    #[test]
    fn an_entry_is_small_and_shows_no_whole_token() {
        let (long, kind) = ([b'x'; 5000], IncidentKind::Broken);
        let incident = Incident::new(kind, &Name::new(0, &long)).with_token(b"0123456789", &long[..255]);
        // The limit of 128 bytes, and three dots.
        assert_eq!((incident.key.len(), incident.label.len()), (131, 131));
        assert_eq!(&*incident.token, b"01234567...");
        assert!(incident.is_about(&long));
        assert!(!incident.is_about(&long[1..2]) && !incident.is_about(&long[..128]));
    }
}
