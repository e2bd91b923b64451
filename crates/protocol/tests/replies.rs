//! Replies: each written reply is read back, in the shapes of RESP2 and of RESP3.

use std::borrow::Cow;
use std::fmt::Debug;

use dlock_protocol::reply::{
    Help, Holder, Inspection, Left, Listed, Listing, Logged, Reply, Sink, Value, Waiting,
};
use dlock_protocol::{Fence, Token};
use proptest::prelude::*;

/// A sink that records the written parts in order.
#[derive(Default)]
struct Wire(Vec<Part>);

/// A whole value, or the beginning of an array or map with its length.
enum Part {
    Whole(Value),
    Array(usize),
    Map(usize),
}

impl Sink for Wire {
    fn int(&mut self, number: i64) {
        self.0.push(Part::Whole(Value::Int(number)));
    }
    fn null(&mut self) {
        self.0.push(Part::Whole(Value::Null));
    }
    fn bulk(&mut self, bytes: &[u8]) {
        self.0.push(Part::Whole(Value::Bulk(bytes.into())));
    }
    fn array(&mut self, len: usize) {
        self.0.push(Part::Array(len));
    }
    fn map(&mut self, len: usize) {
        self.0.push(Part::Map(len));
    }
}

#[derive(Clone, Copy, PartialEq)]
enum Protocol {
    Resp2,
    Resp3,
}

/// Returns the value that the next parts make up.
fn value(parts: &mut impl Iterator<Item = Part>, protocol: Protocol) -> Value {
    match parts.next().expect("the announced number of values") {
        Part::Whole(value) => value,
        Part::Array(len) => Value::Array((0..len).map(|_| value(parts, protocol)).collect()),
        Part::Map(len) if protocol == Protocol::Resp2 => {
            Value::Array((0..2 * len).map(|_| value(parts, protocol)).collect())
        }
        Part::Map(len) => {
            Value::Map((0..len).map(|_| (value(parts, protocol), value(parts, protocol))).collect())
        }
    }
}

/// Returns the reply as a client receives it.
fn sent(reply: &impl Reply, protocol: Protocol) -> Value {
    let mut wire = Wire::default();
    reply.write(&mut wire);
    let mut parts = wire.0.into_iter();
    let sent = value(&mut parts, protocol);
    assert!(parts.next().is_none(), "nothing follows the reply");
    sent
}

fn round_trip<R: Reply + PartialEq + Debug>(reply: &R) {
    for protocol in [Protocol::Resp2, Protocol::Resp3] {
        assert_eq!(R::read(sent(reply, protocol)).as_ref(), Some(reply));
    }
}

fn number() -> impl Strategy<Value = u64> {
    0..=i64::MAX as u64
}

fn bytes(least: usize) -> impl Strategy<Value = Cow<'static, [u8]>> {
    prop::collection::vec(any::<u8>(), least..=255).prop_map(Cow::Owned)
}

fn holder() -> impl Strategy<Value = Holder<'static>> {
    let numbers = (number(), number(), number(), number(), number());
    (bytes(1), bytes(0), bytes(0), any::<bool>(), numbers).prop_map(
        |(token, label, addr, ephemeral, numbers)| {
            let (count, fence, pttl, held, client) = numbers;
            Holder { token, count, fence, pttl, held, label, ephemeral, client, addr }
        },
    )
}

#[test]
fn numbers_and_strings_are_read_back() {
    let fence = prop::option::of((1..=Fence::MAX).prop_map(|n| Fence::from_outside(n).expect("in range")));
    let parts = (fence, any::<bool>(), number(), prop::option::of(number()), bytes(1));
    crate::random(parts, 500, |(fence, yes, number, left, token)| {
        round_trip(&fence);
        round_trip(&yes);
        round_trip(&number);
        round_trip(&Left(left));
        round_trip(&Token::new(&token).expect("a token"));
    });
    round_trip(&Help::of_all_commands());
}

#[test]
fn inspect_replies_are_read_back() {
    let numbers = (number(), number(), number(), number(), number());
    let parts = (bytes(0), numbers, prop::collection::vec(holder(), 0..5), any::<bool>());
    crate::random(parts, 500, |(mode, numbers, holders, exists)| {
        let (permits, fence, holders_count, waiters, delay) = numbers;
        let inspection = Inspection { mode, permits, fence, holders, holders_count, waiters, delay };
        round_trip(&exists.then_some(inspection));
    });
}

#[test]
fn waiters_replies_are_read_back() {
    let waiting =
        (prop::option::of(number()), bytes(1), bytes(0), number(), prop::option::of(number()), bytes(0));
    let waiting = waiting.prop_map(|(client, token, mode, waited, left, label)| Waiting {
        client,
        token,
        mode,
        waited,
        left,
        label,
    });
    crate::random(prop::collection::vec(waiting, 0..5), 500, |queue| round_trip(&queue));
}

#[test]
fn list_replies_are_read_back() {
    let lock = (bytes(0), bytes(1), number(), number(), prop::option::of(number()), number());
    let first = (number(), bytes(0), number(), bytes(0), bytes(0));
    let lock = (lock, first).prop_map(|((key, mode, holders, waiters, pttl, held), first)| {
        let ((delay, token, fence, label, addr), pttl) = (first, Left(pttl));
        Listed { key, mode, holders, waiters, pttl, held, delay, token, fence, label, addr }
    });
    let parts = (any::<u64>(), prop::collection::vec(lock, 0..5));
    crate::random(parts, 500, |(cursor, locks)| round_trip(&Listing { cursor, locks }));
}

#[test]
fn log_replies_are_read_back() {
    let texts = (bytes(1), bytes(0), bytes(0), bytes(0), bytes(0));
    let numbers = (number(), number(), number(), number(), number(), number());
    let logged = (texts, numbers, any::<bool>()).prop_map(|(texts, numbers, is_wait)| {
        let (what, key, token, label, address) = texts;
        let (id, time, db, client, fence, ms) = numbers;
        let (held, waited) = if is_wait { (None, Some(ms)) } else { (Some(ms), None) };
        Logged { id, time, what, db, key, token, label, client, address, fence, held, waited }
    });
    crate::random(prop::collection::vec(logged, 0..5), 500, |log| round_trip(&log));
}

/// Newer modules send more fields, older ones fewer.
#[test]
fn unknown_fields_are_skipped_and_missing_ones_are_default() {
    let bulk = |text: &str| Value::Bulk(text.into());
    let newer = Value::Map(vec![
        (bulk("mode"), bulk("striped")),
        (bulk("address"), Value::Other),
        (bulk("fence"), Value::Int(7)),
    ]);
    let known = Inspection { mode: b"striped".as_slice().into(), fence: 7, ..Inspection::default() };
    assert_eq!(Option::<Inspection>::read(newer), Some(Some(known)));
}

#[test]
fn values_of_a_wrong_type_are_refused() {
    assert_eq!(Option::<Fence>::read(Value::Int(0)), None);
    assert_eq!(Option::<Fence>::read(Value::Int(1 << 53)), None);
    assert_eq!(bool::read(Value::Int(2)), None);
    assert_eq!(u64::read(Value::Int(-1)), None);
    assert_eq!(Left::read(Value::Int(-1)), None);
    assert_eq!(Option::<Inspection>::read(Value::Int(1)), None);
    assert_eq!(Option::<Inspection>::read(Value::Array(vec![Value::Bulk(b"mode".to_vec())])), None);
    assert_eq!(Vec::<Waiting>::read(Value::Null), None);
    assert_eq!(Token::read(Value::Bulk(Vec::new())), None);
}
