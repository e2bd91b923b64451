//! The replies of INSPECT and WAITERS: holders and waiters.

use std::borrow::Cow;

use super::{Reply, Sink, Value};
use crate::request::Mode;

map! {
    /// The state of a resource on one server.
    Inspection {
        /// [`Mode::word`], [`Inspection::FREE`] or [`Inspection::STRING`].
        b"mode" mode: Cow<'a, [u8]>,
        /// The number of permits. 0 in other modes.
        b"permits" permits: u64,
        /// The greatest fence of the holders. 0 if there is no holder.
        b"fence" fence: u64,
        /// At most [`Inspect::MAX_SHOWN`](crate::command::Inspect::MAX_SHOWN) holders.
        b"holders" holders: Vec<Holder<'a>>,
        /// The number of all holders.
        b"holders-count" holders_count: u64,
        b"waiters" waiters: u64,
        /// The ms left of a lock-delay.
        b"delay" delay: u64,
    }
}

map! {
    /// A holder of a lock.
    Holder {
        b"token" token: Cow<'a, [u8]>,
        b"count" count: u64,
        b"fence" fence: u64,
        /// The ms left of the lease.
        b"pttl" pttl: u64,
        /// The ms since the grant.
        b"held" held: u64,
        b"label" label: Cow<'a, [u8]>,
        b"ephemeral" ephemeral: bool,
        /// The connection that the hold is bound to, or was granted to. 0 if it is unknown, for example after
        /// a restart.
        b"client" client: u64,
        /// The peer address of that connection. Empty if it is unknown.
        b"addr" addr: Cow<'a, [u8]>,
    }
}

map! {
    /// A waiter in the queue of a lock.
    Waiting {
        /// The connection that waits. `None` (-1 on the wire) for a QUEUE position.
        b"client" client: Option<u64>,
        b"token" token: Cow<'a, [u8]>,
        /// [`Mode::word`].
        b"mode" mode: Cow<'a, [u8]>,
        /// The ms waited so far.
        b"waited" waited: u64,
        /// Remaining wait in ms. `None` (-1 on the wire) means no timeout.
        b"left" left: Option<u64>,
        b"label" label: Cow<'a, [u8]>,
    }
}

impl Inspection<'_> {
    /// The mode of a resource without a holder.
    pub const FREE: &'static str = "free";
    /// The mode of a key that holds a string, which counts as a lock of `SET NX PX`.
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

    /// The number of permits. 0 in other modes.
    pub const fn permits(self) -> u32 {
        match self {
            Mode::Permits(n) => n.get(),
            Mode::Exclusive | Mode::Shared => 0,
        }
    }
}

/// Null if the resource has no holder, no waiter and no delay.
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
