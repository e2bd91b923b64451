//! Plain commands: commands that are logged verbatim instead of an effect.
//!
//! An effect adds nearly half to the cost of a command. So the two most frequent steps are logged without
//! one: a RELEASE that leaves an empty lock, and an ACQUIRE without options that begins a hold in the ms of
//! the last effect, with the fence after the last one. That effect contained the clock and the fence, from
//! which readers derive those of the ACQUIRE. So at most one grant of each ms is an effect. Plain commands
//! are as final as effects: they lead to the same holds, fences and deadlines.
//!
//! - The writer logs a plain command only if readers derive from it exactly the state that the writer has
//!   stored ([`Plain::suffices`]). Otherwise it logs an effect.
//! - Readers decide nothing. The result replaces the stored lock, as that of an effect does.
//! - A log is cut at its end only, so a plain command always follows the effect that it builds on.
//! - Readers begin at a snapshot. After each snapshot that a child process writes, the writer first logs an
//!   effect. Each snapshot also contains the state of the log, from which a replica continues after a
//!   restart, as do a replica of that replica and a former master that continues its own log.
//! - Commands that may not be logged, such as calls by other modules, do not change that state.

use dlock_protocol::{Fence, Instant, TokenRef, Ttl};

use crate::codec::{Anchor, Effect, Reader, Written};
use crate::lock::{Hold, Holding, Lock};

/// The state of a log at its end, by its last effect and the plain ACQUIREs after that.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    pub written_by: Anchor,
    /// Time of the last effect by the writer's clock, in ms.
    pub at: u64,
    /// The greatest fence.
    pub last: u64,
}

/// A command that can be logged verbatim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain<'a> {
    Acquire(TokenRef<'a>, Ttl),
    Release,
}

impl LogState {
    /// The hold that a plain ACQUIRE begins, by the writer's clock. `None` if the fences are used up.
    fn next(self, token: TokenRef<'_>, ttl: Ttl) -> Option<Hold> {
        let granted = Instant::from_millis(self.at);
        let fence = Fence::from_outside(self.last + 1)?;
        // Every deadline is rounded up to whole ms, and the grant was at any time within its ms.
        let deadline = granted.after_millis(ttl.millis() + 1);
        Some(Hold::new(token.to_owned(), fence, granted, deadline, ttl))
    }

    /// The state as it is written to snapshots.
    pub fn to_numbers(self) -> [u64; 4] {
        let LogState { written_by: Anchor { boot, offset }, at, last } = self;
        [boot, offset as u64, at, last]
    }

    /// `None` if the numbers are no state of a log: its fence is never 0.
    pub fn from_numbers([boot, offset, at, last]: [u64; 4]) -> Option<LogState> {
        let written_by = Anchor { boot, offset: offset as i64 };
        (1..=Fence::MAX).contains(&last).then_some(LogState { written_by, at, last })
    }
}

impl Plain<'_> {
    /// For the writer: returns whether the command is enough for readers with this state, because it leads
    /// them to exactly the stored lock. Advances the state if so.
    pub fn suffices(self, known: &mut Option<LogState>, lock: &Lock, anchor: Anchor) -> bool {
        let Plain::Acquire(token, ttl) = self else { return lock.is_gone() };
        let Some(known) = known.as_mut().filter(|known| known.written_by == anchor) else { return false };
        let Holding::Exclusive(hold) = lock.holding() else { return false };
        let suffices = known.next(token, ttl).as_ref() == Some(hold);
        known.last += u64::from(suffices);
        suffices
    }
}

impl Reader {
    /// Reads a plain command with this state of the log. `None` if no writer can have sent it.
    pub fn plain(self, plain: Plain<'_>, known: &mut Option<LogState>) -> Option<Effect> {
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

impl Effect {
    /// The state of the log after this effect.
    pub fn known(&self) -> LogState {
        let (written_by, at) = self.written.clock;
        LogState { written_by, at, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::Mode;

    use super::*;

    /// A writable replica has the state of its master's log.
    #[test]
    fn a_plain_acquire_needs_the_clock_of_the_last_effect() {
        let [own, other] = [1, 2].map(|offset| Anchor { boot: 7, offset });
        let (token, ttl) = (TokenRef::new(b"t").unwrap(), Ttl::MAX);
        for (written_by, suffices) in [(own, true), (other, false)] {
            let known = LogState { written_by, at: 1_000, last: 41 };
            let mut lock = Lock::default();
            lock.add(known.next(token, ttl).unwrap(), Mode::Exclusive);
            let mut state = Some(known);
            assert_eq!(Plain::Acquire(token, ttl).suffices(&mut state, &lock, own), suffices);
            assert_eq!(state.map(|known| known.last), Some(41 + u64::from(suffices)));
        }
    }
}
