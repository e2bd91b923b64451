//! Reads replies, such as those to INSPECT and LIST, and converts them to the types of `inspect`.

use dlock_protocol::reply::{self, Reply};
use redis::Value;

use crate::holder::Holder;
use crate::inspect::{Inspection, Listed, Logged, Waiting};

/// Reads the reply to DLOCK.INSPECT. `None` if the value is not such a reply. The inner `None` means that the
/// lock has no holder and no waiter.
pub(crate) fn inspection(value: Value) -> Option<Option<Inspection>> {
    Reply::read(convert(value)).map(|seen: Option<reply::Inspection>| seen.map(Inspection::from))
}

/// Reads the reply to DLOCK.WAITERS.
pub(crate) fn queue(value: Value) -> Option<Vec<Waiting>> {
    Reply::read(convert(value)).map(|seen: Vec<reply::Waiting>| seen.into_iter().map(Waiting::from).collect())
}

/// Reads the reply to DLOCK.LIST: the next cursor, and locks.
pub(crate) fn listing(value: Value) -> Option<(u64, Vec<Listed>)> {
    let seen: reply::Listing = Reply::read(convert(value))?;
    Some((seen.cursor, seen.locks.into_iter().map(Listed::from).collect()))
}

/// Reads the reply to DLOCK.LOG.
pub(crate) fn log(value: Value) -> Option<Vec<Logged>> {
    Reply::read(convert(value)).map(|log: Vec<reply::Logged>| log.into_iter().map(Logged::from).collect())
}

/// Reads any answer as the texts in it, in their order.
pub(crate) fn texts(value: Value) -> Option<Vec<String>> {
    fn push(value: Value, texts: &mut Vec<String>) {
        match value {
            Value::Int(number) => texts.push(number.to_string()),
            Value::BulkString(bytes) => texts.push(String::from_utf8_lossy(&bytes).into_owned()),
            Value::SimpleString(text) | Value::VerbatimString { text, .. } => texts.push(text),
            Value::Okay => texts.push("OK".into()),
            Value::Array(items) | Value::Set(items) => items.into_iter().for_each(|item| push(item, texts)),
            Value::Map(pairs) => pairs.into_iter().for_each(|(name, value)| {
                push(name, texts);
                push(value, texts);
            }),
            _ => {}
        }
    }
    let mut texts = Vec::new();
    push(value, &mut texts);
    Some(texts)
}

/// Reads the answer to TIME, in µs since 1970.
pub(crate) fn clock(value: Value) -> Option<u64> {
    let texts = texts(value)?;
    let [seconds, micros] = texts.as_slice() else { return None };
    seconds.parse::<u64>().ok()?.checked_mul(1_000_000)?.checked_add(micros.parse().ok()?)
}

/// Reads an answer of one text.
pub(crate) fn text(value: Value) -> Option<String> {
    texts(value)?.pop()
}

/// Reads an answer of one number.
pub(crate) fn number(value: Value) -> Option<u64> {
    Reply::read(convert(value))
}

/// Converts a value of the `redis` crate to one of `dlock-protocol`.
pub(crate) fn convert(value: Value) -> reply::Value {
    match value {
        Value::Nil => reply::Value::Null,
        Value::Int(number) => reply::Value::Int(number),
        Value::BulkString(bytes) => reply::Value::Bulk(bytes),
        Value::SimpleString(text) | Value::VerbatimString { text, .. } => reply::Value::Bulk(text.into()),
        Value::Array(items) => reply::Value::Array(items.into_iter().map(convert).collect()),
        Value::Map(pairs) => reply::Value::Map(
            pairs.into_iter().map(|(name, value)| (convert(name), convert(value))).collect(),
        ),
        _ => reply::Value::Other,
    }
}

impl From<reply::Inspection<'_>> for Inspection {
    fn from(seen: reply::Inspection<'_>) -> Inspection {
        Inspection {
            mode: printable(&seen.mode),
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
            token: printable(&holder.token),
            count: holder.count,
            fence: holder.fence,
            left_ms: holder.pttl,
            label: printable(&holder.label),
            ephemeral: holder.ephemeral,
            client: holder.client,
            address: printable(&holder.addr),
            held_ms: holder.held,
        }
    }
}

impl From<reply::Waiting<'_>> for Waiting {
    fn from(waiting: reply::Waiting<'_>) -> Waiting {
        Waiting {
            client: waiting.client.unwrap_or_default(),
            token: printable(&waiting.token),
            mode: printable(&waiting.mode),
            waited_ms: waiting.waited,
            left_ms: waiting.left,
            label: printable(&waiting.label),
        }
    }
}

impl From<reply::Listed<'_>> for Listed {
    fn from(lock: reply::Listed<'_>) -> Listed {
        Listed {
            resource: lock.key.into_owned(),
            mode: printable(&lock.mode),
            holders: lock.holders,
            waiters: lock.waiters,
            left_ms: lock.pttl.0,
            held_ms: lock.held,
            delay_ms: lock.delay,
            token: printable(&lock.token),
            fence: lock.fence,
            label: printable(&lock.label),
            address: printable(&lock.addr),
        }
    }
}

impl From<reply::Logged<'_>> for Logged {
    fn from(entry: reply::Logged<'_>) -> Logged {
        Logged {
            id: entry.id,
            time_ms: entry.time,
            what: printable(&entry.what),
            db: entry.db,
            resource: entry.key.into_owned(),
            token: printable(&entry.token),
            label: printable(&entry.label),
            client: entry.client,
            address: printable(&entry.address),
            fence: entry.fence,
            held_ms: entry.held,
            waited_ms: entry.waited,
        }
    }
}

/// Returns bytes such as a token or a label as text, escaped if they have a backslash or are not UTF-8.
/// Different bytes have different texts.
pub(crate) fn printable(bytes: &[u8]) -> String {
    match std::str::from_utf8(bytes) {
        Ok(text) if !text.contains('\\') => text.to_string(),
        _ => bytes.escape_ascii().to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::printable;

    #[test]
    fn different_bytes_are_shown_differently() {
        let all: [&[u8]; 6] = [b"\xff", b"\\xff", b"\\\\xff", "größe".as_bytes(), "gr\\öße".as_bytes(), b""];
        for (at, one) in all.iter().enumerate() {
            assert!(all[at + 1..].iter().all(|other| printable(one) != printable(other)), "{one:?}");
        }
        assert_eq!(printable("größe".as_bytes()), "größe");
    }
}
