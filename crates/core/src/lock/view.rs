//! A lock as it is read, at a moment.

use dlock_protocol::{Fence, Instant};

use super::{Hold, Lock, Mode};

/// A lock at a moment: expired holds and a lock-delay that has passed are not seen.
#[derive(Clone, Copy)]
pub struct View<'a> {
    lock: &'a Lock,
    now: Instant,
}

impl<'a> View<'a> {
    pub(super) fn new(lock: &'a Lock, now: Instant) -> View<'a> {
        View { lock, now }
    }

    /// Few in the order of their grants, many in that of their deadlines.
    pub fn holds(self) -> impl Iterator<Item = &'a Hold> {
        let ((alone, crowd), now) = (self.lock.split(), self.now);
        let alone = alone.into_iter().filter(move |hold| !hold.deadline().passed(now));
        alone.chain(crowd.into_iter().flat_map(move |crowd| crowd.holders.live(now)))
    }

    /// How many hold it.
    pub fn holders(self) -> usize {
        match self.lock.split() {
            (_, Some(crowd)) => crowd.holders.count_live(self.now),
            _ => self.holds().count(),
        }
    }

    #[inline]
    pub fn hold_of(self, token: &[u8]) -> Option<&'a Hold> {
        self.lock.stored_of(token).filter(|hold| !hold.deadline().passed(self.now))
    }

    /// None where nobody holds it.
    pub fn mode(self) -> Option<Mode> {
        self.longest_left().and(self.lock.mode())
    }

    /// Milliseconds of lock-delay left; 0 for none. Also of one that an expired hold brings which has not
    /// ended yet.
    pub fn delay_left(self) -> u64 {
        let of_expired = match self.lock.split() {
            (Some(hold), _) if hold.deadline().passed(self.now) => hold.delay_until(),
            (_, Some(crowd)) => crowd.holders.delay_of_expired(self.now),
            _ => None,
        };
        self.lock.delay_until().max(of_expired).map_or(0, |until| until.left(self.now))
    }

    /// The greatest fence among the holders.
    pub fn fence(self) -> Option<Fence> {
        match self.lock.split() {
            (_, Some(crowd)) => crowd.holders.fence(self.now),
            _ => self.holds().next().map(|hold| hold.fence()),
        }
    }

    /// Milliseconds since the first grant among the holders'.
    pub fn longest_held(self) -> Option<u64> {
        let first = match self.lock.split() {
            (_, Some(crowd)) => crowd.holders.granted(self.now),
            _ => self.holds().next().map(Hold::granted),
        };
        first.map(|first| self.now.millis_since(first))
    }

    /// Milliseconds left of the longest lease.
    pub fn longest_left(self) -> Option<u64> {
        let last = match self.lock.split() {
            (alone, None) => alone.map(|hold| hold.deadline()),
            (_, Some(crowd)) => crowd.holders.last_deadline(),
        };
        last.filter(|deadline| !deadline.passed(self.now)).map(|deadline| deadline.left(self.now))
    }
}
