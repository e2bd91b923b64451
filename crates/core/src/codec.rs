//! The bytes of a lock, at rest (RDB, DUMP) and on the way (the effect that is replicated and logged).
//!
//! One layout for both, little-endian, version 1:
//!
//! ```text
//!  0  u8   version, 1
//!  1  u8   flags: 1 whole (start from nothing; else change what is there)
//!  2  u8   mode: 0 free, 1 exclusive, 2 shared, 3 permits
//!  3  u8   0
//!  4  u32  permits (mode 3, else 0)
//!  8  u64  boot: which start of which machine the clock belongs to
//! 16  i64  offset: server clock - boot-time clock, ms
//! 24  u64  at: the server clock when this was written, ms
//! 32  u64  delay_until, ms of the server clock, 0 for none
//! 40  u32  n dropped, then u32 m put
//! 48  n ×  u8 length, token
//!     m ×  u64 fence, u64 deadline (ms of the server clock), u32 ttl (ms), u32 count, u32 delay (ms),
//!          u8 ephemeral (0 or 1), u8 token length, u8 label length, token, label
//! ```
//!
//! An effect is a u64, the greatest fence that its writer has issued or accepted, and then the change. (An argument of
//! its own would cost the server 1,200 instructions more for each effect, of 14,000 for an ACQUIRE that is logged.)
//!
//! Deadlines are absolute in the writer's clock, whose anchor stands beside them; [`Reader`] moves them to its own.
//! Whatever does not read as exactly this is refused whole. A change of the layout takes a new version, and this module
//! goes on reading the old one: the fixtures in `tests/fixtures` are frozen.

use smallvec::SmallVec;

use crate::lock::{Ephemeral, Hold, Holding, Lock};
use crate::step::Change;
use crate::units::{Deadline, Instant, Token};

mod reading;

pub use reading::{Reader, Written};

/// What a clock's readings can be compared by.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Names this start of this machine.
    pub boot: u64,
    /// Server clock - boot-time clock, ms.
    pub offset: i64,
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

const VERSION: u8 = 1;
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

/// Writes a change of a lock: all of it, or the holds that it names.
pub fn write(lock: &Lock, change: &Change, now: Instant, anchor: Anchor, out: &mut Vec<u8>) {
    let (flags, put, dropped): (u8, SmallVec<[&Hold; 1]>, &[Token]) = match change {
        Change::Part(part) => {
            let put =
                part.put.iter().filter_map(|token| lock.stored().iter().find(|hold| hold.token == *token));
            (0, put.collect(), &part.dropped)
        }
        Change::Whole | Change::None => (WHOLE, lock.stored().iter().collect(), &[]),
    };
    let (mode, permits) = match &lock.holding {
        Holding::Free => (0, 0),
        Holding::Exclusive(_) => (1, 0),
        Holding::Shared(_) => (2, 0),
        Holding::Permits(n, _) => (3, n.get()),
    };
    out.reserve(48 + dropped.len() * 32 + put.len() * 64);
    out.extend([VERSION, flags, mode, 0]);
    out.extend(permits.to_le_bytes());
    out.extend(anchor.boot.to_le_bytes());
    out.extend(anchor.offset.to_le_bytes());
    out.extend(now.millis().to_le_bytes());
    out.extend(lock.delay_until.map_or(0, Deadline::millis).to_le_bytes());
    out.extend((dropped.len() as u32).to_le_bytes());
    out.extend((put.len() as u32).to_le_bytes());
    for token in dropped {
        out.push(token.as_bytes().len() as u8);
        out.extend(token.as_bytes());
    }
    for hold in put {
        write_hold(hold, out);
    }
}

fn write_hold(hold: &Hold, out: &mut Vec<u8>) {
    let (token, label) = (hold.token.as_bytes(), hold.label());
    out.extend(hold.fence.get().to_le_bytes());
    out.extend(hold.deadline.millis().to_le_bytes());
    out.extend((hold.ttl.millis() as u32).to_le_bytes());
    out.extend(hold.count.get().to_le_bytes());
    out.extend(hold.delay().to_le_bytes());
    out.extend([u8::from(hold.ephemeral() != Ephemeral::No), token.len() as u8, label.len() as u8]);
    out.extend(token);
    out.extend(label);
}
