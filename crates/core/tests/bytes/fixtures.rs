//! Frozen bytes, one file for each kind of value. Servers have such bytes on their disks, so these files
//! never change. A new layout adds files.

use dlock_core::codec::Reader;
use dlock_core::{Change, Lock, Mode, Token};

use super::{AT, NOW, Plain, PlainHold, READER, read, write};
use crate::model::content::{Stored, content};

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

const FENCE: u64 = AT * 1000 - 100_000;

fn holds(bytes: &[u8], plain: &Plain) -> Lock {
    assert_eq!(plain.bytes(), bytes);
    let lock = read(READER, bytes).expect("a lock");
    assert_eq!(content(&lock), plain.content());
    assert_eq!(write(&lock, &Change::Whole), bytes);
    lock
}

/// CONFIRM has raised the fence.
#[test]
fn a_confirmed_hold_is_read() {
    let hold = PlainHold { fence: AT * 1000 + 2_000_000, granted: AT - 7000, ..PlainHold::new(b"voter") };
    let lock = holds(&fixture!("confirmed"), &Plain::whole(1, 0, vec![hold]));
    assert!(lock.at(NOW).holds().all(|hold| hold.held_millis(NOW) == 7000));
}

#[test]
fn an_exclusive_hold_is_read() {
    let token: Vec<u8> = (0xec..=0xff).collect();
    let hold = PlainHold {
        fence: FENCE,
        granted: FENCE / 1000,
        deadline: AT + 29_900,
        ttl: 30_000,
        count: 3,
        label: b"host-7/backup".to_vec(),
        ..PlainHold::new(&token)
    };
    holds(&fixture!("exclusive"), &Plain::whole(1, 0, vec![hold]));
}

#[test]
fn sharers_with_labels_are_read() {
    let first = PlainHold {
        fence: FENCE,
        granted: FENCE / 1000,
        deadline: AT + 9_900,
        label: b"web-1".to_vec(),
        ..PlainHold::new(b"reader-a")
    };
    let dies_badly = PlainHold {
        fence: FENCE + 1,
        granted: FENCE / 1000,
        deadline: AT + 1,
        ttl: 1000,
        delay: 250,
        ephemeral: 1,
        label: "büro".into(),
        ..PlainHold::new(b"\x00\xff\x80")
    };
    let longest = PlainHold {
        fence: FENCE + 2,
        granted: FENCE / 1000,
        deadline: AT + u64::from(u32::MAX) - 100,
        ttl: u32::MAX,
        count: i32::MAX as u32,
        label: vec![b'y'; 255],
        ..PlainHold::new(&[b'x'; 255])
    };
    holds(&fixture!("shared"), &Plain::whole(2, 0, vec![first, dies_badly, longest]));
}

#[test]
fn a_semaphore_is_read() {
    let hold = |token, fence, count, delay| PlainHold {
        fence,
        granted: fence / 1000,
        deadline: AT + 900,
        ttl: 1000,
        count,
        delay,
        ..PlainHold::new(token)
    };
    let two = vec![hold(b"p1", FENCE, 1, 0), hold(b"p2", FENCE + 1, 2, 7)];
    holds(&fixture!("permits"), &Plain::whole(3, 5, two));
}

#[test]
fn a_free_lock_with_a_delay_is_read() {
    holds(&fixture!("free"), &Plain { delay_until: AT + 150, ..Plain::whole(0, 0, Vec::new()) });
}

/// The three sharers to which the partial change applies.
fn three_sharers() -> Lock {
    let put = [&b"reader-a"[..], b"reader-b", b"\x00"].map(PlainHold::new).to_vec();
    read(READER, &Plain::whole(2, 0, put).bytes()).expect("a lock")
}

#[test]
fn a_partial_change_is_read() {
    let bytes = fixture!("part");
    let part = READER.read(&bytes).expect("a part");
    assert!(!part.is_whole());
    assert_eq!((part.greatest_fence(), part.longest_ttl()), (FENCE, 10_000));
    let mut lock = three_sharers();
    assert!(part.apply(&mut lock));
    let left = PlainHold {
        fence: FENCE,
        granted: FENCE / 1000,
        deadline: AT + 10_000,
        count: 2,
        ..PlainHold::new(b"reader-a")
    };
    let is = content(&lock);
    assert_eq!((is.mode, is.delay_until), (Some(Mode::Shared), AT + 249));
    assert_eq!(is.holds, [left.stored()] as [Stored; 1]);
    let token = |bytes: &[u8]| Token::new(bytes).expect("a token");
    let named: [&[u8]; 5] = [b"reader-b", b"reader-a", b"reader-b", b"\x00", b"reader-a"];
    let change = Change::Part(named.map(token).to_vec());
    assert_eq!(write(&lock, &change), bytes);
}

/// The step between the tried positions: each position, but fewer under Miri.
const SOME: usize = if cfg!(miri) { 31 } else { 1 };

/// Reads bytes, applies them to a held lock, writes the lock, and reads it back. Returns whether the bytes
/// were accepted.
fn survives(reader: Reader, bytes: &[u8]) -> bool {
    let Ok(written) = reader.read(bytes) else { return false };
    let mut lock = three_sharers();
    let before = content(&lock);
    if !written.apply(&mut lock) {
        assert_eq!(content(&lock), before, "what does not fit changes nothing");
    }
    let again = write(&lock, &Change::Whole);
    assert_eq!(content(&read(READER, &again).expect("a lock")), content(&lock));
    true
}

#[test]
fn truncated_bytes_are_refused() {
    for bytes in all() {
        assert!(survives(READER, &bytes));
        for len in (0..bytes.len()).step_by(SOME) {
            assert!(READER.read(&bytes[..len]).is_err(), "{len} of {} bytes", bytes.len());
        }
        assert!(READER.read(&[&bytes[..], &[0]].concat()).is_err(), "one byte more");
    }
}

#[test]
fn a_changed_byte_is_refused_or_reads_as_another_lock() {
    let (mut read, mut refused) = (0, 0);
    for bytes in all() {
        for at in (0..bytes.len()).step_by(SOME) {
            for change in (1..=255).step_by(if cfg!(miri) { 85 } else { 1 }) {
                let mut bytes = bytes.clone();
                bytes[at] ^= change;
                if survives(READER, &bytes) { read += 1 } else { refused += 1 }
            }
        }
    }
    println!("{read} read as something, {refused} refused");
    assert!(read > 0 && refused > 0);
}
