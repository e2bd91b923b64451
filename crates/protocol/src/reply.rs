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
use crate::units::Fence;

/// Defines a reply that is a map: for each field, its name on the wire, its name here and its type.
macro_rules! map {
    ($(#[$doc:meta])* $name:ident { $($(#[$about:meta])* $wire:literal $field:ident: $kind:ty,)* }) => {
        $(#[$doc])*
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct $name<'a> {
            $($(#[$about])* pub $field: $kind,)*
        }

        impl Reply for $name<'_> {
            fn write(&self, to: &mut impl Sink) {
                to.map([$(stringify!($field)),*].len());
                $(
                    to.bulk($wire);
                    self.$field.write(to);
                )*
            }

            fn read(value: Value) -> Option<Self> {
                let mut seen = Self::default();
                for (name, value) in super::fields(value)? {
                    match &name[..] {
                        $($wire => seen.$field = Reply::read(value)?,)*
                        _ => {}
                    }
                }
                Some(seen)
            }
        }
    };
}

mod inspection;
mod listing;
mod logged;

pub use inspection::{Holder, Inspection, Waiting};
pub use listing::{Listed, Listing};
pub use logged::{Lasted, Logged};

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

/// A list. The wait queue has its head first.
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

/// The lines of HELP.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Help(pub Vec<Cow<'static, str>>);

impl Help {
    /// The form and the summary of each command.
    pub fn new() -> Help {
        let first = "DLOCK.<command> [<arg> [value] ...]. Commands are:".into();
        let of = |doc: &&crate::command::Doc| {
            let form = format!("{} {}", doc.name, doc.form).trim_end().to_owned();
            [form.into(), format!("    {}.", doc.summary).into()]
        };
        Help([first].into_iter().chain(TABLE.iter().flat_map(of)).collect())
    }
}

impl Default for Help {
    fn default() -> Help {
        Help::new()
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
