//! Plain commands: logged as they came, for their readers can tell what an effect would say.
//!
//! To hand the server an effect costs it nearly half as much again as the command. So the two most frequent
//! steps go without: a RELEASE that leaves nothing behind, and an ACQUIRE without options that begins a hold
//! in the same millisecond as the last effect, with the fence that follows the last one. That effect told its
//! readers the clock and the fence; they count on from there. So at most one grant of a millisecond is an
//! effect, and what plain commands mean is as final as what effects say: the holds, fences and deadlines are
//! the very same.
//!
//! - The writer sends a plain command only where what readers make of it is what it has stored itself
//!   ([`Plain::tells`]); in any other case, an effect.
//! - Readers decide nothing. Whatever they find, the outcome takes its place, as that of an effect does.
//! - A log is only ever cut at its end, so what a plain command builds on stands before it. Whoever begins to
//!   read does so at a snapshot. Behind each that a child makes the writer begins with an effect. And each
//!   holds what is known there: for a replica that goes on where it was before a restart, for one that it
//!   hands its snapshot to, and for an old master that reads its own log on.
//! - Nobody counts on from what may be logged nowhere, as a call by another module may.

use dlock_protocol::{Fence, Instant, TokenRef, Ttl};

use super::layout::Anchor;
use super::reading::{Reader, Written};
use crate::lock::{Hold, Holding, Lock};

/// What the readers of a log know at its end, by its last effect and the plain ACQUIREs behind that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Known {
    pub written_by: Anchor,
    /// The millisecond of the writer's clock.
    pub at: u64,
    /// The greatest fence.
    pub last: u64,
}

/// A command that may be logged as it came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain<'a> {
    Acquire(TokenRef<'a>, Ttl),
    Release,
}

impl Known {
    /// The hold that a plain ACQUIRE begins, by the writer's clock; None when fences are used up.
    fn next(self, token: TokenRef<'_>, ttl: Ttl) -> Option<Hold> {
        let granted = Instant::from_millis(self.at);
        let fence = Fence::from_outside(self.last + 1)?;
        // Within that millisecond, so rounded up from there, as every deadline is.
        let deadline = granted.after_millis(ttl.millis() + 1);
        Some(Hold::new(token.to_owned(), fence, granted, deadline, ttl))
    }

    /// As a snapshot keeps it.
    pub fn to_numbers(self) -> [u64; 4] {
        let Known { written_by: Anchor { boot, offset }, at, last } = self;
        [boot, offset as u64, at, last]
    }

    /// None where they say nothing, for each log begins with a fence, or what cannot be.
    pub fn from_numbers([boot, offset, at, last]: [u64; 4]) -> Option<Known> {
        let written_by = Anchor { boot, offset: offset as i64 };
        (1..=Fence::MAX).contains(&last).then_some(Known { written_by, at, last })
    }
}

impl Plain<'_> {
    /// For the writer, whose readers know this: whether the command tells them what is stored here. Then they
    /// know what comes of it, too.
    pub fn tells(self, known: &mut Option<Known>, lock: &Lock, anchor: Anchor) -> bool {
        let Plain::Acquire(token, ttl) = self else { return lock.is_gone() };
        let Some(known) = known.as_mut().filter(|known| known.written_by == anchor) else { return false };
        let Holding::Exclusive(hold) = lock.holding() else { return false };
        let tells = known.next(token, ttl).as_ref() == Some(hold);
        known.last += u64::from(tells);
        tells
    }
}

impl Reader {
    /// Reads a plain command by what is known. None for one that nobody could have sent.
    pub fn plain(self, plain: Plain<'_>, known: &mut Option<Known>) -> Option<Effect> {
        let Plain::Acquire(token, ttl) = plain else {
            return Some(Effect { last: 0, written: Written::whole((self.anchor, self.now.millis()), None) });
        };
        let known = known.as_mut()?;
        let mut hold = known.next(token, ttl)?;
        known.last += 1;
        self.move_hold(&mut hold, self.shift(known.written_by, known.at));
        let written = Written::whole((known.written_by, known.at), Some(hold));
        Some(Effect { last: known.last, written })
    }
}

/// What a master, or the append only file, tells of one lock.
#[derive(Debug)]
pub struct Effect {
    /// The greatest fence that its writer had issued or accepted.
    pub last: u64,
    pub written: Written,
}

impl Effect {
    /// What readers know behind it.
    pub fn known(&self) -> Known {
        let (written_by, at) = self.written.clock;
        Known { written_by, at, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::Mode;

    use super::*;

    /// As a replica that may be written to knows its master's.
    #[test]
    fn nobody_counts_on_by_the_clock_of_another() {
        let [own, other] = [1, 2].map(|offset| Anchor { boot: 7, offset });
        let (token, ttl) = (TokenRef::new(b"t").unwrap(), Ttl::MAX);
        for (written_by, tells) in [(own, true), (other, false)] {
            let known = Known { written_by, at: 1_000, last: 41 };
            let mut lock = Lock::default();
            lock.add(known.next(token, ttl).unwrap(), Mode::Exclusive);
            let mut behind = Some(known);
            assert_eq!(Plain::Acquire(token, ttl).tells(&mut behind, &lock, own), tells);
            assert_eq!(behind.map(|known| known.last), Some(41 + u64::from(tells)));
        }
    }
}
