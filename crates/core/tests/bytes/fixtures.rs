//! Frozen bytes, one file for each kind of value. Servers have such bytes on their disks, so these files
//! never change. A new layout adds files.

use dlock_core::codec::Reader;
use dlock_core::{Change, Lock, Mode, Token};

use super::{AT, READER, content_of, hold, read, stored, whole, write};
use crate::model::content::content;
use dlock_testkit::{HoldLayout, Layout};

/// The bytes of a file of hexadecimal lines. Lines that begin with `#` are comments.
fn bytes(file: &str) -> Vec<u8> {
    let digits: String = file.lines().filter(|line| !line.starts_with('#')).collect();
    let byte = |at: usize| u8::from_str_radix(&digits[at..at + 2], 16).expect("two hexadecimal digits");
    (0..digits.len()).step_by(2).map(byte).collect()
}

macro_rules! fixture {
    ($name:literal) => {
        bytes(include_str!(concat!("../fixtures/4/", $name, ".hex")))
    };
}

/// All fixtures.
fn all() -> impl Iterator<Item = Vec<u8>> {
    [
        fixture!("exclusive"),
        fixture!("confirmed"),
        fixture!("shared"),
        fixture!("permits"),
        fixture!("free"),
        fixture!("part"),
    ]
    .into_iter()
}

/// The fence of a grant 100 ms before [`AT`]: its Unix time in µs.
const FENCE: u64 = AT * 1000 - 100_000;

/// A hold that was granted 100 ms before [`AT`].
fn granted(token: &[u8]) -> HoldLayout {
    HoldLayout { fence: FENCE, granted: FENCE / 1000, ..hold(token) }
}

#[test]
fn each_fixture_of_a_whole_lock_is_read_and_written_again() {
    let exclusive = HoldLayout {
        deadline: AT + 29_900,
        ttl: 30_000,
        count: 3,
        label: b"host-7/backup".to_vec(),
        ..granted(&(0xec..=0xff).collect::<Vec<u8>>())
    };
    // CONFIRM has raised the fence.
    let confirmed = HoldLayout { fence: AT * 1000 + 2_000_000, granted: AT - 7000, ..hold(b"voter") };
    let sharers = [
        HoldLayout { deadline: AT + 9_900, label: b"web-1".to_vec(), ..granted(b"reader-a") },
        HoldLayout {
            fence: FENCE + 1,
            deadline: AT + 1,
            ttl: 1000,
            delay: 250,
            ephemeral: 1,
            label: "büro".into(),
            ..granted(b"\x00\xff\x80")
        },
        HoldLayout {
            fence: FENCE + 2,
            deadline: AT + u64::from(u32::MAX) - 100,
            ttl: u32::MAX.into(),
            count: i32::MAX as u64,
            label: vec![b'y'; 255],
            ..granted(&[b'x'; 255])
        },
    ];
    let permits = [
        HoldLayout { deadline: AT + 900, ttl: 1000, ..granted(b"p1") },
        HoldLayout { fence: FENCE + 1, deadline: AT + 900, ttl: 1000, count: 2, delay: 7, ..granted(b"p2") },
    ];
    for (name, bytes, layout) in [
        ("exclusive", fixture!("exclusive"), whole(1, 0, vec![exclusive])),
        ("confirmed", fixture!("confirmed"), whole(1, 0, vec![confirmed])),
        ("shared", fixture!("shared"), whole(2, 0, sharers.to_vec())),
        ("permits", fixture!("permits"), whole(3, 5, permits.to_vec())),
        ("free", fixture!("free"), Layout { delay_until: AT + 150, ..whole(0, 0, Vec::new()) }),
    ] {
        assert_eq!(layout.bytes(), bytes, "{name}");
        let lock = read(READER, &bytes).expect("a lock");
        assert_eq!(content(&lock), content_of(&layout), "{name}");
        assert_eq!(write(&lock, &Change::Whole), bytes, "{name}");
    }
}

/// A lock with three sharers. The fixture `part` changes one of these holds, and removes the others.
fn three_sharers() -> Lock {
    let put = [&b"reader-a"[..], b"reader-b", b"\x00"].map(hold).to_vec();
    read(READER, &whole(2, 0, put).bytes()).expect("a lock")
}

#[test]
fn a_partial_change_is_read() {
    let bytes = fixture!("part");
    let part = READER.read(&bytes).expect("a part");
    assert!(!part.is_whole());
    assert_eq!((part.greatest_fence(), part.longest_ttl()), (FENCE, 10_000));
    let mut lock = three_sharers();
    assert!(part.apply(&mut lock));
    let left = HoldLayout { count: 2, ..granted(b"reader-a") };
    let found = content(&lock);
    assert_eq!((found.mode, found.delay_until), (Some(Mode::Shared), AT + 249));
    assert_eq!(found.holds, [stored(&left)]);
    // A token that occurs twice in a change is written once.
    let token = |bytes: &[u8]| Token::new(bytes).expect("a token");
    let named: [&[u8]; 5] = [b"reader-b", b"reader-a", b"reader-b", b"\x00", b"reader-a"];
    let change = Change::Part(named.map(token).to_vec());
    assert_eq!(write(&lock, &change), bytes);
}

/// The tests try every position in the bytes; under Miri, which is slow, only every 31st.
const STEP: usize = if cfg!(miri) { 31 } else { 1 };

/// Reads bytes, applies them to a held lock, writes the lock, and reads it back. Returns whether the bytes
/// were accepted.
fn is_accepted(reader: Reader, bytes: &[u8]) -> bool {
    let Ok(written) = reader.read(bytes) else { return false };
    let mut lock = three_sharers();
    let before = content(&lock);
    if !written.apply(&mut lock) {
        assert_eq!(content(&lock), before, "a refused change changes nothing");
    }
    let again = write(&lock, &Change::Whole);
    assert_eq!(content(&read(READER, &again).expect("a lock")), content(&lock));
    true
}

#[test]
fn truncated_bytes_are_refused() {
    for bytes in all() {
        assert!(is_accepted(READER, &bytes));
        for len in (0..bytes.len()).step_by(STEP) {
            assert!(READER.read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        assert!(READER.read(&[&bytes[..], &[0]].concat()).is_err(), "one byte more");
    }
}

#[test]
fn a_changed_byte_is_refused_or_read_as_a_lock() {
    let (mut read, mut refused) = (0, 0);
    for bytes in all() {
        for at in (0..bytes.len()).step_by(STEP) {
            for change in (1..=255).step_by(if cfg!(miri) { 85 } else { 1 }) {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                if is_accepted(READER, &bytes) { read += 1 } else { refused += 1 }
            }
        }
    }
    println!("{read} read as something, {refused} refused");
    assert!(read > 0 && refused > 0);
}
