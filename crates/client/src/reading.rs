//! What INSPECT and WAITERS answer, for people and for the wait queue.

use dlock_protocol::reply::{self, Reply};
use redis::Value;

use crate::inspect::{Holder, Inspection, Waiting};

/// DLOCK.INSPECT: None inside is null, nobody holds or waits.
pub(crate) fn inspection(value: Value) -> Option<Option<Inspection>> {
    Reply::read(plain(value)).map(|seen: Option<reply::Inspection>| seen.map(Inspection::from))
}

/// DLOCK.WAITERS.
pub(crate) fn queue(value: Value) -> Option<Vec<Waiting>> {
    Reply::read(plain(value)).map(|queue: Vec<reply::Waiting>| queue.into_iter().map(Waiting::from).collect())
}

/// DLOCK.BREAK, and the like.
pub(crate) fn number(value: Value) -> Option<u64> {
    Reply::read(plain(value))
}

/// A value of the connection as one of the protocol.
pub(crate) fn plain(value: Value) -> reply::Value {
    match value {
        Value::Nil => reply::Value::Null,
        Value::Int(number) => reply::Value::Int(number),
        Value::BulkString(bytes) => reply::Value::Bulk(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => reply::Value::Bulk(text.into()),
        Value::Array(items) => reply::Value::Array(items.into_iter().map(plain).collect()),
        Value::Map(pairs) => {
            reply::Value::Map(pairs.into_iter().map(|(name, value)| (plain(name), plain(value))).collect())
        }
        _ => reply::Value::Other,
    }
}

impl From<reply::Inspection<'_>> for Inspection {
    fn from(seen: reply::Inspection<'_>) -> Inspection {
        Inspection {
            mode: shown(&seen.mode),
            permits: seen.permits,
            fence: seen.fence,
            holders: seen.holders.into_iter().map(Holder::from).collect(),
            waiters: seen.waiters,
            delay_ms: seen.delay,
        }
    }
}

impl From<reply::Holder<'_>> for Holder {
    fn from(holder: reply::Holder<'_>) -> Holder {
        Holder {
            token: shown(&holder.token),
            count: holder.count,
            fence: holder.fence,
            left_ms: holder.pttl,
            label: shown(&holder.label),
            ephemeral: holder.ephemeral,
            client: holder.client,
        }
    }
}

impl From<reply::Waiting<'_>> for Waiting {
    fn from(waiting: reply::Waiting<'_>) -> Waiting {
        Waiting {
            client: waiting.client.unwrap_or_default(),
            token: shown(&waiting.token),
            mode: shown(&waiting.mode),
            waited_ms: waiting.waited,
            left_ms: waiting.left,
            label: shown(&waiting.label),
        }
    }
}

/// How a token or a label is shown: UTF-8 as it is, other bytes escaped, no two in the same way.
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
