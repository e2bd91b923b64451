//! What INSPECT and WAITERS answer: who holds, who waits.

use std::borrow::Cow;

use super::{Reply, Sink, Value};
use crate::request::Mode;

map! {
    /// A resource as a server sees it.
    Inspection {
        /// As [`Mode::word`] says it, or [`Inspection::FREE`] or [`Inspection::STRING`].
        b"mode" mode: Cow<'a, [u8]>,
        /// How many permits there are; 0 in any other mode.
        b"permits" permits: u64,
        /// The greatest fence among the holders; 0 where nobody holds it.
        b"fence" fence: u64,
        /// Not all of them where they are many.
        b"holders" holders: Vec<Holder<'a>>,
        b"holders-count" holders_count: u64,
        b"waiters" waiters: u64,
        /// The ms left of a lock-delay.
        b"delay" delay: u64,
    }
}

map! {
    /// Who holds it.
    Holder {
        b"token" token: Cow<'a, [u8]>,
        b"count" count: u64,
        b"fence" fence: u64,
        /// The ms left of its lease.
        b"pttl" pttl: u64,
        /// The ms since the grant.
        b"held" held: u64,
        b"label" label: Cow<'a, [u8]>,
        b"ephemeral" ephemeral: bool,
        /// The connection it is bound to, or was granted to; 0 where none is known, as after a restart.
        b"client" client: u64,
        /// From where that connection comes; empty where none is known.
        b"addr" addr: Cow<'a, [u8]>,
    }
}

map! {
    /// Who waits for it.
    Waiting {
        /// The connection that waits; None, on the wire -1, for a position of its token's own.
        b"client" client: Option<u64>,
        b"token" token: Cow<'a, [u8]>,
        /// As [`Mode::word`] says it.
        b"mode" mode: Cow<'a, [u8]>,
        /// For so many ms.
        b"waited" waited: u64,
        /// For so many ms more; None, on the wire -1, for ever.
        b"left" left: Option<u64>,
        b"label" label: Cow<'a, [u8]>,
    }
}

impl Inspection<'_> {
    /// The mode of a resource that nobody holds.
    pub const FREE: &'static str = "free";
    /// Where a string counts as held by somebody who knows nothing of dlock.
    pub const STRING: &'static str = "string";
}

impl Mode {
    pub const fn word(self) -> &'static str {
        match self {
            Mode::Exclusive => "exclusive",
            Mode::Shared => "shared",
            Mode::Permits(_) => "permits",
        }
    }

    /// How many permits there are; 0 in any other mode.
    pub const fn permits(self) -> u32 {
        match self {
            Mode::Permits(n) => n.get(),
            Mode::Exclusive | Mode::Shared => 0,
        }
    }
}

/// Null where nobody holds the resource or waits for it, and no lock-delay runs.
impl Reply for Option<Inspection<'_>> {
    fn write(&self, to: &mut impl Sink) {
        match self {
            Some(seen) => seen.write(to),
            None => to.null(),
        }
    }

    fn read(value: Value) -> Option<Self> {
        if value == Value::Null { Some(None) } else { Inspection::read(value).map(Some) }
    }
}
