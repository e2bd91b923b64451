//! Plain commands: commands that are logged verbatim instead of an effect.
//!
//! The log of a server is its replication stream and its append only file. The readers of the log are the
//! replicas, and a server that loads the file. The module usually logs an effect (`DLOCK._SET`), which
//! contains the changed holds. An effect adds nearly half to the cost of a command. So the two most frequent
//! commands are logged verbatim:
//!
//! - a RELEASE that leaves an empty lock
//! - an ACQUIRE without options that begins a hold in the same ms as the last effect, with the next fence.
//!   From the time and the fence in that effect, readers derive the hold.
//!
//! All readers must derive the same holds, fences and deadlines from a plain command. To ensure this:
//!
//! - The writer logs a plain command only if readers derive from it exactly the state that the writer has
//!   stored ([`Plain::advance_if_exact`]). Otherwise it logs an effect.
//! - Readers do not decide whether to grant. The lock that they derive replaces the stored one.
//! - A crash or a truncation removes only the end of a log. So a log that contains a plain command also
//!   contains the earlier effect that the command builds on.
//! - A new reader begins at a snapshot that a forked child of the writer saves. After each fork, the writer
//!   first logs an effect, so the reader needs no earlier state.
//! - A replica that restarts from its own snapshot continues in the middle of the log. For this replica, a
//!   snapshot also contains the [`LogState`].
//! - After an effect that some readers may miss, the writer logs the next ACQUIRE as an effect, too. An
//!   example is an effect in a call by another module, which decides whether the call is logged.

use dlock_protocol::{Fence, Instant, TokenRef, Ttl};

use crate::codec::{Anchor, Effect, Reader, Written};
use crate::lock::{Hold, Holding, Lock};

/// The state of a log after its last entry: that of the last effect, advanced by the plain ACQUIREs since.
/// From this state, a reader derives the hold of the next plain ACQUIRE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LogState {
    /// The writer's clock.
    pub written_by: Anchor,
    /// Time of the last effect by the writer's clock, in ms.
    pub at: u64,
    /// The greatest fence so far.
    pub last: u64,
}

/// A command that can be logged verbatim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Plain<'a> {
    Acquire(TokenRef<'a>, Ttl),
    Release,
}

impl LogState {
    /// The hold that the next plain ACQUIRE begins, in times of the writer's clock. `None` if the fences
    /// are used up.
    fn next(self, token: TokenRef<'_>, ttl: Ttl) -> Option<Hold> {
        let granted = Instant::from_millis(self.at);
        let fence = Fence::from_outside(self.last + 1)?;
        // The writer granted the hold less than 1 ms after `at`, and rounded the deadline up to a whole ms.
        // So the deadline is 1 ms later than `at` plus the ttl.
        let deadline = granted.after_millis(ttl.millis() + 1);
        Some(Hold::new(token.to_owned(), fence, granted, deadline, ttl))
    }

    /// The state as it is written to snapshots.
    pub fn to_numbers(self) -> [u64; 4] {
        let LogState { written_by: Anchor { boot, offset }, at, last } = self;
        [boot, offset as u64, at, last]
    }

    /// The state with the numbers of [`LogState::to_numbers`]. `None` if `last` is not a fence.
    pub fn from_numbers([boot, offset, at, last]: [u64; 4]) -> Option<LogState> {
        let written_by = Anchor { boot, offset: offset as i64 };
        (1..=Fence::MAX).contains(&last).then_some(LogState { written_by, at, last })
    }
}

impl Plain<'_> {
    /// For the writer: returns whether readers with this state derive exactly the stored lock from the
    /// command. If so, advances the state.
    pub fn advance_if_exact(self, state: &mut Option<LogState>, lock: &Lock, anchor: Anchor) -> bool {
        let Plain::Acquire(token, ttl) = self else { return lock.is_gone() };
        let Some(state) = state.as_mut().filter(|state| state.written_by == anchor) else { return false };
        let Holding::Exclusive(hold) = lock.holding() else { return false };
        let is_exact = state.next(token, ttl).as_ref() == Some(hold);
        state.last += u64::from(is_exact);
        is_exact
    }
}

impl Reader {
    /// Derives the effect of a plain command, and advances the state of the log. `None` if no writer can have
    /// logged the command in this state.
    pub fn plain(self, plain: Plain<'_>, state: &mut Option<LogState>) -> Option<Effect> {
        let Plain::Acquire(token, ttl) = plain else {
            // A RELEASE issues no fence. The 0 does not raise the reader's greatest fence.
            return Some(Effect { last: 0, written: Written::whole((self.anchor, self.now.millis()), None) });
        };
        let state = state.as_mut()?;
        let mut hold = state.next(token, ttl)?;
        state.last += 1;
        self.move_hold(&mut hold, self.shift(state.written_by, state.at));
        let written = Written::whole((state.written_by, state.at), Some(hold));
        Some(Effect { last: state.last, written })
    }
}

impl Effect {
    /// The state of the log after this effect.
    pub fn log_state(&self) -> LogState {
        let (written_by, at) = self.written.clock;
        LogState { written_by, at, last: self.last }
    }
}

#[cfg(test)]
mod tests {
    use dlock_protocol::Mode;

    use super::*;

    /// A writable replica has the state of its master's log, but a clock of its own. From the last effect of
    /// the master, a reader could not derive the times of a hold that the replica granted.
    #[test]
    fn a_plain_acquire_needs_the_clock_of_the_last_effect() {
        let [own, other] = [1, 2].map(|offset| Anchor { boot: 7, offset });
        let (token, ttl) = (TokenRef::new(b"t").unwrap(), Ttl::MAX);
        for (written_by, is_exact) in [(own, true), (other, false)] {
            let state = LogState { written_by, at: 1_000, last: 41 };
            let mut lock = Lock::default();
            lock.add(state.next(token, ttl).unwrap(), Mode::Exclusive);
            let mut state = Some(state);
            assert_eq!(Plain::Acquire(token, ttl).advance_if_exact(&mut state, &lock, own), is_exact);
            assert_eq!(state.map(|state| state.last), Some(41 + u64::from(is_exact)));
        }
    }
}
