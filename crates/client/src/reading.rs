//! What INSPECT and WAITERS answer, read. Fields that this client does not know are passed over.

use redis::Value;

use crate::inspect::{Holder, Inspection, Waiting};

/// DLOCK.INSPECT: None inside is null, nobody holds or waits.
pub(crate) fn inspection(value: Value) -> Option<Option<Inspection>> {
    let mut read = Inspection::default();
    let Some(fields) = fields(value)? else { return Some(None) };
    for (name, value) in fields {
        match name.as_str() {
            "mode" => read.mode = text(value)?,
            "permits" => read.permits = number(value)?,
            "fence" => read.fence = number(value)?,
            "holders" => read.holders = list(value, holder)?,
            "waiters" => read.waiters = number(value)?,
            "delay" => read.delay_ms = number(value)?,
            _ => {}
        }
    }
    Some(Some(read))
}

/// DLOCK.WAITERS.
pub(crate) fn line(value: Value) -> Option<Vec<Waiting>> {
    list(value, waiting)
}

/// DLOCK.BREAK, and the like.
pub(crate) fn number(value: Value) -> Option<u64> {
    match value {
        Value::Int(number) => u64::try_from(number).ok(),
        _ => None,
    }
}

fn holder(value: Value) -> Option<Holder> {
    let mut read = Holder::default();
    for (name, value) in fields(value)?? {
        match name.as_str() {
            "token" => read.token = text(value)?,
            "count" => read.count = number(value)?,
            "fence" => read.fence = number(value)?,
            "pttl" => read.left_ms = number(value)?,
            "label" => read.label = text(value)?,
            "ephemeral" => read.ephemeral = number(value)? != 0,
            "client" => read.client = number(value)?,
            _ => {}
        }
    }
    Some(read)
}

fn waiting(value: Value) -> Option<Waiting> {
    let mut read = Waiting::default();
    for (name, value) in fields(value)?? {
        match name.as_str() {
            "client" => read.client = number(value)?,
            "token" => read.token = text(value)?,
            "mode" => read.mode = text(value)?,
            "waited" => read.waited_ms = number(value)?,
            "left" => read.left_ms = number(value),
            "label" => read.label = text(value)?,
            _ => {}
        }
    }
    Some(read)
}

/// A map's fields; None inside for null.
fn fields(value: Value) -> Option<Option<Vec<(String, Value)>>> {
    match value {
        Value::Nil => Some(None),
        Value::Map(pairs) => {
            let named = pairs.into_iter().map(|(name, value)| Some((text(name)?, value)));
            named.collect::<Option<_>>().map(Some)
        }
        _ => None,
    }
}

fn list<T>(value: Value, read: impl Fn(Value) -> Option<T>) -> Option<Vec<T>> {
    match value {
        Value::Array(items) => items.into_iter().map(read).collect(),
        _ => None,
    }
}

/// Bytes for people: UTF-8 as it is, other bytes escaped.
fn text(value: Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => Some(shown(&bytes)),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

/// How a token or a label is shown: no two in the same way.
pub(crate) fn shown(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\\') => text.to_string(),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::shown;

    #[test]
    fn no_two_are_shown_in_the_same_way() {
        let all: [&[u8]; 6] = [b"\xff", b"\\xff", b"\\\\xff", "größe".as_bytes(), "gr\\öße".as_bytes(), b""];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| shown(one) != shown(other)), "{}", shown(one));
        }
        assert_eq!(shown("größe".as_bytes()), "größe");
    }
}
