//! Bytes that anybody may have written become a change of a lock, or are refused.

use std::num::NonZeroU32;

use dlock_protocol::{Deadline, Delay, Fence, Instant, Label, MAX_COUNT, Token, Ttl};
use smallvec::SmallVec;

use super::cursor::Cursor;
use super::{Anchor, MAX_DELAY, Malformed, Origin, VERSION, WHOLE};
use crate::lock::{Ephemeral, Extras, Hold, Holders, Holding, Lock};

/// A change as it was written, moved to the reader's clock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Written {
    /// By whose clock, and at which ms of it.
    pub(crate) clock: (Anchor, u64),
    whole: bool,
    mode: u8,
    permits: u32,
    delay_until: Option<Deadline>,
    dropped: Vec<Token>,
    put: SmallVec<[Hold; 1]>,
}

/// Takes an effect apart: the greatest fence that its writer had issued or accepted, and the bytes of the
/// change. The first is good also where the second has a version that is not known yet.
pub fn split_effect(bytes: &[u8]) -> Result<(u64, &[u8]), Malformed> {
    let (last, change) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
    let last = u64::from_le_bytes(*last);
    if last > Fence::MAX {
        return Err(Malformed::Value("last fence"));
    }
    Ok((last, change))
}

/// Reads bytes by the reader's own clock.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub now: Instant,
    pub anchor: Anchor,
    pub origin: Origin,
}

impl Reader {
    pub fn read(self, bytes: &[u8]) -> Result<Written, Malformed> {
        let (&[version, flags, mode, zero], bytes) = bytes.split_first_chunk().ok_or(Malformed::Short)?;
        if !(1..=VERSION).contains(&version) {
            return Err(Malformed::Version(version));
        }
        let mut cursor = Cursor { version, bytes };
        let permits = cursor.u32()?;
        let fits = if mode == 3 { (1..=MAX_COUNT).contains(&permits) } else { permits == 0 };
        if flags > WHOLE || mode > 3 || zero != 0 || !fits {
            return Err(Malformed::Value("mode"));
        }
        let written_by = Anchor { boot: u64::from_le_bytes(cursor.array()?), offset: cursor.u64()? as i64 };
        let at = cursor.u64()?;
        let shift = self.shift(written_by, at);
        let delay_until = match cursor.u64()? {
            0 => None,
            _ if mode == 1 && version >= 3 => return Err(Malformed::Value("delay")),
            // No module ever wrote that; to hold a lock alone is to have waited for its delay.
            _ if mode == 1 => None,
            until => {
                // Both were rounded to whole ms, away from each other: one more than was asked for may be
                // left.
                let left = until.saturating_sub(at);
                if left > MAX_DELAY + 1 {
                    return Err(Malformed::Value("delay"));
                }
                Some(moved(until, shift).min(self.now.after_millis(left.min(MAX_DELAY))))
            }
        };
        let (drops, puts) = (cursor.u32()?, cursor.u32()?);
        let (mut dropped, mut put) = (Vec::new(), SmallVec::new());
        for _ in 0..drops {
            let [len] = cursor.array()?;
            dropped.push(Token::new(cursor.take(len.into())?).ok_or(Malformed::Value("token"))?);
        }
        for _ in 0..puts {
            put.push(self.hold(&mut cursor, shift)?);
        }
        if !cursor.bytes.is_empty() {
            return Err(Malformed::Long);
        }
        let clock = (written_by, at);
        let written = Written { clock, whole: flags == WHOLE, mode, permits, delay_until, dropped, put };
        written.check()?;
        Ok(written)
    }

    fn hold(&self, cursor: &mut Cursor<'_>, shift: i64) -> Result<Hold, Malformed> {
        let fence = Fence::from_outside(cursor.u64()?).ok_or(Malformed::Value("fence"))?;
        let deadline = cursor.u64()?;
        // Before version 3 the fence has to tell: unless it was raised, it began as the microsecond of the
        // grant.
        let granted = if cursor.version < 3 { fence.get() / 1000 } else { cursor.u64()? };
        let ttl = Ttl::from_millis(cursor.u32()?.into()).ok_or(Malformed::Value("ttl"))?;
        let count = NonZeroU32::new(cursor.u32()?).filter(|n| n.get() <= MAX_COUNT);
        let count = count.ok_or(Malformed::Value("count"))?;
        let delay = Delay::from_millis(cursor.u32()?.into()).ok_or(Malformed::Value("delay"))?;
        let [ephemeral, token_len, label_len] = cursor.array()?;
        let token = Token::new(cursor.take(token_len.into())?).ok_or(Malformed::Value("token"))?;
        let label = Label::new(cursor.take(label_len.into())?).ok_or(Malformed::Value("label"))?;
        let ephemeral = match ephemeral {
            0 => Ephemeral::No,
            1 => Ephemeral::Orphan,
            _ => return Err(Malformed::Value("ephemeral")),
        };
        let (granted, deadline) = (Instant::from_millis(granted), Deadline::at_millis(deadline));
        let mut hold = Hold::new(token, fence, granted, deadline, ttl);
        hold.set_extras(Extras { ephemeral, delay, label, count, owner: None });
        self.move_hold(&mut hold, shift);
        Ok(hold)
    }

    /// Moves a hold by the writer's clock to the reader's.
    pub(super) fn move_hold(&self, hold: &mut Hold, shift: i64) {
        let granted = hold.granted().millis().saturating_add_signed(shift).min(self.now.millis());
        hold.set_granted(Instant::from_millis(granted));
        // A clock that is off can shorten a lease, but never make it longer than it was granted for.
        let ttl = hold.ttl();
        hold.set_lease(moved(hold.deadline().millis(), shift).min(self.now + ttl), ttl);
    }

    /// By how many ms the writer's clock has to be moved to be the reader's.
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

fn moved(deadline: u64, shift: i64) -> Deadline {
    Deadline::at_millis(deadline.saturating_add_signed(shift))
}

impl Written {
    /// A lock with this hold, or without any.
    pub(super) fn whole(clock: (Anchor, u64), hold: Option<Hold>) -> Written {
        let (mode, put) = (u8::from(hold.is_some()), hold.into_iter().collect());
        Written { clock, whole: true, mode, permits: 0, delay_until: None, dropped: Vec::new(), put }
    }

    /// The mode and the number of holds have to agree, and no token holds twice.
    fn check(&self) -> Result<(), Malformed> {
        let least = usize::from(self.whole && self.mode != 0);
        let fits = (least..=self.most()).contains(&self.put.len());
        let shape = if self.whole { self.dropped.is_empty() } else { self.mode >= 2 };
        if !fits || !shape {
            return Err(Malformed::Value("number of holds"));
        }
        // Most are of one hold, and many of them are loaded.
        if self.put.len() + self.dropped.len() < 2 {
            return Ok(());
        }
        let mut tokens: Vec<&Token> = self.put.iter().map(Hold::token).chain(&self.dropped).collect();
        tokens.sort_unstable();
        if tokens.windows(2).any(|pair| pair[0] == pair[1]) {
            return Err(Malformed::Value("token (twice)"));
        }
        Ok(())
    }

    /// The greatest fence in it; 0 for none.
    pub fn greatest_fence(&self) -> u64 {
        self.put.iter().map(|hold| hold.fence().get()).max().unwrap_or(0)
    }

    /// The longest ttl in it, ms; 0 for none.
    pub fn longest_ttl(&self) -> u64 {
        self.put.iter().map(|hold| hold.ttl().millis()).max().unwrap_or(0)
    }

    /// The longest lock-delay in it, running or to come, ms; 0 for none.
    pub fn longest_delay(&self, now: Instant) -> u64 {
        let to_come = self.put.iter().map(|hold| hold.delay().millis()).max().unwrap_or(0);
        self.delay_until.map_or(0, |until| until.left(now)).max(to_come)
    }

    /// Whether it is a whole lock, as it is stored, and no mere change of one.
    pub fn is_whole(&self) -> bool {
        self.whole
    }

    /// Carries it out. Idempotent: everything in it is a final value. False where it would leave more holders
    /// than its mode allows, which only bytes that no master wrote can do; the lock is left as it was.
    pub fn apply(self, lock: &mut Lock) -> bool {
        if !self.whole {
            return self.apply_part(lock);
        }
        let delay = self.delay_until;
        lock.replace(match self.mode {
            // By far the most frequent, and done without a list.
            0 | 1 => self.put.into_iter().next().map_or(Holding::free(delay), Holding::Exclusive),
            mode => match Holders::from_vec(self.put.into_vec()) {
                None => Holding::free(delay),
                Some(holders) => crowd(mode, self.permits, delay, holders),
            },
        });
        true
    }

    /// It is of a lock that many may hold, whatever the lock was before.
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
        let holders = match staying {
            None => Holders::from_vec(self.put.into_vec()),
            Some(mut holders) => {
                self.put.into_iter().for_each(|hold| holders.push(hold));
                Some(holders)
            }
        };
        lock.replace(match holders {
            None => Holding::free(self.delay_until),
            Some(holders) => crowd(self.mode, self.permits, self.delay_until, holders),
        });
        true
    }

    fn most(&self) -> usize {
        match self.mode {
            0 => 0,
            1 => 1,
            2 => usize::MAX,
            _ => self.permits as usize,
        }
    }
}

fn crowd(mode: u8, permits: u32, delay_until: Option<Deadline>, holders: Holders) -> Holding {
    let permits = NonZeroU32::new(permits).filter(|_| mode == 3);
    Holding::crowd(permits, delay_until, holders)
}
