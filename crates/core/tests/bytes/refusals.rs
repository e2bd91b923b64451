//! Bytes that do not encode exactly one lock are refused as a whole.

use dlock_core::codec::{BadEffect, Malformed};
use dlock_core::{Change, Fence, Lock};
use proptest::prelude::*;

use super::{AT, NOW, READER, hold, read, whole, write};
use crate::model::content::content;
use dlock_testkit::{HoldLayout, Layout};

/// The mode byte of a change that has the holds of some tokens only. `mode` is the mode of the lock: 0 free,
/// 1 exclusive, 2 shared, 3 permits.
fn part(mode: u8) -> u8 {
    mode + 4
}

fn refused(layout: &Layout) -> Malformed {
    READER.read(&layout.bytes()).expect_err("the bytes must be refused")
}

fn shared(tokens: &[&[u8]]) -> Layout {
    whole(2, 0, tokens.iter().map(|token| hold(token)).collect())
}

/// The same layout, which also removes the hold of `token`.
fn dropping(token: &[u8], layout: Layout) -> Layout {
    Layout { dropped: vec![token.to_vec()], counts: (1, layout.counts.1), ..layout }
}

#[test]
fn another_version_is_refused() {
    for version in [0, 3, 5, 15] {
        let why = refused(&Layout { version, ..shared(&[b"a"]) });
        assert_eq!(why, Malformed::Version(version));
        let text = format!("the bytes of a lock have version {version}, this module reads 4");
        assert_eq!(why.to_string(), text);
    }
}

#[test]
fn values_outside_of_their_range_are_refused() {
    let one = |hold: HoldLayout| whole(1, 0, vec![hold]);
    let a = || hold(b"a");
    let free = || whole(0, 0, Vec::new());
    let too_late = AT + u64::from(u32::MAX) + 2;
    let cases = [
        ("mode", Layout { mode: 8, ..shared(&[b"a"]) }),
        ("permits", Layout { mode: 3, permits: 0, ..shared(&[b"a"]) }),
        ("permits", Layout { mode: 3, permits: 1 << 31, ..shared(&[b"a"]) }),
        ("delay", Layout { delay_until: too_late, ..free() }),
        ("delay", Layout { delay_until: u64::MAX, ..free() }),
        ("token", shared(&[b""])),
        ("token", Layout { mode: part(2), ..dropping(b"", shared(&[])) }),
        ("fence", one(HoldLayout { fence: 0, ..a() })),
        ("fence", one(HoldLayout { fence: 1 << 53, ..a() })),
        ("ttl", one(HoldLayout { ttl: 0, ..a() })),
        ("count", one(HoldLayout { count: 0, ..a() })),
        ("count", one(HoldLayout { count: 1 << 31, ..a() })),
        ("ephemeral", one(HoldLayout { ephemeral: 2, ..a() })),
        ("number of holds", Layout { mode: 0, ..shared(&[b"a"]) }),
        ("number of holds", shared(&[])),
        ("number of holds", Layout { mode: 3, permits: 1, ..shared(&[b"a", b"b"]) }),
        ("number of holds", dropping(b"z", shared(&[b"a"]))),
        ("number of holds", Layout { mode: part(0), ..free() }),
        ("number of holds", Layout { mode: part(1), ..shared(&[b"a"]) }),
        ("token (twice)", shared(&[b"a", b"b", b"a"])),
        ("token (twice)", Layout { mode: part(2), ..dropping(b"a", shared(&[b"a"])) }),
    ];
    for (what, layout) in cases {
        assert_eq!(refused(&layout), Malformed::Value(what), "{layout:?}");
        assert_eq!(refused(&layout).to_string(), format!("the bytes of a lock have an impossible {what}"));
    }
}

/// Only the shortest encoding of a number is valid. Otherwise one lock would have several encodings.
#[test]
fn numbers_out_of_range_or_not_in_shortest_form_are_refused() {
    // The number of permits follows a header of 21 bytes.
    let bytes = Layout { mode: 3, permits: 1, ..shared(&[b"a"]) }.bytes();
    let with_permits = |number: &[u8]| READER.read(&[&bytes[..21], number, &bytes[22..]].concat());
    assert!(with_permits(&[1]).is_ok());
    let refused = Err(Malformed::Value("number"));
    for number in [
        &[0x80, 0][..],
        &[0x81, 0x80, 0],
        &[0x81, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0],
        // Out of range: 2^32, 2^64, and 20 bytes of which none ends the number.
        &[0x80, 0x80, 0x80, 0x80, 0x10],
        &[0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x02],
        &[0xff; 20],
    ] {
        assert_eq!(with_permits(number), refused, "{number:02x?}");
    }
    assert_eq!(READER.read(&[&bytes[..21], &[0x80]].concat()), Err(Malformed::Short));
}

/// A hold has one encoding: optional fields are present only if they differ from their defaults.
#[test]
fn optional_fields_with_default_values_are_refused() {
    let with = |count| whole(1, 0, vec![HoldLayout { count, ..hold(b"a") }]).bytes();
    let mut bytes = with(2);
    assert!(READER.read(&bytes).is_ok());
    // The optional fields are the last four bytes: count, delay, ephemeral, length of the label.
    let count = bytes.len() - 4;
    bytes[count] = 1;
    assert_eq!(READER.read(&bytes), Err(Malformed::Value("rest")));
    // A hold with default values has no optional fields, so these four bytes are behind the end of the lock.
    assert_eq!(READER.read(&[&with(1)[..], &[1, 0, 0, 0]].concat()), Err(Malformed::Long));
}

/// A count that exceeds the remaining bytes is refused before memory is allocated for it.
#[test]
fn a_wrong_count_is_refused_without_an_allocation() {
    let most = u64::from(u32::MAX);
    // The number of tokens that lose their holds, and the number of holds.
    for counts in [(most, 0), (0, most), (most, most), (1, 1), (0, 2)] {
        let layout = Layout { mode: part(2), counts, ..shared(&[]) };
        assert_eq!(refused(&layout), Malformed::Short, "{counts:?}");
    }
    let layout = Layout { counts: (0, 0), ..shared(&[b"a"]) };
    assert_eq!(refused(&layout), Malformed::Long);
    assert_eq!(Malformed::Long.to_string(), "there are bytes behind the end of a lock");
    assert_eq!(Malformed::Short.to_string(), "the bytes of a lock end too early");
}

#[test]
fn any_bytes_are_read_or_refused_without_a_panic() {
    // Any bytes follow the beginning of a valid lock, so that some of them reach the parser of holds.
    let tail = prop::collection::vec(any::<u8>(), 0..if cfg!(miri) { 10 } else { 200 });
    crate::random((super::any_whole(), tail, any::<prop::sample::Index>()), 2000, |(layout, tail, at)| {
        let mut bytes = layout.bytes();
        bytes.truncate(at.index(bytes.len() + 1));
        bytes.extend(tail);
        if let Ok(lock) = READER.read(&bytes).map(|written| {
            let mut lock = Lock::default();
            written.apply(&mut lock);
            lock
        }) {
            let again = write(&lock, &Change::Whole);
            assert_eq!(content(&read(READER, &again).expect("a lock")), content(&lock));
        }
    });
}

/// Bytes that no master writes: the lock would have more holders than permits.
#[test]
fn a_change_that_does_not_fit_the_lock_changes_nothing() {
    let mut lock =
        read(READER, &Layout { mode: 3, permits: 2, ..shared(&[b"a", b"b"]) }.bytes()).expect("a lock");
    let before = content(&lock);
    let third = Layout { mode: part(3), permits: 2, ..shared(&[b"c"]) };
    assert!(!READER.read(&third.bytes()).expect("a part").apply(&mut lock));
    assert_eq!(content(&lock), before);
    let instead = dropping(b"a", third);
    assert!(READER.read(&instead.bytes()).expect("a part").apply(&mut lock));
    assert_eq!(lock.at(NOW).holds().count(), 2);
}

/// The writer rounds the end of a delay up, and the time of writing down. So the written delay can be 1 ms
/// too long. Once, the reader refused the longest delay for that reason.
#[test]
fn the_longest_delay_is_read_back() {
    let reader = dlock_core::codec::Reader { now: dlock_core::Instant::from_micros(AT * 1000 + 1), ..READER };
    let layout = Layout { delay_until: AT + u64::from(u32::MAX) + 1, ..whole(0, 0, Vec::new()) };
    let lock = read(reader, &layout.bytes()).expect("a lock");
    assert_eq!(content(&lock).delay_until, AT + 1 + u64::from(u32::MAX));
}

#[test]
fn an_effect_consists_of_the_last_fence_and_a_change() {
    let change = shared(&[b"a", b"b"]).bytes();
    let effect = |last: u64| [&last.to_le_bytes()[..], &change].concat();
    let last_of = |bytes: &[u8]| READER.effect(bytes).map(|effect| effect.last);
    for last in [0, 1, Fence::MAX] {
        assert_eq!(last_of(&effect(last)), Ok(last));
    }
    let bad = |why| Err(BadEffect { last: None, why });
    for last in [Fence::MAX + 1, u64::MAX] {
        assert_eq!(last_of(&effect(last)), bad(Malformed::Value("last fence")));
    }
    for cut in [0, 7] {
        assert_eq!(last_of(&effect(1)[..cut]), bad(Malformed::Short));
    }
}

/// A server reads the last fence from an effect of any version, so that it issues only greater fences.
#[test]
fn an_effect_of_a_newer_version_is_refused_with_its_last_fence() {
    let mut effect = [&77_u64.to_le_bytes()[..], &shared(&[b"a"]).bytes()].concat();
    // The change follows the 8 bytes of the fence. The upper half of its first byte is the version.
    effect[8] += 16;
    let newer = BadEffect { last: Some(77), why: Malformed::Version(effect[8] / 16) };
    assert_eq!(READER.effect(&effect).err(), Some(newer));
}
