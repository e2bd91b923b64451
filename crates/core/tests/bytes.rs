//! The stored bytes of a lock. Bytes that a server has written stay readable, and all other bytes are refused
//! without a panic.

mod clocks;
mod fixtures;
mod refusals;

use std::num::NonZeroU32;

use dlock_core::codec::{self, Anchor, Malformed, Origin, Reader};
use dlock_core::{Change, Instant, Lock, Mode};
use dlock_testkit::{HoldLayout, Layout};
use proptest::prelude::*;

use crate::model::content::{Content, StoredHold, content};

/// The time in ms at which the fixtures were written.
pub const AT: u64 = 1_760_000_000_500;
pub const NOW: Instant = Instant::from_micros(AT * 1000);
/// Identifies the clock of the writer. [`READER`] has the same clock.
pub const ANCHOR: Anchor = Anchor { boot: 0x1122_3344_5566_7788, offset: 1_759_000_000_000 };
pub const READER: Reader = Reader { now: NOW, anchor: ANCHOR, origin: Origin::Stored };

/// The layout of a whole lock (not of a change of some holds) with these holds, written at [`NOW`].
pub fn whole(mode: u8, permits: u64, put: Vec<HoldLayout>) -> Layout {
    Layout {
        version: 4,
        mode,
        boot: ANCHOR.boot,
        offset: ANCHOR.offset as u64,
        at: AT,
        permits,
        delay_until: 0,
        counts: (0, put.len() as u64),
        dropped: Vec::new(),
        put,
    }
}

/// A hold with a lease of 10 s from [`NOW`].
pub fn hold(token: &[u8]) -> HoldLayout {
    let (fence, deadline, granted, ttl) = (AT * 1000, AT + 10_000, AT, 10_000);
    let (count, delay, ephemeral, label) = (1, 0, 0, Vec::new());
    HoldLayout { fence, deadline, granted, ttl, count, delay, ephemeral, token: token.to_vec(), label }
}

/// The content of the lock that [`READER`] reads from the bytes of this layout.
pub fn content_of(layout: &Layout) -> Content {
    let mut holds: Vec<StoredHold> = layout.put.iter().map(stored).collect();
    holds.sort();
    let permits = NonZeroU32::new(layout.permits as u32).map(Mode::Permits);
    let mode = [None, Some(Mode::Exclusive), Some(Mode::Shared), permits][usize::from(layout.mode)];
    Content { mode, delay_until: layout.delay_until, holds }
}

pub fn stored(hold: &HoldLayout) -> StoredHold {
    StoredHold {
        token: hold.token.clone(),
        fence: hold.fence,
        end: hold.deadline,
        since: hold.granted,
        ttl: hold.ttl,
        count: hold.count as u32,
        ephemeral: hold.ephemeral != 0,
        delay: hold.delay,
        label: hold.label.clone(),
    }
}

pub fn read(reader: Reader, bytes: &[u8]) -> Result<Lock, Malformed> {
    let mut lock = Lock::default();
    assert!(reader.read(bytes)?.apply(&mut lock), "an empty lock accepts any change");
    Ok(lock)
}

pub fn write(lock: &Lock, change: &Change) -> Vec<u8> {
    let mut bytes = Vec::new();
    codec::write(lock, change, NOW, ANCHOR, &mut bytes);
    bytes
}

/// Any whole lock that a server could have written at [`NOW`].
pub fn any_whole() -> impl Strategy<Value = Layout> {
    // Tokens and labels are shorter under Miri, which is slow.
    let (short, longest) = if cfg!(miri) { (5, 5) } else { (30, 255) };
    let text = move |min_len: usize| {
        let bytes = |len: std::ops::Range<usize>| prop::collection::vec(any::<u8>(), len);
        prop_oneof![4 => bytes(min_len..short), 1 => bytes(longest..longest + 1)]
    };
    let hold = (
        (
            1..1u64 << 53,
            0..=u64::from(u32::MAX),
            1..=u64::from(u32::MAX),
            1..=i32::MAX as u64,
            0..=u64::from(u32::MAX),
            0..2u8,
        ),
        (text(1), text(0), 0..=AT),
    );
    let hold = hold.prop_map(|((fence, left, ttl, count, delay, ephemeral), (token, label, granted))| {
        // A lease may have ended, at most one second before NOW.
        let deadline = AT - 1000 + left.min(ttl);
        HoldLayout { fence, deadline, granted, ttl, count, delay, ephemeral, token, label }
    });
    let delay = prop_oneof![Just(0), (0..=u64::from(u32::MAX)).prop_map(|ms| AT + ms)];
    (1..4u8, 1..=i32::MAX as u64, prop::collection::vec(hold, 0..5), delay).prop_map(
        |(mode, permits, mut put, delay_until)| {
            put.sort_by(|a, b| a.token.cmp(&b.token));
            put.dedup_by(|a, b| a.token == b.token);
            put.truncate(if mode == 1 { 1 } else { permits as usize });
            let mode = if put.is_empty() { 0 } else { mode };
            let permits = if mode == 3 { permits } else { 0 };
            // An exclusive lock (mode 1) stores no lock-delay.
            let delay_until = if mode == 1 { 0 } else { delay_until };
            Layout { delay_until, ..whole(mode, permits, put) }
        },
    )
}

#[test]
fn reading_written_bytes_restores_the_lock_and_rewriting_it_restores_the_bytes() {
    crate::random(any_whole(), 2000, |layout| {
        let lock = read(READER, &layout.bytes()).expect("a lock");
        assert_eq!(content(&lock), content_of(&layout));
        assert_eq!(write(&lock, &Change::Whole), layout.bytes());
    });
}

/// In an RDB file, the length of a value of up to 63 bytes takes one byte. A server reads the length of a
/// longer value in two steps, which takes more time.
#[test]
fn a_typical_hold_takes_at_most_63_bytes() {
    let (days, hours) = (86_400_000, 3_600_000);
    // DLOCK.TOKEN makes tokens of 27 bytes.
    let hold = HoldLayout {
        granted: AT - 3 * days,
        fence: (AT - 3 * days) * 1000 + 999,
        deadline: AT + 18 * hours,
        ttl: 18 * hours,
        ..hold(&[b'x'; 27])
    };
    assert_eq!(whole(1, 0, vec![hold]).bytes().len(), 63);
}
