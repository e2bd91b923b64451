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

mod cursor;
mod layout;
mod plain;
mod reading;
mod writing;

pub use layout::{Anchor, Malformed, Origin};
pub use plain::{Effect, Known, Plain};
pub use reading::{Reader, Written, split_effect};
pub use writing::{write, write_effect, write_effect_of_nothing};
