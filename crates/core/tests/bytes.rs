//! The stored bytes of a lock. Bytes that were written once stay readable, and any other bytes are refused
//! without a panic.

mod clocks;
mod fixtures;
mod refusals;

use std::num::NonZeroU32;

use dlock_core::codec::{self, Anchor, Malformed, Origin, Reader};
use dlock_core::{Change, Instant, Lock, Mode};
use dlock_testkit::{HoldLayout, Layout};
use proptest::prelude::*;

use crate::model::content::{Content, Stored, content};

/// The time in ms at which the fixtures were written.
pub const AT: u64 = 1_760_000_000_500;
pub const NOW: Instant = Instant::from_micros(AT * 1000);
pub const ANCHOR: Anchor = Anchor { boot: 0x1122_3344_5566_7788, offset: 1_759_000_000_000 };
pub const READER: Reader = Reader { now: NOW, anchor: ANCHOR, origin: Origin::Stored };

/// The fields of stored bytes, with the types of the core. The testkit spells their layout.
#[derive(Clone, Debug)]
pub struct Plain {
    pub version: u8,
    pub mode: u8,
    /// Whether the bytes are a change of a lock, not a whole lock.
    pub part: bool,
    /// The number of permits, in mode 3.
    pub permits: u32,
    pub boot: u64,
    pub offset: i64,
    pub at: u64,
    pub delay_until: u64,
    /// False numbers of dropped and put holds. `None` writes the true numbers.
    pub counts: Option<(u32, u32)>,
    pub dropped: Vec<Vec<u8>>,
    pub put: Vec<PlainHold>,
}

#[derive(Clone, Debug)]
pub struct PlainHold {
    pub fence: u64,
    pub deadline: u64,
    pub granted: u64,
    pub ttl: u32,
    pub count: u32,
    pub delay: u32,
    pub ephemeral: u8,
    pub token: Vec<u8>,
    pub label: Vec<u8>,
}

impl Plain {
    /// A whole lock with these holds, written at [`NOW`].
    pub fn whole(mode: u8, permits: u32, put: Vec<PlainHold>) -> Plain {
        Plain {
            version: 4,
            mode,
            part: false,
            permits,
            boot: ANCHOR.boot,
            offset: ANCHOR.offset,
            at: AT,
            delay_until: 0,
            counts: None,
            dropped: Vec::new(),
            put,
        }
    }

    pub fn bytes(&self) -> Vec<u8> {
        let (dropped, put) = self.counts.unwrap_or((self.dropped.len() as u32, self.put.len() as u32));
        let layout = Layout {
            version: self.version,
            mode: self.mode + if self.part { 4 } else { 0 },
            boot: self.boot,
            offset: self.offset as u64,
            at: self.at,
            permits: self.permits.into(),
            delay_until: self.delay_until,
            counts: (dropped.into(), put.into()),
            dropped: self.dropped.clone(),
            put: self.put.iter().map(PlainHold::layout).collect(),
        };
        layout.bytes()
    }

    /// The content of a lock that is read from these bytes by the same clock.
    pub fn content(&self) -> Content {
        let mut holds: Vec<Stored> = self.put.iter().map(PlainHold::stored).collect();
        holds.sort();
        let permits = NonZeroU32::new(self.permits).map(Mode::Permits);
        let mode = [None, Some(Mode::Exclusive), Some(Mode::Shared), permits][usize::from(self.mode)];
        Content { mode, delay_until: self.delay_until, holds }
    }
}

impl PlainHold {
    /// A hold with a lease of 10 s from [`NOW`].
    pub fn new(token: &[u8]) -> PlainHold {
        let (fence, deadline, granted, ttl) = (AT * 1000, AT + 10_000, AT, 10_000);
        let (count, delay, ephemeral, label) = (1, 0, 0, Vec::new());
        PlainHold { fence, deadline, granted, ttl, count, delay, ephemeral, token: token.to_vec(), label }
    }

    fn layout(&self) -> HoldLayout {
        HoldLayout {
            fence: self.fence,
            deadline: self.deadline,
            granted: self.granted,
            ttl: self.ttl.into(),
            count: self.count.into(),
            delay: self.delay.into(),
            ephemeral: self.ephemeral,
            label: self.label.clone(),
            token: self.token.clone(),
        }
    }

    pub fn stored(&self) -> Stored {
        Stored {
            token: self.token.clone(),
            fence: self.fence,
            end: self.deadline,
            since: self.granted,
            ttl: self.ttl.into(),
            count: self.count,
            ephemeral: self.ephemeral != 0,
            delay: self.delay.into(),
            label: self.label.clone(),
        }
    }
}

pub fn read(reader: Reader, bytes: &[u8]) -> Result<Lock, Malformed> {
    let mut lock = Lock::default();
    assert!(reader.read(bytes)?.apply(&mut lock), "what was read fits into an empty lock");
    Ok(lock)
}

pub fn write(lock: &Lock, change: &Change) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::write(lock, change, NOW, ANCHOR, &mut bytes);
    bytes
}

/// Any whole lock that a server could have written at [`NOW`].
pub fn any_whole() -> impl Strategy<Value = Plain> {
    // Shorter under Miri, which is slow.
    let (short, longest) = if cfg!(miri) { (5, 5) } else { (30, 255) };
    let bytes = move |least: usize| {
        let bytes = |len: std::ops::Range<usize>| prop::collection::vec(any::<u8>(), len);
        prop_oneof![4 => bytes(least..short), 1 => bytes(longest..longest + 1)]
    };
    let hold = (
        (1..1u64 << 53, any::<u32>(), 1..=u32::MAX, 1..=i32::MAX as u32, any::<u32>(), 0..2u8),
        (bytes(1), bytes(0), 0..=AT),
    );
    let hold = hold.prop_map(|((fence, left, ttl, count, delay, ephemeral), (token, label, granted))| {
        let deadline = AT - 1000 + u64::from(left.min(ttl));
        PlainHold { fence, deadline, granted, ttl, count, delay, ephemeral, token, label }
    });
    let delay = prop_oneof![Just(0), (0..=u64::from(u32::MAX)).prop_map(|ms| AT + ms)];
    (1..4u8, 1..=i32::MAX as u32, prop::collection::vec(hold, 0..5), delay).prop_map(
        |(mode, permits, mut put, delay_until)| {
            put.sort_by(|a, b| a.token.cmp(&b.token));
            put.dedup_by(|a, b| a.token == b.token);
            put.truncate(if mode == 1 { 1 } else { permits as usize });
            let mode = if put.is_empty() { 0 } else { mode };
            let permits = if mode == 3 { permits } else { 0 };
            let delay_until = if mode == 1 { 0 } else { delay_until };
            Plain { delay_until, ..Plain::whole(mode, permits, put) }
        },
    )
}

#[test]
fn reading_written_bytes_restores_the_lock_and_rewriting_it_restores_the_bytes() {
    crate::random(any_whole(), 2000, |plain| {
        let lock = read(READER, &plain.bytes()).expect("a lock");
        assert_eq!(content(&lock), plain.content());
        assert_eq!(write(&lock, &Change::Whole), plain.bytes());
    });
}

/// A server reads the length of a longer value in two steps.
#[test]
fn a_typical_hold_takes_at_most_63_bytes() {
    let (days, hours) = (86_400_000, 3_600_000);
    let hold = PlainHold {
        granted: AT - 3 * days,
        fence: (AT - 3 * days) * 1000 + 999,
        deadline: AT + 18 * hours,
        ttl: 18 * hours as u32,
        ..PlainHold::new(&[b'x'; 27])
    };
    let plain = Plain::whole(1, 0, vec![hold]);
    assert_eq!(plain.bytes().len(), 63);
}
