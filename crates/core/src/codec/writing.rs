//! Encoding of locks and effects.

use std::collections::HashSet;

use dlock_protocol::{Deadline, Instant, Token};
use smallvec::SmallVec;

use super::layout::{Anchor, MORE, PART, VERSION};
use crate::lock::{Ephemeral, Hold, Holding, Lock};
use crate::step::Change;

/// Writes the effect of a change. `last` is the greatest fence that was issued or accepted.
pub fn write_effect(
    lock: &Lock,
    change: &Change,
    last: u64,
    now: Instant,
    anchor: Anchor,
    out: &mut Vec<u8>,
) {
    out.extend(last.to_le_bytes());
    write(lock, change, now, anchor, out);
}

/// Writes the effect of an empty key, which RENAME and MOVE leave. A lock without content makes no key, so it
/// is written as a lock-delay that ended long ago. A reader ends that after its load, and deletes the key.
pub fn write_effect_of_nothing(last: u64, now: Instant, anchor: Anchor, out: &mut Vec<u8>) {
    let over = Lock::delayed(Deadline::at_millis(1));
    write_effect(&over, &Change::Whole, last, now, anchor, out);
}

/// Writes a change of a lock: the whole lock, or the holds of some tokens.
pub fn write(lock: &Lock, change: &Change, now: Instant, anchor: Anchor, out: &mut Vec<u8>) {
    let mut put = SmallVec::<[&Hold; 1]>::new();
    let mut dropped = Vec::new();
    let part = match change {
        Change::Part(tokens) => {
            for token in distinct(tokens) {
                match lock.stored_of(token.as_bytes()) {
                    Some(hold) => put.push(hold),
                    None => dropped.push(token),
                }
            }
            PART
        }
        Change::Whole | Change::None => {
            match lock.holding() {
                // The most frequent case.
                Holding::Exclusive(hold) => put.push(hold),
                Holding::Free { .. } => {}
                Holding::Crowd(crowd) => put.extend(crowd.holders.iter()),
            }
            0
        }
    };
    let (mode, permits) = match lock.holding() {
        Holding::Free { .. } => (0, None),
        Holding::Exclusive(_) => (1, None),
        Holding::Crowd(crowd) => (if crowd.permits.is_some() { 3 } else { 2 }, crowd.permits),
    };
    // The longest header before the tokens.
    out.reserve(57 + dropped.len() * 32 + put.len() * 64);
    out.push(VERSION << 4 | mode | part);
    out.extend(anchor.boot.to_le_bytes());
    out.extend(&anchor.offset.to_le_bytes()[..6]);
    out.extend(&now.millis().to_le_bytes()[..6]);
    if mode != 1 {
        permits.into_iter().for_each(|permits| write_number(permits.get().into(), out));
        write_number(lock.delay_until().map_or(0, Deadline::millis), out);
        write_number(dropped.len() as u64, out);
        write_number(put.len() as u64, out);
    }
    for token in dropped {
        out.push(token.as_bytes().len() as u8);
        out.extend(token.as_bytes());
    }
    for hold in put {
        write_hold(hold, now.millis(), out);
    }
}

/// The distinct tokens.
fn distinct(tokens: &[Token]) -> impl Iterator<Item = &Token> {
    // Nearly always there is one.
    let mut met = HashSet::with_capacity(if tokens.len() > 1 { tokens.len() } else { 0 });
    tokens.iter().filter(move |token| tokens.len() == 1 || met.insert(*token))
}

/// Writes LEB128. (The crate unsigned-varint 0.8 reads 2^64 as 0.)
fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes the signed difference.
fn write_signed(number: u64, from: u64, out: &mut Vec<u8>) {
    let number = number.wrapping_sub(from) as i64;
    write_number((number << 1 ^ number >> 63) as u64, out);
}

fn write_hold(hold: &Hold, at: u64, out: &mut Vec<u8>) {
    let (token, label, granted) = (hold.token().as_bytes(), hold.label(), hold.granted().millis());
    let has_more = hold.has_extras();
    write_number(at.wrapping_sub(granted), out);
    write_signed(hold.fence().get(), granted.wrapping_mul(1000), out);
    write_signed(hold.deadline().millis(), at, out);
    write_number(hold.ttl().millis() << 1 | if has_more { MORE } else { 0 }, out);
    out.push(token.len() as u8);
    out.extend(token);
    if has_more {
        write_number(hold.count().into(), out);
        write_number(hold.delay().millis(), out);
        out.extend([u8::from(hold.ephemeral() != Ephemeral::No), label.len() as u8]);
        out.extend(label);
    }
}
