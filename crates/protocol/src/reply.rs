//! The replies of the commands, with each reader beside its writer. Errors are in [`crate::error`].
//!
//! | command | reply |
//! |---|---|
//! | ACQUIRE, CONFIRM | `Option<Fence>` |
//! | EXTEND | `bool` |
//! | RELEASE, HOLDS, CANCEL, BREAK | `u64` |
//! | PTTL | [`Left`] |
//! | INSPECT | `Option<`[`Inspection`]`>` |
//! | WAITERS | `Vec<`[`Waiting`]`>` |
//! | LIST | [`Listing`] |
//! | LOG | `Vec<`[`Logged`]`>`, or OK |
//! | TOKEN | [`Token`] |
//! | HELP | [`Help`] |
//!
//! A reader skips fields that it does not know and accepts a map in either shape: RESP3's, or the flat array
//! of RESP2. So a client understands older and newer servers.

use std::borrow::Cow;

use crate::command::TABLE;
use crate::names::Token;
use crate::request::Mode;
use crate::units::Fence;

/// Defines a reply that is a map: for each field, its name on the wire, its name here and its type. Fields
/// after a semicolon are options, and left out of the map if they are `None`.
macro_rules! map {
    ($(#[$doc:meta])* $name:ident {
        $($(#[$about:meta])* $wire:literal $field:ident: $kind:ty,)*
        $(; $($(#[$about_option:meta])* $option_wire:literal $option:ident: $option_kind:ty,)*)?
    }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name<'a> {
            $($(#[$about])* pub $field: $kind,)*
            $($($(#[$about_option])* pub $option: Option<$option_kind>,)*)?
        }

        impl Reply for $name<'_> {
            fn write(&self, to: &mut impl Sink) {
                let options: usize = 0 $($(+ usize::from(self.$option.is_some()))*)?;
                to.map([$(stringify!($field)),*].len() + options);
                $(
                    to.bulk($wire);
                    self.$field.write(to);
                )*
                $($(if let Some(value) = &self.$option {
                    to.bulk($option_wire);
                    value.write(to);
                })*)?
            }

            fn read(value: Value) -> Option<Self> {
                let mut seen = Self::default();
                for (name, value) in fields(value)? {
                    match &name[..] {
                        $($wire => seen.$field = Reply::read(value)?,)*
                        $($($option_wire => seen.$option = Some(Reply::read(value)?),)*)?
                        _ => {}
                    }
                }
                Some(seen)
            }
        }
    };
}

/// The destination of a reply: a connection, or memory.
pub trait Sink {
    fn int(&mut self, number: i64);
    fn null(&mut self);
    fn bulk(&mut self, bytes: &[u8]);
    /// Begins an array. The next `len` values are its elements.
    fn array(&mut self, len: usize);
    /// Begins a map. The next `len` pairs of values are its fields.
    fn map(&mut self, len: usize);
}

/// A reply as it was received.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Value {
    Null,
    Int(i64),
    Bulk(Vec<u8>),
    Array(Vec<Value>),
    Map(Vec<(Value, Value)>),
    /// A value of a type that no command returns.
    Other,
}

/// A type of reply.
pub trait Reply: Sized {
    fn write(&self, to: &mut impl Sink);

    /// `None` if the value is no reply of this type.
    fn read(value: Value) -> Option<Self>;
}

/// The fence of the hold. Null if there is no hold.
impl Reply for Option<Fence> {
    #[inline]
    fn write(&self, to: &mut impl Sink) {
        match self {
            Some(fence) => fence.get().write(to),
            None => to.null(),
        }
    }

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Null => Some(None),
            number => u64::read(number).and_then(Fence::from_outside).map(Some),
        }
    }
}

impl Reply for bool {
    fn write(&self, to: &mut impl Sink) {
        to.int((*self).into());
    }

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Int(0) => Some(false),
            Value::Int(1) => Some(true),
            _ => None,
        }
    }
}

impl Reply for u64 {
    #[inline]
    fn write(&self, to: &mut impl Sink) {
        to.int(i64::try_from(*self).unwrap_or(i64::MAX));
    }

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Int(number) => number.try_into().ok(),
            _ => None,
        }
    }
}

/// The remaining time of a wait in ms. `None` (-1 on the wire) means no timeout.
impl Reply for Option<u64> {
    fn write(&self, to: &mut impl Sink) {
        to.int(self.map_or(-1, |ms| i64::try_from(ms).unwrap_or(i64::MAX)));
    }

    fn read(value: Value) -> Option<Self> {
        Some(u64::read(value))
    }
}

/// The ms left of a lease. `None` (-2 on the wire) if there is no lease.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Left(pub Option<u64>);

impl Reply for Left {
    fn write(&self, to: &mut impl Sink) {
        match self.0 {
            Some(ms) => ms.write(to),
            None => to.int(-2),
        }
    }

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Int(-2) => Some(Left(None)),
            number => u64::read(number).map(|ms| Left(Some(ms))),
        }
    }
}

impl Reply for Cow<'_, [u8]> {
    fn write(&self, to: &mut impl Sink) {
        to.bulk(self);
    }

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Bulk(bytes) => Some(Cow::Owned(bytes)),
            _ => None,
        }
    }
}

impl Reply for Token {
    fn write(&self, to: &mut impl Sink) {
        to.bulk(self.as_bytes());
    }

    fn read(value: Value) -> Option<Self> {
        Token::new(&Cow::read(value)?)
    }
}

/// An array of replies. In the reply to WAITERS, the head of the queue is first.
impl<T: Reply> Reply for Vec<T> {
    fn write(&self, to: &mut impl Sink) {
        to.array(self.len());
        self.iter().for_each(|item| item.write(to));
    }

    fn read(value: Value) -> Option<Self> {
        match value {
            Value::Array(items) => items.into_iter().map(T::read).collect(),
            _ => None,
        }
    }
}

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
        /// The ms left of a lock-delay (option DELAY of ACQUIRE).
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
        /// Whether the hold also ends when its connection closes.
        b"ephemeral" ephemeral: bool,
        /// The connection that was granted the hold, or to which the hold was bound later. 0 if it has closed
        /// or is unknown, for example after a restart.
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

/// One step of an iteration over the locks of a database.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Listing<'a> {
    /// The cursor of the next call. 0 at the end of the iteration. On the wire a string of digits, as for
    /// SCAN.
    pub cursor: u64,
    pub locks: Vec<Listed<'a>>,
}

map! {
    /// A listed lock. The first holder is the one that INSPECT shows first.
    Listed {
        b"key" key: Cow<'a, [u8]>,
        /// Like [`Inspection::mode`].
        b"mode" mode: Cow<'a, [u8]>,
        b"holders" holders: u64,
        b"waiters" waiters: u64,
        /// The ms left of the longest lease.
        b"pttl" pttl: Left,
        /// Age of the oldest hold, in ms. 0 if there is no holder.
        b"held" held: u64,
        /// The ms left of a lock-delay.
        b"delay" delay: u64,
        /// The token of the first holder, as INSPECT shows it. Empty if there is no holder.
        b"token" token: Cow<'a, [u8]>,
        /// The fence of the first holder. 0 if there is none.
        b"fence" fence: u64,
        /// The label of the first holder.
        b"label" label: Cow<'a, [u8]>,
        /// The address of the first holder: see [`Holder::addr`].
        b"addr" addr: Cow<'a, [u8]>,
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

map! {
    /// An entry of LOG: an incident of a hold or of a wait, such as an expired lease or a deadlock.
    Logged {
        b"id" id: u64,
        /// Unix time in ms.
        b"time" time: u64,
        /// The kind of incident, such as `expired`.
        b"what" what: Cow<'a, [u8]>,
        b"db" db: u64,
        b"key" key: Cow<'a, [u8]>,
        b"token" token: Cow<'a, [u8]>,
        b"label" label: Cow<'a, [u8]>,
        /// The connection of the holder or waiter. 0 if it is unknown.
        b"client" client: u64,
        b"address" address: Cow<'a, [u8]>,
        /// The fence of the hold that ended or was granted. 0 if there is none.
        b"fence" fence: u64,
        ;
        /// The duration of the hold, in ms. `None` for an incident of a wait.
        b"held" held: u64,
        /// The duration of the wait, in ms. `None` for an incident of a hold.
        b"waited" waited: u64,
    }
}

/// The lines of HELP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Help(pub Vec<Cow<'static, str>>);

impl Help {
    /// The form and the summary of each command.
    pub fn of_all_commands() -> Help {
        let first = "DLOCK.<command> [<arg> [value] ...]. Commands are:".into();
        let of = |doc: &&crate::command::Doc| {
            let form = format!("{} {}", doc.name, doc.form).trim_end().to_owned();
            [form.into(), format!("    {}.", doc.summary).into()]
        };
        Help([first].into_iter().chain(TABLE.iter().flat_map(of)).collect())
    }
}

impl Reply for Help {
    fn write(&self, to: &mut impl Sink) {
        to.array(self.0.len());
        self.0.iter().for_each(|line| to.bulk(line.as_bytes()));
    }

    fn read(value: Value) -> Option<Self> {
        let line = |bytes: Cow<'_, [u8]>| String::from_utf8(bytes.into_owned()).ok().map(Cow::from);
        Vec::read(value)?.into_iter().map(line).collect::<Option<_>>().map(Help)
    }
}

/// The fields of a map, in the shape of RESP3 or of RESP2.
fn fields(value: Value) -> Option<Vec<(Vec<u8>, Value)>> {
    let named = |(name, value)| match name {
        Value::Bulk(name) => Some((name, value)),
        _ => None,
    };
    match value {
        Value::Map(pairs) => pairs.into_iter().map(named).collect(),
        Value::Array(flat) if flat.len().is_multiple_of(2) => {
            let mut flat = flat.into_iter();
            std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).map(named).collect()
        }
        _ => None,
    }
}
