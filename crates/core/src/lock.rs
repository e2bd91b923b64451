//! One resource: who holds it, until when, and what may be added to that. State and reading only; [`crate::decide`]
//! changes it.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::units::{ClientId, Deadline, Fence, Instant, Ttl};

mod hold;

pub(crate) use hold::{Doubt, Extras};
pub use hold::{Ephemeral, Hold};

/// How a token holds, or wants to hold, a resource.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    /// Alone.
    Exclusive,
    /// Beside any number of other sharers.
    Shared,
    /// Beside at most n - 1 others: a semaphore.
    Permits(NonZeroU32),
}

/// What an ACQUIRE asks of the count of a hold that its token has already.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Count {
    /// The count stays, so that a retry after a lost reply is harmless.
    Keep,
    /// REENTRANT: one more.
    OneMore,
    /// DEPTH n: n where it was less.
    AtLeast(NonZeroU32),
}

/// The greatest count and the greatest number of permits.
pub const MAX_COUNT: u32 = i32::MAX as u32;

/// What an ACQUIRE asks for, apart from its patience.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request<'a> {
    /// 1 to 255 bytes ([`Token::fits`]); anything else is refused before it comes here.
    pub token: &'a [u8],
    pub ttl: Ttl,
    pub mode: Mode,
    pub count: Count,
    /// EPHEMERAL: the connection with which the hold ends.
    pub bound_to: Option<ClientId>,
    /// DELAY: ms for which nobody is granted the lock after this hold ended without a release; 0 for none.
    pub delay: u32,
    /// Free text for people, at most 255 bytes; empty for none.
    pub label: &'a [u8],
}

impl Request<'_> {
    /// Whether it asks for what few holds have.
    pub(crate) fn has_extras(&self) -> bool {
        self.bound_to.is_some() || self.delay > 0 || !self.label.is_empty()
    }
}

/// Holders side by side: never empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Holders(Vec<Hold>);

impl Holders {
    pub(crate) fn one(hold: Hold) -> Holders {
        Holders(vec![hold])
    }

    /// None for an empty list.
    pub(crate) fn from_vec(holds: Vec<Hold>) -> Option<Holders> {
        (!holds.is_empty()).then_some(Holders(holds))
    }

    pub(crate) fn push(&mut self, hold: Hold) {
        self.0.push(hold);
    }

    /// What a sole sharer becomes by upgrade; others stay as they are.
    pub(crate) fn into_exclusive(self) -> Holding {
        match <[Hold; 1]>::try_from(self.0) {
            Ok([hold]) => Holding::Exclusive(hold),
            Err(holds) => Holding::Shared(Holders(holds)),
        }
    }
}

impl std::ops::Deref for Holders {
    type Target = [Hold];

    fn deref(&self) -> &[Hold] {
        &self.0
    }
}

impl std::ops::DerefMut for Holders {
    fn deref_mut(&mut self) -> &mut [Hold] {
        &mut self.0
    }
}

/// Who holds. There is no held lock without a holder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Holding {
    #[default]
    Free,
    Exclusive(Hold),
    Shared(Holders),
    Permits(NonZeroU32, Holders),
}

/// One resource. What it says of holds is true only at a moment: see [`Lock::at`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lock {
    pub(crate) holding: Holding,
    /// Lock-delay: nobody is granted the lock before.
    pub(crate) delay_until: Option<Deadline>,
}

/// Whether a token that holds nothing here could be granted a hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fit {
    Fits,
    NotNow,
    /// It is a semaphore of another size while it is held.
    OtherPermits(NonZeroU32),
}

impl Lock {
    /// The lock as it is at `now`: the only way to read its holders, so that nobody ever sees an expired hold.
    pub fn at(&self, now: Instant) -> View<'_> {
        View { lock: self, now }
    }

    /// Nobody holds it and no lock-delay runs, as far as is stored: the key can go.
    pub fn is_gone(&self) -> bool {
        matches!(self.holding, Holding::Free) && self.delay_until.is_none()
    }

    /// When the lock-delay ends, as far as is stored.
    pub fn delay_until(&self) -> Option<Deadline> {
        self.delay_until
    }

    /// When it must be looked at again, if ever: the first lease or lock-delay to end.
    pub fn next_due(&self) -> Option<Deadline> {
        let first_lease = self.stored().iter().map(|hold| hold.deadline).min();
        match (first_lease, self.delay_until) {
            (Some(lease), Some(delay)) => Some(lease.min(delay)),
            (lease, delay) => lease.or(delay),
        }
    }

    /// Every hold that is stored, expired or not: for the codec, for memory, for counting.
    pub fn stored(&self) -> &[Hold] {
        match &self.holding {
            Holding::Free => &[],
            Holding::Exclusive(hold) => std::slice::from_ref(hold),
            Holding::Shared(holders) | Holding::Permits(_, holders) => holders,
        }
    }

    pub(crate) fn take_holds(&mut self) -> Vec<Hold> {
        match std::mem::take(&mut self.holding) {
            Holding::Free => Vec::new(),
            Holding::Exclusive(hold) => vec![hold],
            Holding::Shared(holders) | Holding::Permits(_, holders) => holders.0,
        }
    }

    pub(crate) fn stored_mut(&mut self) -> &mut [Hold] {
        match &mut self.holding {
            Holding::Free => &mut [],
            Holding::Exclusive(hold) => std::slice::from_mut(hold),
            Holding::Shared(holders) | Holding::Permits(_, holders) => holders,
        }
    }

    /// Bytes this lock occupies, itself included.
    pub fn size(&self) -> usize {
        let vec = match &self.holding {
            Holding::Free | Holding::Exclusive(_) => 0,
            Holding::Shared(holders) | Holding::Permits(_, holders) => {
                holders.0.capacity() * size_of::<Hold>()
            }
        };
        size_of::<Lock>() + vec + self.stored().iter().map(Hold::heap_size).sum::<usize>()
    }

    /// As it is stored, of holds that may have expired.
    pub fn mode(&self) -> Option<Mode> {
        match self.holding {
            Holding::Free => None,
            Holding::Exclusive(_) => Some(Mode::Exclusive),
            Holding::Shared(_) => Some(Mode::Shared),
            Holding::Permits(n, _) => Some(Mode::Permits(n)),
        }
    }

    pub(crate) fn find(&mut self, token: &[u8]) -> Option<&mut Hold> {
        self.stored_mut().iter_mut().find(|hold| hold.token == *token)
    }

    /// The hold of the token no longer ends with a connection.
    pub fn orphan(&mut self, token: &[u8]) {
        if let Some(extras) = self.find(token).and_then(|hold| hold.extras.as_mut())
            && let Ephemeral::Bound(_) = extras.ephemeral
        {
            extras.ephemeral = Ephemeral::Orphan;
        }
    }

    /// For a token that holds nothing here, with everything expired already swept away.
    pub(crate) fn fit(&self, mode: Mode) -> Fit {
        if let (Holding::Permits(n, _), Mode::Permits(asked)) = (&self.holding, mode)
            && *n != asked
        {
            return Fit::OtherPermits(*n);
        }
        let fits = self.delay_until.is_none()
            && match (&self.holding, mode) {
                (Holding::Free, _) | (Holding::Shared(_), Mode::Shared) => true,
                (Holding::Permits(n, holders), Mode::Permits(_)) => holders.len() < n.get() as usize,
                _ => false,
            };
        if fits { Fit::Fits } else { Fit::NotNow }
    }

    /// Whether the sharer that holds it can be the exclusive holder: it is alone, and so it is with what a dead sharer
    /// still had in flight.
    pub(crate) fn can_upgrade(&self) -> bool {
        self.stored().len() == 1 && self.delay_until.is_none()
    }

    /// Adds a hold that fits.
    pub(crate) fn add(&mut self, hold: Hold, mode: Mode) {
        match (&mut self.holding, mode) {
            (Holding::Shared(holders), Mode::Shared) | (Holding::Permits(_, holders), Mode::Permits(_)) => {
                holders.push(hold)
            }
            (holding, Mode::Exclusive) => *holding = Holding::Exclusive(hold),
            (holding, Mode::Shared) => *holding = Holding::Shared(Holders::one(hold)),
            (holding, Mode::Permits(n)) => *holding = Holding::Permits(n, Holders::one(hold)),
        }
    }

    /// Takes away every hold of which `gone` says so.
    pub(crate) fn remove(&mut self, mut gone: impl FnMut(&Hold) -> bool) -> SmallVec<[Hold; 1]> {
        let mut removed = SmallVec::new();
        let mut sift = |mut holders: Holders| {
            removed.extend(holders.0.extract_if(.., |hold| gone(hold)));
            // A crowd that has left gives its memory back.
            if holders.0.len() < holders.0.capacity() / 4 {
                holders.0.shrink_to_fit();
            }
            Holders::from_vec(holders.0)
        };
        self.holding = match std::mem::take(&mut self.holding) {
            Holding::Free => Holding::Free,
            Holding::Shared(holders) => sift(holders).map_or(Holding::Free, Holding::Shared),
            Holding::Permits(n, holders) => sift(holders).map_or(Holding::Free, |h| Holding::Permits(n, h)),
            Holding::Exclusive(hold) if gone(&hold) => {
                removed.push(hold);
                Holding::Free
            }
            kept @ Holding::Exclusive(_) => kept,
        };
        removed
    }
}

/// A lock at a moment: expired holds and a lock-delay that is over are not seen.
#[derive(Clone, Copy)]
pub struct View<'a> {
    lock: &'a Lock,
    now: Instant,
}

impl<'a> View<'a> {
    pub fn holds(self) -> impl Iterator<Item = &'a Hold> {
        self.lock.stored().iter().filter(move |hold| !hold.deadline.passed(self.now))
    }

    pub fn hold_of(self, token: &[u8]) -> Option<&'a Hold> {
        self.holds().find(|hold| hold.token == *token)
    }

    /// None where nobody holds it.
    pub fn mode(self) -> Option<Mode> {
        self.holds().next().and(self.lock.mode())
    }

    /// Milliseconds of lock-delay left; 0 for none.
    pub fn delay_left(self) -> u64 {
        self.lock.delay_until.map_or(0, |until| until.left(self.now))
    }

    /// The greatest fence among the holders.
    pub fn fence(self) -> Option<Fence> {
        self.holds().map(|hold| hold.fence).max()
    }

    /// Milliseconds left of the longest lease.
    pub fn longest_left(self) -> Option<u64> {
        self.holds().map(|hold| hold.deadline.left(self.now)).max()
    }
}
