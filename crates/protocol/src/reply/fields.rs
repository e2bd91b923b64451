//! Maps and lists: their fields and elements, one by one.

use super::{Sink, Value};

/// Writes the name of a field; its value comes next.
pub(super) fn name<'s, S: Sink>(to: &'s mut S, name: &str) -> &'s mut S {
    to.bulk(name.as_bytes());
    to
}

/// The fields of a map in either shape.
pub(super) fn read(value: Value) -> Option<Vec<(Vec<u8>, Value)>> {
    let named = |(name, value)| Some((bytes(name)?, value));
    match value {
        Value::Map(pairs) => pairs.into_iter().map(named).collect(),
        Value::Array(flat) if flat.len().is_multiple_of(2) => {
            let mut flat = flat.into_iter();
            std::iter::from_fn(|| Some((flat.next()?, flat.next()?))).map(named).collect()
        }
        _ => None,
    }
}

pub(super) fn list<T>(value: Value, read: impl Fn(Value) -> Option<T>) -> Option<Vec<T>> {
    match value {
        Value::Array(items) => items.into_iter().map(read).collect(),
        _ => None,
    }
}

pub(super) fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::Bulk(bytes) => Some(bytes),
        _ => None,
    }
}
