//! Decoding of locks and effects. Input can be forged: invalid bytes are refused whole.

use std::num::NonZeroU32;

use dlock_protocol::{Deadline, Delay, Fence, Instant, Label, MAX_COUNT, Token, Ttl};

use super::cursor::Cursor;
use super::layout::{Anchor, MAX_DELAY, MORE, Malformed, Origin, PART, VERSION};
use crate::lock::{Ephemeral, Extras, Hold, Holders, Holding, Lock};

/// A change of a lock, with its times moved to the reader's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// The writer's clock, and its time in ms.
    pub(crate) clock: (Anchor, u64),
    kind: Kind,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Kind {
    /// A whole lock that is held exclusively: the most frequent case, without a list.
    Alone(Hold),
    Other(Other),
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Other {
    whole: bool,
    /// A shared lock or a semaphore.
    crowded: bool,
    permits: Option<NonZeroU32>,
    delay_until: Option<Deadline>,
    dropped: Vec<Token>,
    put: Vec<Hold>,
}

/// Splits an effect into the greatest fence of its writer and the bytes of the change. The fence is valid
/// even if the version of the change is unknown.
pub fn split_effect(bytes: &[u8]) -> Result<(u64, &[u8]), Malformed> {
    let (last, change) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
    let last = u64::from_le_bytes(*last);
    if last > Fence::MAX {
        return Err(Malformed::Value("last fence"));
    }
    Ok((last, change))
}

/// Decodes bytes with the reader's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub now: Instant,
    pub anchor: Anchor,
    pub origin: Origin,
}

impl Reader {
    pub fn read(self, bytes: &[u8]) -> Result<Written, Malformed> {
        let (&[head], bytes) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
        let (version, mode, whole) = (head >> 4, head & 0xf & !PART, head & PART == 0);
        if version != VERSION {
            return Err(Malformed::Version(version));
        }
        let mut cursor = Cursor(bytes);
        let boot = u64::from_le_bytes(cursor.array()?);
        // Extends the sign.
        let offset = (cursor.six()? << 16) as i64 >> 16;
        let clock @ (written_by, at) = (Anchor { boot, offset }, cursor.six()?);
        let shift = self.shift(written_by, at);
        let kind = match mode {
            1 => Kind::Alone(self.hold(&mut cursor, at, shift)?),
            0 | 2 | 3 => Kind::Other(self.other(mode, whole, &mut cursor, at, shift)?),
            _ => return Err(Malformed::Value("mode")),
        };
        match &kind {
            _ if !cursor.0.is_empty() => return Err(Malformed::Long),
            Kind::Alone(_) if !whole => return Err(Malformed::Value("number of holds")),
            Kind::Alone(_) => {}
            Kind::Other(other) => other.check()?,
        }
        Ok(Written { clock, kind })
    }

    fn other(
        &self,
        mode: u8,
        whole: bool,
        cursor: &mut Cursor<'_>,
        at: u64,
        shift: i64,
    ) -> Result<Other, Malformed> {
        let mut permits = None;
        if mode == 3 {
            permits = NonZeroU32::new(cursor.u32()?).filter(|n| n.get() <= MAX_COUNT);
            permits.ok_or(Malformed::Value("permits"))?;
        }
        let delay_until = self.delay(cursor.number()?, at, shift)?;
        let (drops, puts) = (cursor.u32()?, cursor.u32()?);
        let (mut dropped, mut put) = (Vec::new(), Vec::new());
        for _ in 0..drops {
            dropped.push(Token::new(cursor.text()?).ok_or(Malformed::Value("token"))?);
        }
        for _ in 0..puts {
            put.push(self.hold(cursor, at, shift)?);
        }
        Ok(Other { whole, crowded: mode != 0, permits, delay_until, dropped, put })
    }

    fn delay(&self, until: u64, at: u64, shift: i64) -> Result<Option<Deadline>, Malformed> {
        if until == 0 {
            return Ok(None);
        }
        // Both times were rounded, in opposite directions: up to 1 ms more than the ttl can be left.
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
    pub(super) fn move_hold(&self, hold: &mut Hold, shift: i64) {
        let granted = hold.granted().millis().saturating_add_signed(shift).min(self.now.millis());
        hold.set_granted(Instant::from_millis(granted));
        // A wrong clock can shorten a lease, but never extend it beyond its ttl.
        let ttl = hold.ttl();
        hold.set_lease(moved(hold.deadline().millis(), shift).min(self.now + ttl), ttl);
    }

    /// The ms from the writer's clock to the reader's.
    pub(super) fn shift(&self, written_by: Anchor, at: u64) -> i64 {
        if written_by.boot == self.anchor.boot {
            self.anchor.offset.wrapping_sub(written_by.offset)
        } else if self.origin == Origin::Live {
            (self.now.after_millis(0).millis() as i64).wrapping_sub(at as i64)
        } else {
            0
        }
    }
}

fn extras(cursor: &mut Cursor<'_>) -> Result<Extras, Malformed> {
    let count = NonZeroU32::new(cursor.u32()?).filter(|n| n.get() <= MAX_COUNT);
    let count = count.ok_or(Malformed::Value("count"))?;
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
    /// A whole lock with this hold, or without holds.
    pub(super) fn whole(clock: (Anchor, u64), hold: Option<Hold>) -> Written {
        let free = Other {
            whole: true,
            crowded: false,
            permits: None,
            delay_until: None,
            dropped: Vec::new(),
            put: Vec::new(),
        };
        Written { clock, kind: hold.map_or(Kind::Other(free), Kind::Alone) }
    }

    fn put(&self) -> &[Hold] {
        match &self.kind {
            Kind::Alone(hold) => std::slice::from_ref(hold),
            Kind::Other(other) => &other.put,
        }
    }

    /// Greatest fence, 0 for none.
    pub fn greatest_fence(&self) -> u64 {
        self.put().iter().map(|hold| hold.fence().get()).max().unwrap_or(0)
    }

    /// Longest ttl in ms, 0 for none.
    pub fn longest_ttl(&self) -> u64 {
        self.put().iter().map(|hold| hold.ttl().millis()).max().unwrap_or(0)
    }

    /// Longest lock-delay in ms, running or still to come. 0 for none.
    pub fn longest_delay(&self, now: Instant) -> u64 {
        let running = match &self.kind {
            Kind::Alone(_) => None,
            Kind::Other(other) => other.delay_until,
        };
        let to_come = self.put().iter().map(|hold| hold.delay().millis()).max().unwrap_or(0);
        running.map_or(0, |until| until.left(now)).max(to_come)
    }

    /// True for a whole lock, false for a change of some holds.
    pub fn is_whole(&self) -> bool {
        match &self.kind {
            Kind::Alone(_) => true,
            Kind::Other(other) => other.whole,
        }
    }

    /// Whether its times are by the clock of another boot.
    pub fn is_foreign(&self, anchor: Anchor) -> bool {
        self.clock.0.boot != anchor.boot
    }

    /// The tokens whose holds it changes. `None` for a whole lock.
    pub fn part(&self) -> Option<Vec<Token>> {
        match &self.kind {
            Kind::Other(other) if !other.whole => {
                Some(other.put.iter().map(Hold::token).chain(&other.dropped).cloned().collect())
            }
            _ => None,
        }
    }

    /// Applies the change. Idempotent, because it carries final values only. Returns false, and leaves the
    /// lock as it was, if there would be more holders than the mode allows: no master writes such bytes.
    pub fn apply(self, lock: &mut Lock) -> bool {
        match self.kind {
            Kind::Alone(hold) => drop(lock.replace(Holding::Exclusive(hold))),
            Kind::Other(other) if other.whole => drop(lock.replace(other.holding(None))),
            Kind::Other(other) => return other.apply_part(lock),
        }
        true
    }
}

impl Other {
    /// Checks that the mode and the number of holds agree, and that no token has two.
    fn check(&self) -> Result<(), Malformed> {
        let least = usize::from(self.whole && self.crowded);
        let fits = (least..=self.most()).contains(&self.put.len());
        let shape = if self.whole { self.dropped.is_empty() } else { self.crowded };
        if !fits || !shape {
            return Err(Malformed::Value("number of holds"));
        }
        let mut tokens: Vec<&Token> = self.put.iter().map(Hold::token).chain(&self.dropped).collect();
        tokens.sort_unstable();
        if tokens.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed::Value("token (twice)"));
        }
        Ok(())
    }

    /// Applies a change of some holds, whatever the lock was before.
    fn apply_part(self, lock: &mut Lock) -> bool {
        let named = self.put.iter().map(Hold::token).chain(&self.dropped);
        let leaving = named.filter(|token| lock.stored_of(token.as_bytes()).is_some()).count();
        if lock.stored_len() - leaving + self.put.len() > self.most() {
            return false;
        }
        for token in self.put.iter().map(Hold::token).chain(&self.dropped) {
            lock.remove(token.as_bytes());
        }
        let staying = match lock.take() {
            Holding::Free { .. } => None,
            Holding::Exclusive(hold) => Some(Holders::one(hold)),
            Holding::Crowd(crowd) => Some(crowd.holders),
        };
        lock.replace(self.holding(staying));
        true
    }

    /// The holds that stay, with the new ones.
    fn holding(self, staying: Option<Holders>) -> Holding {
        let holders = match staying {
            None => Holders::from_vec(self.put),
            Some(mut holders) => {
                self.put.into_iter().for_each(|hold| holders.push(hold));
                Some(holders)
            }
        };
        match holders {
            None => Holding::free(self.delay_until),
            Some(holders) => Holding::crowd(self.permits, self.delay_until, holders),
        }
    }

    fn most(&self) -> usize {
        match self.permits {
            _ if !self.crowded => 0,
            None => usize::MAX,
            Some(permits) => permits.get() as usize,
        }
    }
}
