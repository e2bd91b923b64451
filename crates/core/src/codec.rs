//! The bytes of a lock, at rest (RDB, DUMP) and on the way (the effect that is replicated and logged).
//!
//! One layout for both, little-endian, version 4:
//!
//! ```text
//! u8      16 × version, which is 4
//!         + mode: 0 free, 1 exclusive, 2 shared, 3 permits; + 4: a change of what is there (mode 2 or 3)
//! 8 bytes boot: which start of which machine the clock belongs to
//! 6 bytes offset: server clock - boot-time clock, ms, modulo 2^48
//! 6 bytes at: the server clock when this was written, ms
//! unless mode is 1, where one hold is put and none is dropped:
//!         number permits, in mode 3
//!         number delay_until, ms of the server clock, 0 for none
//!         number n dropped, then number m put
//! n ×     u8 length, token
//! m ×     number at - granted, ms
//!         signed fence - 1000 × granted
//!         signed deadline - at, ms
//!         number 2 × ttl, ms; + 1 where more follows behind the token
//!         u8 length, token
//!         more: number count, number delay (ms), u8 ephemeral (0 or 1), u8 length, label
//! ```
//!
//! A number is an unsigned LEB128, as short as it can be: seven bits a byte, the least first, the top bit set
//! in all but the last. A signed one is such a number: 2 × it, or 2 × -it - 1. Differences are modulo 2^64.
//!
//! A hold with a token of 27 bytes takes at most 63 while its lease is shorter than 18 hours and it was
//! granted less than three days ago: of up to 63 bytes a server reads the length at once, and each step of
//! reading costs it 240 instructions. Times lie near each other, so what lies between them is short.
//!
//! An effect is a u64, the greatest fence that its writer has issued or accepted, and then the change. (An
//! argument of its own would cost the server 1,200 instructions more for each effect, of 14,000 for an
//! ACQUIRE that is logged.)
//!
//! Deadlines are absolute in the writer's clock, whose anchor stands beside them; [`Reader`] moves them to
//! its own. Whatever does not read as exactly this is refused whole; one lock has one form, but for the order
//! of its holds. From the first release on, a change of the layout takes a new version, and the module reads
//! the old one too: then the fixtures in `tests/fixtures` are frozen.

use std::collections::HashSet;

use dlock_protocol::{Deadline, Instant, Token};
use smallvec::SmallVec;

use crate::lock::{Ephemeral, Hold, Holding, Lock};
use crate::step::Change;

mod cursor;
mod plain;
mod reading;

pub use plain::{Known, Plain};
pub use reading::{Reader, Written, split_effect};

/// What a clock's readings can be compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Names this start of this machine.
    pub boot: u64,
    /// Server clock - boot-time clock, ms.
    pub offset: i64,
}

impl Anchor {
    /// What a boot is called whose id the kernel tells as this text, in a time namespace whose boot-time
    /// clock is off by `offset` ns. None where the text is no id. It is stored, so it stays what it is
    /// whatever it is compiled with: the first 8 bytes of the id, moved by the offset so that each offset has
    /// a name of its own.
    pub fn boot(id: &str, offset: i128) -> Option<u64> {
        let digits: String = id.trim().chars().filter(|c| *c != '-').collect();
        let first = digits.get(..16).filter(|_| digits.len() == 32)?;
        let id = u64::from_str_radix(first, 16).ok()?;
        // By an odd number, so that no two products are the same.
        Some(id.wrapping_add((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// Where bytes came from, which decides what their deadlines mean on another boot or machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// Written by a living server, over the replication link or for RESTORE: leases count from the arrival.
    Live,
    /// Taken from storage: only the wall clocks relate the two times.
    Stored,
}

/// Why bytes were refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// They end too early.
    Short,
    /// They go on behind the end.
    Long,
    /// A version this module does not read.
    Version(u8),
    /// A value outside its range.
    Value(&'static str),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Short => write!(f, "the bytes of a lock end too early"),
            Malformed::Long => write!(f, "there are bytes behind the end of a lock"),
            Malformed::Version(v) => {
                write!(f, "the bytes of a lock have version {v}, this module reads {VERSION}")
            }
            Malformed::Value(what) => write!(f, "the bytes of a lock have an impossible {what}"),
        }
    }
}

const VERSION: u8 = 4;
/// Beside the mode.
const PART: u8 = 4;
/// In the number of the ttl.
const MORE: u64 = 1;

/// The longest lock-delay a hold can ask for, ms.
const MAX_DELAY: u64 = u32::MAX as u64;

/// Writes the effect of a change. `last` is the greatest fence that was issued or accepted.
pub fn write_effect(
    lock: &Lock,
    change: &Change,
    last: u64,
    now: Instant,
    anchor: Anchor,
    out: &mut Vec<u8>,
) {
    out.extend(last.to_le_bytes());
    write(lock, change, now, anchor, out);
}

/// Writes the effect that makes a key which holds nothing: what RENAME and MOVE leave. What is free makes no
/// key, so it is told as a lock-delay that ended long ago. Whoever loads that ends it when all is loaded, and
/// the key goes.
pub fn write_effect_of_nothing(last: u64, now: Instant, anchor: Anchor, out: &mut Vec<u8>) {
    let over = Lock::delayed(Deadline::at_millis(1));
    write_effect(&over, &Change::Whole, last, now, anchor, out);
}

/// Writes a change of a lock: all of it, or the holds that it names.
pub fn write(lock: &Lock, change: &Change, now: Instant, anchor: Anchor, out: &mut Vec<u8>) {
    let mut put = SmallVec::<[&Hold; 1]>::new();
    let mut dropped = Vec::new();
    let part = match change {
        Change::Part(tokens) => {
            for token in distinct(tokens) {
                match lock.stored_of(token.as_bytes()) {
                    Some(hold) => put.push(hold),
                    None => dropped.push(token),
                }
            }
            PART
        }
        Change::Whole | Change::None => {
            match lock.holding() {
                // By far the most frequent.
                Holding::Exclusive(hold) => put.push(hold),
                Holding::Free { .. } => {}
                Holding::Crowd(crowd) => put.extend(crowd.holders.iter()),
            }
            0
        }
    };
    let (mode, permits) = match lock.holding() {
        Holding::Free { .. } => (0, None),
        Holding::Exclusive(_) => (1, None),
        Holding::Crowd(crowd) => (if crowd.permits.is_some() { 3 } else { 2 }, crowd.permits),
    };
    // As long as all before the tokens can be.
    out.reserve(57 + dropped.len() * 32 + put.len() * 64);
    out.push(VERSION << 4 | mode | part);
    out.extend(anchor.boot.to_le_bytes());
    out.extend(&anchor.offset.to_le_bytes()[..6]);
    out.extend(&now.millis().to_le_bytes()[..6]);
    if mode != 1 {
        permits.into_iter().for_each(|permits| write_number(permits.get().into(), out));
        write_number(lock.delay_until().map_or(0, Deadline::millis), out);
        write_number(dropped.len() as u64, out);
        write_number(put.len() as u64, out);
    }
    for token in dropped {
        out.push(token.as_bytes().len() as u8);
        out.extend(token.as_bytes());
    }
    for hold in put {
        write_hold(hold, now.millis(), out);
    }
}

/// Each of these tokens once.
fn distinct(tokens: &[Token]) -> impl Iterator<Item = &Token> {
    // By far the most are one.
    let mut met = HashSet::with_capacity(if tokens.len() > 1 { tokens.len() } else { 0 });
    tokens.iter().filter(move |token| tokens.len() == 1 || met.insert(*token))
}

/// In LEB128. (The crate unsigned-varint 0.8 reads 2^64 as 0; so it is done here.)
fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// What lies between these numbers.
fn write_signed(number: u64, from: u64, out: &mut Vec<u8>) {
    let number = number.wrapping_sub(from) as i64;
    write_number((number << 1 ^ number >> 63) as u64, out);
}

fn write_hold(hold: &Hold, at: u64, out: &mut Vec<u8>) {
    let (token, label, granted) = (hold.token().as_bytes(), hold.label(), hold.granted().millis());
    let has_more = hold.has_extras();
    write_number(at.wrapping_sub(granted), out);
    write_signed(hold.fence().get(), granted.wrapping_mul(1000), out);
    write_signed(hold.deadline().millis(), at, out);
    write_number(hold.ttl().millis() << 1 | if has_more { MORE } else { 0 }, out);
    out.push(token.len() as u8);
    out.extend(token);
    if has_more {
        write_number(hold.count().into(), out);
        write_number(hold.delay().millis(), out);
        out.extend([u8::from(hold.ephemeral() != Ephemeral::No), label.len() as u8]);
        out.extend(label);
    }
}
