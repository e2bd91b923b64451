//! One resource: who holds it, until when, and what may be added to that. State and reading only;
//! [`crate::decide`] changes it.

use dlock_protocol::{Deadline, Fence, Instant, Mode};
use smallvec::SmallVec;

use crate::schedule::Slot;

mod hold;
mod holders;
mod holding;
mod rows;

pub(crate) use hold::Extras;
pub use hold::{Ephemeral, Hold};
pub(crate) use holders::Holders;
pub(crate) use holding::{Crowd, Fit, Holding};

/// One resource. What it says of holds is true only at a moment: see [`Lock::at`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    holding: Holding,
}

impl Lock {
    /// Held by nobody until then.
    pub(crate) fn delayed(until: Deadline) -> Lock {
        Lock { holding: Holding::free(Some(until)) }
    }

    /// The lock as it is at `now`: the only way to read its holders, so that nobody ever sees an expired
    /// hold.
    pub fn at(&self, now: Instant) -> View<'_> {
        View { lock: self, now }
    }

    /// Nobody holds it and no lock-delay runs, as far as is stored: the key can go.
    pub fn is_gone(&self) -> bool {
        matches!(self.holding, Holding::Free { delay_until: None, .. })
    }

    /// Where it stands in the schedule; nowhere while it is not at home in the keyspace (renamed away, not
    /// yet stored). It lies within what the lock holds, whatever that is: beside it, the value of a key would
    /// take 80 bytes.
    pub fn slot(&self) -> Option<Slot> {
        self.holding.slot()
    }

    pub fn slot_mut(&mut self) -> &mut Option<Slot> {
        self.holding.slot_mut()
    }

    /// No hold is stored, expired or not.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.holding, Holding::Free { .. })
    }

    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// It holds something else from now on, and stands where it did in the schedule.
    pub(crate) fn replace(&mut self, mut holding: Holding) -> Holding {
        *holding.slot_mut() = self.slot();
        std::mem::replace(&mut self.holding, holding)
    }

    pub(crate) fn take(&mut self) -> Holding {
        self.replace(Holding::default())
    }

    pub(crate) fn crowd_mut(&mut self) -> Option<&mut Crowd> {
        match &mut self.holding {
            Holding::Crowd(crowd) => Some(crowd),
            _ => None,
        }
    }

    /// When the lock-delay ends, as far as is stored.
    pub fn delay_until(&self) -> Option<Deadline> {
        match &self.holding {
            Holding::Free { delay_until, .. } => *delay_until,
            Holding::Exclusive(_) => None,
            Holding::Crowd(crowd) => crowd.delay_until,
        }
    }

    /// Not while it is held exclusively.
    pub(crate) fn set_delay_until(&mut self, until: Option<Deadline>) {
        match &mut self.holding {
            Holding::Free { delay_until, .. } => *delay_until = until,
            Holding::Exclusive(_) => {}
            Holding::Crowd(crowd) => crowd.delay_until = until,
        }
    }

    /// When it must be looked at again, if ever: the first lease or lock-delay to end.
    pub fn next_due(&self) -> Option<Deadline> {
        match &self.holding {
            Holding::Free { delay_until, .. } => *delay_until,
            Holding::Exclusive(hold) => Some(hold.deadline()),
            Holding::Crowd(crowd) => {
                crowd.holders.first_deadline().into_iter().chain(crowd.delay_until).min()
            }
        }
    }

    /// How many holds are stored, expired or not.
    pub fn stored_len(&self) -> usize {
        match &self.holding {
            Holding::Free { .. } => 0,
            Holding::Exclusive(_) => 1,
            Holding::Crowd(crowd) => crowd.holders.len(),
        }
    }

    /// Every hold that is stored, expired or not: for the codec, and for counting.
    pub fn stored(&self) -> impl Iterator<Item = &Hold> {
        let (alone, crowd) = self.split();
        alone.into_iter().chain(crowd.into_iter().flat_map(|crowd| crowd.holders.iter()))
    }

    fn split(&self) -> (Option<&Hold>, Option<&Crowd>) {
        match &self.holding {
            Holding::Free { .. } => (None, None),
            Holding::Exclusive(hold) => (Some(hold), None),
            Holding::Crowd(crowd) => (None, Some(crowd)),
        }
    }

    /// Bytes this lock occupies, itself included.
    pub fn size(&self) -> usize {
        let heap = match &self.holding {
            Holding::Free { .. } => 0,
            Holding::Exclusive(hold) => hold.heap_size(),
            Holding::Crowd(crowd) => size_of::<Crowd>() + crowd.holders.heap_size(),
        };
        size_of::<Lock>() + heap
    }

    /// How many of the stored holds are bound to a connection.
    pub fn bound(&self) -> usize {
        let (alone, crowd) = self.split();
        usize::from(alone.is_some_and(Hold::is_bound)) + crowd.map_or(0, |crowd| crowd.holders.bound())
    }

    /// As it is stored, of holds that may have expired.
    pub fn mode(&self) -> Option<Mode> {
        match &self.holding {
            Holding::Free { .. } => None,
            Holding::Exclusive(_) => Some(Mode::Exclusive),
            Holding::Crowd(crowd) => Some(crowd.permits.map_or(Mode::Shared, Mode::Permits)),
        }
    }

    #[inline]
    pub(crate) fn stored_of(&self, token: &[u8]) -> Option<&Hold> {
        match &self.holding {
            Holding::Free { .. } => None,
            Holding::Exclusive(hold) => Some(hold).filter(|hold| *hold.token() == *token),
            Holding::Crowd(crowd) => crowd.get(token),
        }
    }

    /// The hold of the token no longer ends with a connection, whether or not it has expired.
    pub fn orphan(&mut self, token: &[u8]) {
        match &mut self.holding {
            Holding::Exclusive(hold) if *hold.token() == *token => hold.orphan(),
            Holding::Crowd(crowd) => drop(crowd.holders.change(token, Hold::orphan)),
            _ => {}
        }
    }

    /// Has the hold of a token changed, if it has not expired.
    #[inline]
    pub(crate) fn change<R>(
        &mut self,
        token: &[u8],
        now: Instant,
        change: impl FnOnce(&mut Hold) -> R,
    ) -> Option<R> {
        match &mut self.holding {
            Holding::Exclusive(hold) if *hold.token() == *token && !hold.deadline().passed(now) => {
                Some(change(hold))
            }
            Holding::Crowd(crowd) if crowd.holders.get(token)?.deadline().passed(now) => None,
            Holding::Crowd(crowd) => crowd.holders.change(token, change),
            _ => None,
        }
    }

    /// For a token that holds nothing here, with everything expired already swept away, or as much as a turn
    /// may take: then there is room enough. `most` may hold it at a time.
    #[inline]
    pub(crate) fn fit(&self, mode: Mode, most: usize, now: Instant) -> Fit {
        match &self.holding {
            Holding::Free { delay_until: None, .. } => Fit::Fits,
            Holding::Free { .. } | Holding::Exclusive(_) => Fit::NotNow,
            Holding::Crowd(crowd) => crowd.fit(mode, most, now),
        }
    }

    /// Whether the sharer that holds it can be the exclusive holder: it is alone, and so it is with what a
    /// dead sharer still had in flight.
    pub(crate) fn can_upgrade(&self, now: Instant) -> bool {
        let crowd = self.split().1;
        crowd.is_some_and(|crowd| crowd.delay_until.is_none() && crowd.holders.at_most_one_lives(now))
    }

    /// Adds a hold that fits.
    #[inline]
    pub(crate) fn add(&mut self, mut hold: Hold, mode: Mode) {
        if let (Holding::Free { slot, .. }, Mode::Exclusive) = (&self.holding, mode) {
            // As `replace`, without moving the hold twice.
            hold.slot = *slot;
            self.holding = Holding::Exclusive(hold);
        } else {
            self.add_beside(hold, mode);
        }
    }

    #[inline(never)]
    fn add_beside(&mut self, hold: Hold, mode: Mode) {
        let holding = match (&mut self.holding, mode) {
            (Holding::Crowd(crowd), Mode::Shared | Mode::Permits(_)) => return crowd.holders.push(hold),
            (_, Mode::Exclusive) => Holding::Exclusive(hold),
            (_, Mode::Shared) => Holding::crowd(None, None, Holders::one(hold)),
            (_, Mode::Permits(n)) => Holding::crowd(Some(n), None, Holders::one(hold)),
        };
        self.replace(holding);
    }

    /// Takes a hold out, expired or not.
    pub(crate) fn remove(&mut self, token: &[u8]) -> Option<Hold> {
        match &mut self.holding {
            Holding::Free { .. } => None,
            Holding::Exclusive(hold) if *hold.token() != *token => None,
            Holding::Exclusive(_) => self.take_exclusive(),
            Holding::Crowd(_) => self.remove_from_crowd(token),
        }
    }

    #[inline(never)]
    fn remove_from_crowd(&mut self, token: &[u8]) -> Option<Hold> {
        let removed = self.crowd_mut()?.holders.remove(token);
        self.free_if_empty();
        removed
    }

    /// Takes the only holder out.
    pub(crate) fn take_exclusive(&mut self) -> Option<Hold> {
        match self.take() {
            Holding::Exclusive(hold) => Some(hold),
            other => {
                self.holding = other;
                None
            }
        }
    }

    /// Takes expired holds out, about so many at the most.
    pub(crate) fn take_expired(&mut self, now: Instant, most: usize) -> SmallVec<[Hold; 1]> {
        let Holding::Crowd(crowd) = &mut self.holding else { return SmallVec::new() };
        let taken = crowd.holders.take_expired(now, most);
        self.free_if_empty();
        taken
    }

    fn free_if_empty(&mut self) {
        if let Holding::Crowd(crowd) = &self.holding
            && crowd.holders.is_empty()
        {
            self.replace(Holding::free(crowd.delay_until));
        }
    }

    /// Takes all sharers or holders of permits out.
    pub(crate) fn take_crowd(&mut self) -> Option<Holders> {
        let Holding::Crowd(crowd) = &self.holding else { return None };
        match self.replace(Holding::free(crowd.delay_until)) {
            Holding::Crowd(crowd) => Some(crowd.holders),
            _ => None,
        }
    }
}

/// A lock at a moment: expired holds and a lock-delay that has passed are not seen.
#[derive(Clone, Copy)]
pub struct View<'a> {
    lock: &'a Lock,
    now: Instant,
}

impl<'a> View<'a> {
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

#[cfg(test)]
mod tests {
    use super::*;

    /// By far the most are held by one, and are the value of a key.
    #[test]
    fn a_lock_is_as_large_as_a_hold() {
        assert_eq!((size_of::<Hold>(), size_of::<Lock>()), (64, 64));
    }

    #[test]
    fn a_lock_stays_where_it_is_scheduled_whatever_it_holds() {
        let slot = crate::schedule::Schedule::default().insert(Deadline::at_millis(1), ());
        let hold = |token: &[u8]| {
            let token = dlock_protocol::Token::new(token).unwrap();
            let (granted, deadline) = (Instant::from_millis(1), Deadline::at_millis(2));
            Hold::new(token, dlock_protocol::Fence::MIN, granted, deadline, dlock_protocol::Ttl::MAX)
        };
        let mut lock = Lock::default();
        *lock.slot_mut() = slot;
        lock.add(hold(b"a"), Mode::Exclusive);
        assert_eq!((lock.slot(), lock.stored_len()), (slot, 1));
        assert!(lock.remove(b"a").is_some());
        assert_eq!((lock.slot(), lock.is_gone()), (slot, true));
        lock.add(hold(b"a"), Mode::Shared);
        lock.add(hold(b"b"), Mode::Shared);
        assert_eq!((lock.slot(), lock.stored_len()), (slot, 2));
        assert_eq!(lock.take_crowd().map(|crowd| crowd.len()), Some(2));
        assert_eq!((lock.slot(), lock.is_gone()), (slot, true));
        lock.add(hold(b"a"), Mode::Shared);
        assert_eq!(lock.take_expired(Instant::from_millis(2), 1).len(), 1);
        assert_eq!((lock.slot(), lock.is_gone()), (slot, true));
    }
}
