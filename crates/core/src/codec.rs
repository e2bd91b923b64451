//! The bytes of a lock, at rest (RDB, DUMP) and on the way (the effect that is replicated and logged).
//!
//! One layout for both, little-endian, version 3. Version 2 lacked `granted`; version 1 did too, and how wide
//! its numbers were stands on the right:
//!
//! ```text
//! u8      version, 3
//! u8      flags: 1 whole (start from nothing; else change what is there)
//! u8      mode: 0 free, 1 exclusive, 2 shared, 3 permits
//! u8      0
//! number  permits (mode 3, else 0)                                         u32
//! 8 bytes boot: which start of which machine the clock belongs to
//! number  offset: server clock - boot-time clock, ms, modulo 2^64          u64
//! number  at: the server clock when this was written, ms                   u64
//! number  delay_until, ms of the server clock, 0 for none and in mode 1    u64
//! number  n dropped, then number m put                                     u32, u32
//! n ×     u8 length, token
//! m ×     number fence, number deadline (ms of the server clock),          u64, u64
//!         number granted (ms of the server clock),                         -
//!         number ttl (ms), number count, number delay (ms),                u32, u32, u32
//!         u8 ephemeral (0 or 1), u8 token length, u8 label length, token, label
//! ```
//!
//! A number is an unsigned LEB128, as short as it can be: seven bits a byte, the least first, the top bit set
//! in all but the last. A hold with a token of 27 bytes takes 83 bytes. Of most locks nothing is left to
//! compress then, and a server loads a million without unpacking, in 4 to 9 % less time.
//!
//! An effect is a u64, the greatest fence that its writer has issued or accepted, and then the change. (An
//! argument of its own would cost the server 1,200 instructions more for each effect, of 14,000 for an
//! ACQUIRE that is logged.)
//!
//! Deadlines are absolute in the writer's clock, whose anchor stands beside them; [`Reader`] moves them to
//! its own. Whatever does not read as exactly this is refused whole; one lock has one form, but for the order
//! of its holds. A change of the layout takes a new version, and this module goes on reading the old one: the
//! fixtures in `tests/fixtures` are frozen.

use std::collections::HashSet;

use dlock_protocol::{Deadline, Instant, Token};
use smallvec::SmallVec;

use crate::lock::{Crowd, Ephemeral, Hold, Holding, Lock};
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
    /// A version this module does not know: a newer one wrote them.
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
                write!(f, "the bytes of a lock have version {v}, this module reads up to {VERSION}")
            }
            Malformed::Value(what) => write!(f, "the bytes of a lock have an impossible {what}"),
        }
    }
}

const VERSION: u8 = 3;
const WHOLE: u8 = 1;

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
    let flags = match change {
        Change::Part(tokens) => {
            for token in distinct(tokens) {
                match lock.stored_of(token.as_bytes()) {
                    Some(hold) => put.push(hold),
                    None => dropped.push(token),
                }
            }
            0
        }
        Change::Whole | Change::None => {
            match lock.holding() {
                // By far the most frequent.
                Holding::Exclusive(hold) => put.push(hold),
                Holding::Free { .. } => {}
                Holding::Crowd(crowd) => put.extend(crowd.holders.iter()),
            }
            WHOLE
        }
    };
    let (mode, permits) = match lock.holding() {
        Holding::Free { .. } => (0, 0),
        Holding::Exclusive(_) => (1, 0),
        Holding::Crowd(crowd) => match &**crowd {
            Crowd { permits: None, .. } => (2, 0),
            Crowd { permits: Some(n), .. } => (3, n.get()),
        },
    };
    // As long as all before the tokens can be.
    out.reserve(57 + dropped.len() * 32 + put.len() * 64);
    out.extend([VERSION, flags, mode, 0]);
    write_number(permits.into(), out);
    out.extend(anchor.boot.to_le_bytes());
    write_number(anchor.offset as u64, out);
    write_number(now.millis(), out);
    write_number(lock.delay_until().map_or(0, Deadline::millis), out);
    write_number(dropped.len() as u64, out);
    write_number(put.len() as u64, out);
    for token in dropped {
        out.push(token.as_bytes().len() as u8);
        out.extend(token.as_bytes());
    }
    for hold in put {
        write_hold(hold, out);
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

fn write_hold(hold: &Hold, out: &mut Vec<u8>) {
    let (token, label) = (hold.token().as_bytes(), hold.label());
    write_number(hold.fence().get(), out);
    write_number(hold.deadline().millis(), out);
    write_number(hold.granted().millis(), out);
    write_number(hold.ttl().millis(), out);
    write_number(hold.count().into(), out);
    write_number(hold.delay().millis(), out);
    out.extend([u8::from(hold.ephemeral() != Ephemeral::No), token.len() as u8, label.len() as u8]);
    out.extend(token);
    out.extend(label);
}
