//! One lock: its holds, and its lock-delay, the pause before the next grant: after a hold that expired or
//! lost its connection (DELAY of ACQUIRE), or that was released with DELAY. [`crate::decide`] changes a lock.

use std::num::NonZeroU32;

use dlock_protocol::{Deadline, Fence, Instant, Mode};
use smallvec::SmallVec;

use crate::schedule::Slot;

mod hold;
mod holders;
mod rows;

pub use hold::{Ephemeral, Hold};
pub(crate) use hold::{Extras, NotCompared};
pub(crate) use holders::Holders;

/// One lock, as it is stored. Its holds can have expired: [`Lock::at`] leaves those out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    holding: Holding,
}

/// The stored holds and the lock-delay. In a [`Crowd`] (sharers or permit holders), a lock-delay can run
/// after the end of one hold, beside the remaining holds. `Exclusive` stores no lock-delay, because no
/// exclusive hold begins while a lock-delay runs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Holding {
    Free { delay_until: Option<Deadline>, slot: NotCompared<Option<Slot>> },
    Exclusive(Hold),
    Crowd(Box<Crowd>),
}

impl Default for Holding {
    fn default() -> Self {
        Holding::free(None)
    }
}

impl Holding {
    pub(crate) fn free(delay_until: Option<Deadline>) -> Holding {
        Holding::Free { delay_until, slot: NotCompared(None) }
    }

    pub(crate) fn crowd(
        permits: Option<NonZeroU32>,
        delay_until: Option<Deadline>,
        holders: Holders,
    ) -> Holding {
        Holding::Crowd(Box::new(Crowd { permits, delay_until, holders, slot: NotCompared(None) }))
    }

    fn slot(&self) -> Option<Slot> {
        match self {
            Holding::Free { slot, .. } => slot.0,
            Holding::Exclusive(hold) => hold.slot.0,
            Holding::Crowd(crowd) => crowd.slot.0,
        }
    }

    fn slot_mut(&mut self) -> &mut Option<Slot> {
        match self {
            Holding::Free { slot, .. } => &mut slot.0,
            Holding::Exclusive(hold) => &mut hold.slot.0,
            Holding::Crowd(crowd) => &mut crowd.slot.0,
        }
    }
}

/// The holds of a shared lock or a semaphore.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Crowd {
    /// Number of permits of the last grant. `None` for a shared lock.
    pub permits: Option<NonZeroU32>,
    /// End of the lock-delay, before which no grant is made.
    pub delay_until: Option<Deadline>,
    /// Never empty.
    pub holders: Holders,
    /// See [`Lock::slot`].
    pub slot: NotCompared<Option<Slot>>,
}

/// Whether a token without a hold can be granted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    NotNow,
    /// The lock has the maximum number of holders.
    Full,
}

impl Crowd {
    #[inline(never)]
    fn get(&self, token: &[u8]) -> Option<&Hold> {
        self.holders.get(token)
    }

    /// See [`Lock::fit`].
    fn fit(&self, mode: Mode, max_holders: usize, now: Instant) -> Fit {
        let stored = self.holders.len();
        let room = match (self.permits, mode) {
            (Some(_), Mode::Permits(n)) => stored < n.get() as usize,
            (None, Mode::Shared) => true,
            _ => false,
        };
        if !room || self.delay_until.is_some() {
            return Fit::NotNow;
        }
        let full = stored >= max_holders && self.holders.count_live(now) >= max_holders;
        if full { Fit::Full } else { Fit::Fits }
    }
}

impl Lock {
    /// A lock without holders, with a lock-delay until `until`.
    pub(crate) fn delayed(until: Deadline) -> Lock {
        Lock { holding: Holding::free(Some(until)) }
    }

    /// The lock at `now`, without expired holds.
    pub fn at(&self, now: Instant) -> View<'_> {
        View { lock: self, now }
    }

    /// True if no hold and no lock-delay is stored, so that the key can be deleted.
    pub fn is_gone(&self) -> bool {
        matches!(self.holding, Holding::Free { delay_until: None, .. })
    }

    /// The slot of this lock in the schedule of [`crate::due_locks`]. `None` while the lock is not stored
    /// under its key.
    ///
    /// The slot is stored inside `Holding`. A field for it in `Lock` would enlarge `Lock`, the value of a
    /// key, from 64 to 80 bytes.
    pub fn slot(&self) -> Option<Slot> {
        self.holding.slot()
    }

    pub fn slot_mut(&mut self) -> &mut Option<Slot> {
        self.holding.slot_mut()
    }

    /// True if no hold is stored, not even an expired one. A lock-delay may still run.
    pub(crate) fn is_free(&self) -> bool {
        matches!(self.holding, Holding::Free { .. })
    }

    pub(crate) fn holding(&self) -> &Holding {
        &self.holding
    }

    /// Replaces the content of the lock, and keeps its slot in the schedule.
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

    /// End of the stored lock-delay.
    pub fn delay_until(&self) -> Option<Deadline> {
        match &self.holding {
            Holding::Free { delay_until, .. } => *delay_until,
            Holding::Exclusive(_) => None,
            Holding::Crowd(crowd) => crowd.delay_until,
        }
    }

    /// Sets the lock-delay. Has no effect on a lock that is held exclusively.
    pub(crate) fn set_delay_until(&mut self, until: Option<Deadline>) {
        match &mut self.holding {
            Holding::Free { delay_until, .. } => *delay_until = until,
            Holding::Exclusive(_) => {}
            Holding::Crowd(crowd) => crowd.delay_until = until,
        }
    }

    /// The first lease or lock-delay to end. `None` if there is none.
    pub fn next_due(&self) -> Option<Deadline> {
        match &self.holding {
            Holding::Free { delay_until, .. } => *delay_until,
            Holding::Exclusive(hold) => Some(hold.deadline()),
            Holding::Crowd(crowd) => {
                crowd.holders.first_deadline().into_iter().chain(crowd.delay_until).min()
            }
        }
    }

    /// Number of stored holds, expired ones included.
    pub fn stored_len(&self) -> usize {
        match &self.holding {
            Holding::Free { .. } => 0,
            Holding::Exclusive(_) => 1,
            Holding::Crowd(crowd) => crowd.holders.len(),
        }
    }

    /// All stored holds, expired ones included.
    pub fn stored(&self) -> impl Iterator<Item = &Hold> {
        let (exclusive, crowd) = self.exclusive_or_crowd();
        exclusive.into_iter().chain(crowd.into_iter().flat_map(|crowd| crowd.holders.iter()))
    }

    fn exclusive_or_crowd(&self) -> (Option<&Hold>, Option<&Crowd>) {
        match &self.holding {
            Holding::Free { .. } => (None, None),
            Holding::Exclusive(hold) => (Some(hold), None),
            Holding::Crowd(crowd) => (None, Some(crowd)),
        }
    }

    /// Bytes in memory, the lock itself and the bindings of its holds to connections included.
    pub fn size(&self) -> usize {
        let heap = match &self.holding {
            Holding::Free { .. } => 0,
            Holding::Exclusive(hold) => hold.heap_size(),
            Holding::Crowd(crowd) => size_of::<Crowd>() + crowd.holders.heap_size(),
        };
        size_of::<Lock>() + heap
    }

    /// Mode of the stored holds, which can have expired. `None` if there are none.
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

    /// Marks the hold of a token as no longer bound to a connection, whether or not it has expired.
    pub fn orphan(&mut self, token: &[u8]) {
        match &mut self.holding {
            Holding::Exclusive(hold) if *hold.token() == *token => hold.orphan(),
            Holding::Crowd(crowd) => drop(crowd.holders.change(token, Hold::orphan)),
            _ => {}
        }
    }

    /// Changes the hold of a token. Returns `None` if the token has no hold, or an expired one.
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

    /// Whether a token without a hold can be granted one. A shared lock or a semaphore may have
    /// `max_holders` holds at most. The caller has removed a lock-delay that has ended, and expired holds.
    /// But one operation removes at most [`crate::EndedHolds::SLICE`] holds, so some expired ones may be
    /// left.
    #[inline]
    pub(crate) fn fit(&self, mode: Mode, max_holders: usize, now: Instant) -> Fit {
        match &self.holding {
            Holding::Free { delay_until: None, .. } => Fit::Fits,
            Holding::Free { .. } | Holding::Exclusive(_) => Fit::NotNow,
            Holding::Crowd(crowd) => crowd.fit(mode, max_holders, now),
        }
    }

    /// Whether a sharer can be upgraded: all other holds have expired, and no lock-delay runs.
    pub(crate) fn can_upgrade(&self, now: Instant) -> bool {
        let crowd = self.exclusive_or_crowd().1;
        crowd.is_some_and(|crowd| crowd.delay_until.is_none() && crowd.holders.at_most_one_live(now))
    }

    /// Adds a hold. [`Lock::fit`] must have allowed it. Returns whether this changes the number of permits.
    #[inline]
    pub(crate) fn add(&mut self, mut hold: Hold, mode: Mode) -> bool {
        if let (Holding::Free { slot, .. }, Mode::Exclusive) = (&self.holding, mode) {
            // Like `replace`, but moves the hold only once.
            hold.slot = *slot;
            self.holding = Holding::Exclusive(hold);
            false
        } else {
            self.add_in_any_mode(hold, mode)
        }
    }

    #[inline(never)]
    fn add_in_any_mode(&mut self, hold: Hold, mode: Mode) -> bool {
        let holding = match (&mut self.holding, mode) {
            (Holding::Crowd(crowd), Mode::Shared) => {
                crowd.holders.push(hold);
                return false;
            }
            (Holding::Crowd(crowd), Mode::Permits(n)) => {
                crowd.holders.push(hold);
                return crowd.permits.replace(n) != Some(n);
            }
            (_, Mode::Exclusive) => Holding::Exclusive(hold),
            (_, Mode::Shared) => Holding::crowd(None, None, Holders::one(hold)),
            (_, Mode::Permits(n)) => Holding::crowd(Some(n), None, Holders::one(hold)),
        };
        self.replace(holding);
        false
    }

    /// Removes a hold, expired or not.
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

    /// Removes the exclusive hold.
    pub(crate) fn take_exclusive(&mut self) -> Option<Hold> {
        match self.take() {
            Holding::Exclusive(hold) => Some(hold),
            other => {
                self.holding = other;
                None
            }
        }
    }

    /// Removes expired sharers or permit holders: all of them if the holds are in a list
    /// ([`Holders::Few`]), otherwise up to `max`.
    pub(crate) fn take_expired(&mut self, now: Instant, max: usize) -> SmallVec<[Hold; 1]> {
        let Holding::Crowd(crowd) = &mut self.holding else { return SmallVec::new() };
        let taken = crowd.holders.take_expired(now, max);
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

    /// Removes all shared holds or permits.
    pub(crate) fn take_crowd(&mut self) -> Option<Holders> {
        let Holding::Crowd(crowd) = &self.holding else { return None };
        match self.replace(Holding::free(crowd.delay_until)) {
            Holding::Crowd(crowd) => Some(crowd.holders),
            _ => None,
        }
    }
}

/// A lock at one moment, without expired holds and without a lock-delay that has ended.
#[derive(Clone, Copy)]
pub struct View<'a> {
    lock: &'a Lock,
    now: Instant,
}

impl<'a> View<'a> {
    /// The holds. A small set is in grant order, a large one in deadline order.
    pub fn holds(self) -> impl Iterator<Item = &'a Hold> {
        let ((exclusive, crowd), now) = (self.lock.exclusive_or_crowd(), self.now);
        let exclusive = exclusive.into_iter().filter(move |hold| !hold.deadline().passed(now));
        exclusive.chain(crowd.into_iter().flat_map(move |crowd| crowd.holders.live(now)))
    }

    /// Number of holders.
    pub fn holders(self) -> usize {
        match self.lock.exclusive_or_crowd() {
            (_, Some(crowd)) => crowd.holders.count_live(self.now),
            _ => self.holds().count(),
        }
    }

    #[inline]
    pub fn hold_of(self, token: &[u8]) -> Option<&'a Hold> {
        self.lock.stored_of(token).filter(|hold| !hold.deadline().passed(self.now))
    }

    /// `None` if there is no holder.
    pub fn mode(self) -> Option<Mode> {
        self.longest_left().and(self.lock.mode())
    }

    /// Remaining lock-delay in ms, 0 for none. Includes the delay of an expired hold that is not removed yet.
    pub fn delay_left(self) -> u64 {
        let of_expired = match self.lock.exclusive_or_crowd() {
            (Some(hold), _) if hold.deadline().passed(self.now) => hold.delay_until(),
            (_, Some(crowd)) => crowd.holders.delay_of_expired(self.now),
            _ => None,
        };
        self.lock.delay_until().max(of_expired).map_or(0, |until| until.left(self.now))
    }

    /// Greatest fence of all holders.
    pub fn fence(self) -> Option<Fence> {
        match self.lock.exclusive_or_crowd() {
            (_, Some(crowd)) => crowd.holders.greatest_fence(self.now),
            _ => self.holds().next().map(|hold| hold.fence()),
        }
    }

    /// Age of the oldest hold, in ms.
    pub fn longest_held(self) -> Option<u64> {
        let first = match self.lock.exclusive_or_crowd() {
            (_, Some(crowd)) => crowd.holders.first_granted(self.now),
            _ => self.holds().next().map(Hold::granted),
        };
        first.map(|first| self.now.millis_since(first))
    }

    /// Remaining time of the lease that ends last, in ms.
    pub fn longest_left(self) -> Option<u64> {
        let last = match self.lock.exclusive_or_crowd() {
            (exclusive, None) => exclusive.map(|hold| hold.deadline()),
            (_, Some(crowd)) => crowd.holders.last_deadline(),
        };
        last.filter(|deadline| !deadline.passed(self.now)).map(|deadline| deadline.left(self.now))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Nearly every lock has one hold. So `Lock`, the value of a key, must not be larger than `Hold`.
    #[test]
    fn a_lock_is_as_large_as_a_hold() {
        assert_eq!((size_of::<Hold>(), size_of::<Lock>()), (64, 64));
    }

    #[test]
    fn a_lock_keeps_its_slot_when_its_holders_change() {
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
