//! The bytes of a lock, at rest (RDB, DUMP) and on the way (the effect that is replicated and logged).
//!
//! The bytes contain a whole lock, or a change of some of its holds. A change lists the holds to put, each in
//! place of any earlier hold of its token, and the tokens of the holds to drop. A whole lock has the same
//! layout, and drops no holds. Version 4 of the layout, little-endian:
//!
//! ```text
//! u8      16 × version, which is 4
//!         + mode: 0 free, 1 exclusive, 2 shared, 3 permits; + 4 for a change, which has mode 2 or 3
//! 8 bytes boot: identifies the boot of the machine that wrote this
//! 6 bytes offset: server clock - boot-time clock, ms, modulo 2^48
//! 6 bytes at: the server clock when this was written, ms
//! only in modes 0, 2 and 3 (the bytes in mode 1 put one hold and drop none):
//!         number permits, in mode 3
//!         number delay_until, ms of the server clock, 0 for none
//!         number n dropped, then number m put
//! n ×     u8 length, token
//! m ×     number at - granted, ms
//!         signed fence - 1000 × granted
//!         signed deadline - at, ms
//!         number 2 × ttl, ms; + 1 where more follows behind the token
//!         u8 length, token
//!         more: number count, number delay (ms), u8 ephemeral (0 or 1), u8 length, label
//! ```
//!
//! A number is an unsigned LEB128 in its shortest form: seven bits a byte, the least first, the top bit set
//! in all bytes but the last. A signed number n is written as 2n, or as -2n - 1 if it is negative.
//! Differences are modulo 2^64.
//!
//! Times are written as differences because these are short. A lock with one hold and a token of 27 bytes
//! takes at most 63 bytes if its lease is shorter than 18 hours, the grant was less than three days ago, and
//! the fence (in µs) is within 8 ms of the time of the grant. In an RDB file, the length of a value of up to
//! 63 bytes takes a single byte. A server reads the length of a longer value in two steps, and each step
//! costs 240 instructions.
//!
//! An effect is a u64, the greatest fence that its writer has issued or accepted, and then the change. (As an
//! argument of its own, the fence would cost the server 1,200 instructions more for each effect. An ACQUIRE
//! that is logged costs 14,000.)
//!
//! Deadlines are times of the writer's clock. Its [`Anchor`] (boot and offset) is written beside them, and a
//! [`Reader`] converts them to its own clock. Bytes with any other layout are refused as a whole. Each lock
//! has exactly one encoding, except for the order of its holds. After the first release of dlock, a new
//! layout needs a new version, and the module must still read the old one. The fixtures in `tests/fixtures`
//! must then not change.

use std::collections::HashSet;
use std::num::NonZeroU32;

use dlock_protocol::{Deadline, Delay, Fence, Instant, Label, MAX_COUNT, Mode, Token, Ttl};
use smallvec::SmallVec;

use crate::lock::{Ephemeral, Extras, Hold, Holders, Holding, Lock};
use crate::step::Change;

/// Identifies a server clock, so that its times can be converted to those of another one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Anchor {
    /// Identifies this boot of this machine.
    pub boot: u64,
    /// Server clock - boot-time clock, ms.
    pub offset: i64,
}

impl Anchor {
    /// Returns the number of a boot, which is made from the first 8 bytes of the kernel's boot id. A time
    /// namespace shifts the boot-time clock by `offset` ns, so each offset has a number of its own. `None` if
    /// `id` is not a boot id. The number is stored, so this function must not change.
    pub fn boot(id: &str, offset: i128) -> Option<u64> {
        let digits: String = id.trim().chars().filter(|c| *c != '-').collect();
        let first = digits.get(..16).filter(|_| digits.len() == 32)?;
        let id = u64::from_str_radix(first, 16).ok()?;
        // The factor is odd, so that no two products are the same.
        Some(id.wrapping_add((offset as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15)))
    }
}

/// The source of bytes. Decides what their deadlines mean on another boot or machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Origin {
    /// A running server, by the replication link or RESTORE: leases count from the arrival.
    Live,
    /// A file: times that another boot or machine wrote are not converted. Both server clocks started at the
    /// time of their wall clocks.
    Stored,
}

/// The reason why bytes are refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// The bytes end too early.
    Short,
    /// The bytes continue after the end of the lock.
    Long,
    /// A version that this module does not read.
    Version(u8),
    /// A value outside its range.
    Value(&'static str),
}

impl std::fmt::Display for Malformed {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Malformed::Short => write!(f, "the bytes of a lock end too early"),
            Malformed::Long => write!(f, "there are bytes behind the end of a lock"),
            Malformed::Version(v) => {
                write!(f, "the bytes of a lock have version {v}, this module reads {VERSION}")
            }
            Malformed::Value(what) => write!(f, "the bytes of a lock have an impossible {what}"),
        }
    }
}

const VERSION: u8 = 4;
/// Added to the mode if the bytes are a change of a lock.
const PART: u8 = 4;
/// Added to twice the ttl if extras follow the token.
const MORE: u64 = 1;

/// Longest lock-delay of a hold (the pause before the next grant if the hold expires or loses its
/// connection), in ms.
const MAX_DELAY: u64 = u32::MAX as u64;

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

/// Writes the effect that creates an empty key. RENAME and MOVE leave an empty key under the new name. A
/// rewritten append only file must create this key, because later commands in the file may name it. A reader
/// creates no key from an effect with neither a hold nor a lock-delay. So this effect has a lock-delay that
/// ended long ago. Once the reader has loaded the file, it ends the delay and deletes the key.
pub fn write_effect_of_nothing(last: u64, now: Instant, anchor: Anchor, out: &mut Vec<u8>) {
    let over = Lock::delayed(Deadline::at_millis(1));
    write_effect(&over, &Change::Whole, last, now, anchor, out);
}

/// Writes the holds of the changed tokens for [`Change::Part`], and otherwise the whole lock.
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
    // 57 is the maximum length of the header.
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
    // A change nearly always has a single token.
    let mut seen = HashSet::with_capacity(if tokens.len() > 1 { tokens.len() } else { 0 });
    tokens.iter().filter(move |token| tokens.len() == 1 || seen.insert(*token))
}

/// Writes LEB128. (The crate unsigned-varint 0.8 is not used, because it reads 2^64 as 0.)
fn write_number(mut number: u64, out: &mut Vec<u8>) {
    while number > 0x7f {
        out.push(number as u8 | 0x80);
        number >>= 7;
    }
    out.push(number as u8);
}

/// Writes `number - from` as a signed number.
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

/// A lock or a change of one, with its times moved to the reader's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The writer's clock, and the time of writing in ms.
    pub(crate) clock: (Anchor, u64),
    /// False for a change of some holds.
    whole: bool,
    /// `None` for a lock without holders.
    mode: Option<Mode>,
    delay_until: Option<Deadline>,
    dropped: Vec<Token>,
    put: SmallVec<[Hold; 1]>,
}

/// An effect on one lock, from a master or the append only file.
#[derive(Debug)]
pub struct Effect {
    /// The greatest fence that its writer had issued or accepted.
    pub last: u64,
    pub written: Written,
}

/// An effect that cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct BadEffect {
    /// The fence as in [`Effect`], if a newer module wrote the effect: the fence is read in any version, and
    /// only the change is lost. `None` otherwise.
    pub last: Option<u64>,
    pub why: Malformed,
}

/// Decodes bytes with the reader's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub now: Instant,
    pub anchor: Anchor,
    pub origin: Origin,
}

impl Reader {
    /// Decodes an effect.
    pub fn effect(self, bytes: &[u8]) -> Result<Effect, BadEffect> {
        let bad = |why| BadEffect { last: None, why };
        let (last, change) = bytes.split_first_chunk().ok_or(bad(Malformed::Short))?;
        let last = u64::from_le_bytes(*last);
        if last > Fence::MAX {
            return Err(bad(Malformed::Value("last fence")));
        }
        let written = self.read(change).map_err(|why| {
            let is_newer = matches!(why, Malformed::Version(_));
            BadEffect { last: is_newer.then_some(last), why }
        })?;
        Ok(Effect { last, written })
    }

    /// Decodes a lock, or a change of one.
    pub fn read(self, bytes: &[u8]) -> Result<Written, Malformed> {
        let (&[head], bytes) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
        if head >> 4 != VERSION {
            return Err(Malformed::Version(head >> 4));
        }
        let mut cursor = Cursor(bytes);
        let boot = u64::from_le_bytes(cursor.array()?);
        // Extends the sign from 48 to 64 bits.
        let offset = (cursor.six()? << 16) as i64 >> 16;
        let clock @ (written_by, at) = (Anchor { boot, offset }, cursor.six()?);
        let shift = self.shift(written_by, at);
        let mode = match head & 0xf & !PART {
            0 => None,
            1 => Some(Mode::Exclusive),
            2 => Some(Mode::Shared),
            3 => Some(Mode::Permits(cursor.count("permits")?)),
            _ => return Err(Malformed::Value("mode")),
        };
        let (mut delay_until, mut drops, mut puts) = (None, 0, 1);
        if mode != Some(Mode::Exclusive) {
            delay_until = self.delay(cursor.number()?, at, shift)?;
            (drops, puts) = (cursor.u32()?, cursor.u32()?);
        }
        let (mut dropped, mut put) = (Vec::new(), SmallVec::new());
        for _ in 0..drops {
            dropped.push(Token::new(cursor.text()?).ok_or(Malformed::Value("token"))?);
        }
        for _ in 0..puts {
            put.push(self.hold(&mut cursor, at, shift)?);
        }
        if !cursor.0.is_empty() {
            return Err(Malformed::Long);
        }
        let written = Written { clock, whole: head & PART == 0, mode, delay_until, dropped, put };
        written.check()?;
        Ok(written)
    }

    fn delay(&self, until: u64, at: u64, shift: i64) -> Result<Option<Deadline>, Malformed> {
        if until == 0 {
            return Ok(None);
        }
        // The writer rounded `until` up and `at` down, so up to 1 ms more than the delay can be left.
        let left = until.saturating_sub(at);
        if left > MAX_DELAY + 1 {
            return Err(Malformed::Value("delay"));
        }
        Ok(Some(moved(until, shift).min(self.now.after_millis(left.min(MAX_DELAY)))))
    }

    fn hold(&self, cursor: &mut Cursor<'_>, at: u64, shift: i64) -> Result<Hold, Malformed> {
        let granted = at.wrapping_sub(cursor.number()?);
        let fence = cursor.signed(granted.wrapping_mul(1000))?;
        let fence = Fence::from_outside(fence).ok_or(Malformed::Value("fence"))?;
        let deadline = Deadline::at_millis(cursor.signed(at)?);
        let ttl = cursor.number()?;
        let has_more = ttl & MORE != 0;
        let ttl = Ttl::from_millis(ttl >> 1).ok_or(Malformed::Value("ttl"))?;
        let token = Token::new(cursor.text()?).ok_or(Malformed::Value("token"))?;
        let mut hold = Hold::new(token, fence, Instant::from_millis(granted), deadline, ttl);
        if has_more {
            hold.set_extras(extras(cursor)?);
            if !hold.has_extras() {
                return Err(Malformed::Value("rest"));
            }
        }
        self.move_hold(&mut hold, shift);
        Ok(hold)
    }

    /// Moves the times of a hold from the writer's clock to the reader's.
    pub(crate) fn move_hold(&self, hold: &mut Hold, shift: i64) {
        let granted = hold.granted().millis().saturating_add_signed(shift).min(self.now.millis());
        hold.set_granted(Instant::from_millis(granted));
        // A wrong clock can shorten a lease, but never extend it beyond its ttl.
        let ttl = hold.ttl();
        hold.set_lease(moved(hold.deadline().millis(), shift).min(self.now + ttl), ttl);
    }

    /// The ms to add to times of the writer's clock.
    pub(crate) fn shift(&self, written_by: Anchor, at: u64) -> i64 {
        if written_by.boot == self.anchor.boot {
            self.anchor.offset.wrapping_sub(written_by.offset)
        } else if self.origin == Origin::Live {
            // `at` is rounded down and the time of reading is rounded up, so that no lease becomes shorter.
            (self.now.after_millis(0).millis() as i64).wrapping_sub(at as i64)
        } else {
            0
        }
    }
}

fn extras(cursor: &mut Cursor<'_>) -> Result<Extras, Malformed> {
    let count = cursor.count("count")?;
    let delay = Delay::from_millis(cursor.u32()?.into()).ok_or(Malformed::Value("delay"))?;
    let ephemeral = match cursor.array()? {
        [0] => Ephemeral::No,
        [1] => Ephemeral::Orphan,
        _ => return Err(Malformed::Value("ephemeral")),
    };
    let label = Label::new(cursor.text()?).ok_or(Malformed::Value("label"))?;
    Ok(Extras { ephemeral, delay, label, count, owner: None })
}

fn moved(deadline: u64, shift: i64) -> Deadline {
    Deadline::at_millis(deadline.saturating_add_signed(shift))
}

impl Written {
    /// A whole lock with this exclusive hold, or without holders.
    pub(crate) fn whole(clock: (Anchor, u64), hold: Option<Hold>) -> Written {
        let mode = hold.as_ref().map(|_| Mode::Exclusive);
        let put = hold.into_iter().collect();
        Written { clock, whole: true, mode, delay_until: None, dropped: Vec::new(), put }
    }

    /// Greatest fence, 0 for none.
    pub fn greatest_fence(&self) -> u64 {
        self.put.iter().map(|hold| hold.fence().get()).max().unwrap_or(0)
    }

    /// Longest ttl in ms, 0 for none.
    pub fn longest_ttl(&self) -> u64 {
        self.put.iter().map(|hold| hold.ttl().millis()).max().unwrap_or(0)
    }

    /// Longest lock-delay in ms, running or still to come. 0 for none.
    pub fn longest_delay(&self, now: Instant) -> u64 {
        let to_come = self.put.iter().map(|hold| hold.delay().millis()).max().unwrap_or(0);
        self.delay_until.map_or(0, |until| until.left(now)).max(to_come)
    }

    /// True for a whole lock, false for a change of some holds.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Whether the times were written by the clock of another boot or machine.
    pub fn is_foreign(&self, anchor: Anchor) -> bool {
        self.clock.0.boot != anchor.boot
    }

    /// The tokens of the changed holds. `None` for a whole lock.
    pub fn changed_tokens(&self) -> Option<Vec<Token>> {
        (!self.whole).then(|| self.tokens().cloned().collect())
    }

    fn tokens(&self) -> impl Iterator<Item = &Token> {
        self.put.iter().map(Hold::token).chain(&self.dropped)
    }

    /// Maximum number of holders in this mode.
    fn max_holders(&self) -> usize {
        match self.mode {
            None => 0,
            Some(Mode::Exclusive) => 1,
            Some(Mode::Shared) => usize::MAX,
            Some(Mode::Permits(n)) => n.get() as usize,
        }
    }

    /// Checks that the mode and the number of holds agree, and that no token occurs twice.
    fn check(&self) -> Result<(), Malformed> {
        let min_holders = usize::from(self.whole && self.mode.is_some());
        let count_fits = (min_holders..=self.max_holders()).contains(&self.put.len());
        // Only a shared lock or a semaphore is changed in parts, and only parts drop tokens.
        let form_fits = match self.mode {
            _ if self.whole => self.dropped.is_empty(),
            None | Some(Mode::Exclusive) => false,
            Some(Mode::Shared | Mode::Permits(_)) => true,
        };
        if !count_fits || !form_fits {
            return Err(Malformed::Value("number of holds"));
        }
        // The most frequent case needs no list.
        if self.mode == Some(Mode::Exclusive) {
            return Ok(());
        }
        let mut tokens: Vec<&Token> = self.tokens().collect();
        tokens.sort_unstable();
        if tokens.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed::Value("token (twice)"));
        }
        Ok(())
    }

    /// Applies the change, whatever the lock was before. Idempotent, because it carries final values only.
    /// Returns false, and leaves the lock as it was, if there would be more holders than the mode allows: no
    /// master writes such bytes.
    pub fn apply(mut self, lock: &mut Lock) -> bool {
        if self.mode == Some(Mode::Exclusive)
            && let Some(hold) = self.put.pop()
        {
            lock.replace(Holding::Exclusive(hold));
            return true;
        }
        let mut staying = None;
        if !self.whole {
            let leaving = self.tokens().filter(|token| lock.stored_of(token.as_bytes()).is_some()).count();
            if lock.stored_len() - leaving + self.put.len() > self.max_holders() {
                return false;
            }
            for token in self.tokens() {
                lock.remove(token.as_bytes());
            }
            staying = match lock.take() {
                Holding::Free { .. } => None,
                Holding::Exclusive(hold) => Some(Holders::one(hold)),
                Holding::Crowd(crowd) => Some(crowd.holders),
            };
        }
        let holders = match staying {
            None => Holders::from_vec(self.put.into_vec()),
            Some(mut holders) => {
                self.put.into_iter().for_each(|hold| holders.push(hold));
                Some(holders)
            }
        };
        lock.replace(match (holders, self.mode) {
            (None, _) => Holding::free(self.delay_until),
            (Some(holders), Some(Mode::Permits(n))) => Holding::crowd(Some(n), self.delay_until, holders),
            (Some(holders), _) => Holding::crowd(None, self.delay_until, holders),
        });
        true
    }
}

/// Reads the parts of an encoded lock one after another. Contains the bytes that have not been read.
struct Cursor<'a>(&'a [u8]);

impl<'a> Cursor<'a> {
    fn array<const N: usize>(&mut self) -> Result<[u8; N], Malformed> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(*taken)
    }

    /// Reads a length of one byte, and that many bytes.
    fn text(&mut self) -> Result<&'a [u8], Malformed> {
        let [len] = self.array()?;
        let (taken, rest) = self.0.split_at_checked(len.into()).ok_or(Malformed::Short)?;
        self.0 = rest;
        Ok(taken)
    }

    /// Reads an unsigned number of six bytes.
    fn six(&mut self) -> Result<u64, Malformed> {
        let [a, b, c, d, e, f] = self.array()?;
        Ok(u64::from_le_bytes([a, b, c, d, e, f, 0, 0]))
    }

    fn u32(&mut self) -> Result<u32, Malformed> {
        u32::try_from(self.number()?).map_err(|_| Malformed::Value("number"))
    }

    /// Reads a number from 1 to [`MAX_COUNT`].
    fn count(&mut self, what: &'static str) -> Result<NonZeroU32, Malformed> {
        NonZeroU32::new(self.u32()?).filter(|n| n.get() <= MAX_COUNT).ok_or(Malformed::Value(what))
    }

    /// Reads a number that is written as its signed difference from `from`.
    fn signed(&mut self, from: u64) -> Result<u64, Malformed> {
        let number = self.number()?;
        Ok(from.wrapping_add_signed((number >> 1) as i64 ^ -((number & 1) as i64)))
    }

    /// Reads LEB128 in its shortest form.
    fn number(&mut self) -> Result<u64, Malformed> {
        let mut number = 0;
        for shift in (0..u64::BITS).step_by(7) {
            let [byte] = self.array()?;
            let bits = u64::from(byte & 0x7f);
            let overflows = bits << shift >> shift != bits;
            let is_padded = byte == 0 && shift > 0;
            if overflows || is_padded {
                break;
            }
            number |= bits << shift;
            if byte <= 0x7f {
                return Ok(number);
            }
        }
        Err(Malformed::Value("number"))
    }
}
