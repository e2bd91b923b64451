//! What LIST answers: where to go on, and locks.

use std::borrow::Cow;

use super::{Left, Reply, Sink, Value};

/// A part of a walk over the locks of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing<'a> {
    /// Where the next call goes on; 0 at the end. In digits, as SCAN answers it.
    pub cursor: u64,
    pub locks: Vec<Listed<'a>>,
}

map! {
    /// A lock of the walk.
    Listed {
        b"key" key: Cow<'a, [u8]>,
        /// As [`super::Inspection::mode`].
        b"mode" mode: Cow<'a, [u8]>,
        b"holders" holders: u64,
        b"waiters" waiters: u64,
        /// Of the longest lease.
        b"pttl" pttl: Left,
        /// The ms since the first grant among the holders'; 0 where nobody holds it.
        b"held" held: u64,
    }
}

impl Reply for Listing<'_> {
    fn write(&self, to: &mut impl Sink) {
        to.array(2);
        to.bulk(self.cursor.to_string().as_bytes());
        self.locks.write(to);
    }

    fn read(value: Value) -> Option<Self> {
        let Value::Array(parts) = value else { return None };
        let [cursor, locks] = <[Value; 2]>::try_from(parts).ok()?;
        let cursor = std::str::from_utf8(&Cow::read(cursor)?).ok()?.parse().ok()?;
        Some(Listing { cursor, locks: Vec::read(locks)? })
    }
}
