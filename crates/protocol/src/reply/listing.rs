//! The reply of LIST: a cursor and locks.

use std::borrow::Cow;

use super::{Left, Reply, Sink, Value};

/// One step of an iteration over the locks of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing<'a> {
    /// The cursor of the next call. 0 at the end of the iteration. On the wire a string of digits, as for
    /// SCAN.
    pub cursor: u64,
    pub locks: Vec<Listed<'a>>,
}

map! {
    /// A listed lock.
    Listed {
        b"key" key: Cow<'a, [u8]>,
        /// Like [`super::Inspection::mode`].
        b"mode" mode: Cow<'a, [u8]>,
        b"holders" holders: u64,
        b"waiters" waiters: u64,
        /// The ms left of the longest lease.
        b"pttl" pttl: Left,
        /// Age of the oldest hold, in ms. 0 if there is no holder.
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
