//! The holds of a shared lock or a semaphore: a list while they are few; rows of up to 64 holds in deadline
//! order, and an index by token, when they are many. No operation on a hundred thousand holds takes long,
//! and none reallocates all of them. (A hash table reallocates when it doubles. A single ordered tree cannot
//! count the expired holds without visiting each.)

use dlock_protocol::{Deadline, Fence, Instant, steps};
use smallvec::SmallVec;

use super::Hold;
use super::rows::Rows;

/// The holds of a shared lock or a semaphore. Never empty in a lock.
#[derive(Clone, Debug)]
pub(crate) enum Holders {
    /// In grant order.
    Few(Vec<Hold>),
    Many(Box<Rows>),
}

/// More holds than this are kept in rows. Below half of it they become a list again.
const FEW: usize = if cfg!(test) { 6 } else { 32 };

impl Holders {
    pub fn one(hold: Hold) -> Holders {
        Holders::Few(vec![hold])
    }

    /// Returns `None` for an empty list. No token may occur twice.
    pub fn from_vec(holds: Vec<Hold>) -> Option<Holders> {
        match holds.len() {
            0 => None,
            1..=FEW => Some(Holders::Few(holds)),
            _ => Some(Holders::Many(Rows::new(holds).into())),
        }
    }

    pub fn len(&self) -> usize {
        match self {
            Holders::Few(holds) => holds.len(),
            Holders::Many(rows) => rows.len(),
        }
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All holds, expired ones included. Tests count the visited holds ([`steps`]).
    pub fn iter(&self) -> impl Iterator<Item = &Hold> {
        let (few, many) = self.split();
        few.iter().chain(many.into_iter().flat_map(Rows::iter)).inspect(|_| steps::add_one())
    }

    /// The holds that have not expired.
    pub fn live(&self, now: Instant) -> impl Iterator<Item = &Hold> {
        let (few, many) = self.split();
        let live = few.iter().chain(many.into_iter().flat_map(move |rows| rows.live(now)));
        live.inspect(|_| steps::add_one()).filter(move |hold| !hold.deadline().passed(now))
    }

    pub fn count_live(&self, now: Instant) -> usize {
        match self {
            Holders::Few(_) => self.live(now).count(),
            Holders::Many(rows) => rows.count_live(now),
        }
    }

    /// Greatest fence of the holds that have not expired.
    pub fn greatest_fence(&self, now: Instant) -> Option<Fence> {
        match self {
            Holders::Few(_) => self.live(now).map(|hold| hold.fence()).max(),
            Holders::Many(rows) => rows.greatest_fence(now),
        }
    }

    /// Time of the earliest grant among the holds that have not expired.
    pub fn first_granted(&self, now: Instant) -> Option<Instant> {
        match self {
            Holders::Few(_) => self.live(now).map(Hold::granted).min(),
            Holders::Many(rows) => rows.first_granted(now),
        }
    }

    pub fn first_deadline(&self) -> Option<Deadline> {
        match self {
            Holders::Few(_) => self.iter().map(|hold| hold.deadline()).min(),
            Holders::Many(rows) => rows.first().map(|hold| hold.deadline()),
        }
    }

    pub fn last_deadline(&self) -> Option<Deadline> {
        match self {
            Holders::Few(_) => self.iter().map(|hold| hold.deadline()).max(),
            Holders::Many(rows) => rows.last().map(|hold| hold.deadline()),
        }
    }

    /// True if at most one hold has not expired.
    pub fn at_most_one_live(&self, now: Instant) -> bool {
        self.live(now).nth(1).is_none()
    }

    /// Latest end of the lock-delays (option DELAY of ACQUIRE) that follow the expired holds.
    pub fn delay_of_expired(&self, now: Instant) -> Option<Deadline> {
        match self {
            Holders::Few(holds) => {
                holds.iter().filter(|hold| hold.deadline().passed(now)).filter_map(Hold::delay_until).max()
            }
            Holders::Many(rows) => rows.delay_of_expired(now),
        }
    }

    pub fn get(&self, token: &[u8]) -> Option<&Hold> {
        match self {
            Holders::Few(_) => self.iter().find(|hold| *hold.token() == *token),
            Holders::Many(rows) => rows.get(token),
        }
    }

    /// Changes a hold. The token must stay.
    pub fn change<R>(&mut self, token: &[u8], change: impl FnOnce(&mut Hold) -> R) -> Option<R> {
        match self {
            Holders::Few(holds) => holds.iter_mut().find(|hold| *hold.token() == *token).map(change),
            Holders::Many(rows) => rows.change(token, change),
        }
    }

    /// Adds a hold. No stored hold may have its token.
    pub fn push(&mut self, hold: Hold) {
        match self {
            Holders::Few(holds) if holds.len() < FEW => holds.push(hold),
            Holders::Few(holds) => {
                let mut holds = std::mem::take(holds);
                holds.push(hold);
                *self = Holders::Many(Rows::new(holds).into());
            }
            Holders::Many(rows) => rows.insert(hold),
        }
    }

    pub fn remove(&mut self, token: &[u8]) -> Option<Hold> {
        let removed = match self {
            Holders::Few(holds) => {
                let at = holds.iter().position(|hold| *hold.token() == *token)?;
                Some(holds.remove(at))
            }
            Holders::Many(rows) => rows.remove(token),
        };
        self.shrink();
        removed
    }

    /// Removes expired holds: from a list all of them, from rows at most `max`, in deadline order.
    pub fn take_expired(&mut self, now: Instant, max: usize) -> SmallVec<[Hold; 1]> {
        let taken = match self {
            Holders::Few(holds) => holds.extract_if(.., |hold| hold.deadline().passed(now)).collect(),
            Holders::Many(rows) => rows.take_expired(now, max),
        };
        self.shrink();
        taken
    }

    /// Removes up to `max` holds, no matter which.
    pub fn take_some(&mut self, max: usize) -> Vec<Hold> {
        match self {
            Holders::Few(holds) => holds.split_off(holds.len().saturating_sub(max)),
            Holders::Many(rows) => rows.take_first(max),
        }
    }

    /// Frees memory after many holds have left.
    fn shrink(&mut self) {
        match self {
            Holders::Few(holds) if holds.len() < holds.capacity() / 4 => holds.shrink_to_fit(),
            Holders::Few(_) => {}
            Holders::Many(rows) if rows.len() < FEW / 2 => {
                let few = rows.take_first(FEW);
                *self = Holders::Few(few);
            }
            Holders::Many(_) => {}
        }
    }

    /// Bytes on the heap.
    pub fn heap_size(&self) -> usize {
        match self {
            Holders::Few(holds) => {
                holds.capacity() * size_of::<Hold>() + holds.iter().map(Hold::heap_size).sum::<usize>()
            }
            Holders::Many(rows) => rows.heap_size(),
        }
    }

    fn split(&self) -> (&[Hold], Option<&Rows>) {
        match self {
            Holders::Few(holds) => (holds, None),
            Holders::Many(rows) => (&[], Some(rows)),
        }
    }
}

/// Equal if they have the same holds in the same order. The division into rows does not count.
impl PartialEq for Holders {
    fn eq(&self, other: &Holders) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for Holders {}

#[cfg(test)]
mod tests {
    use std::collections::{BTreeMap, BTreeSet};

    use proptest::collection::vec;
    use proptest::prelude::*;

    use super::*;
    use crate::lock::Extras;
    use dlock_protocol::{Delay, Token, Ttl};

    /// A hold with a random fence, grant and deadline in ms, and lock-delay.
    fn any_hold() -> impl Strategy<Value = Hold> {
        (0..60u8, 1..1000u64, 0..40u64, 1..40u64, 0..3u32).prop_map(|(token, fence, granted, end, delay)| {
            let token = Token::new(&[token]).expect("the token is valid");
            let fence = Fence::from_outside(fence).expect("the fence is valid");
            let granted = Instant::from_millis(granted);
            let mut hold = Hold::new(token, fence, granted, Deadline::at_millis(end), Ttl::MAX);
            let delay = Delay::from_millis(delay.into()).expect("the delay is valid");
            hold.set_extras(Extras { delay, ..Extras::NONE });
            hold
        })
    }

    /// Checks that every query has the same result for the holders as for a list of the holds in `map`.
    fn assert_same(holders: &Holders, map: &BTreeMap<Token, Hold>) {
        let list = Holders::Few(map.values().cloned().collect());
        let all = |h: &Holders| {
            h.iter().map(|hold| (hold.token().clone(), hold.clone())).collect::<BTreeMap<_, _>>()
        };
        assert_eq!((holders.len(), &all(holders)), (list.len(), map));
        let deadlines = |h: &Holders| (h.first_deadline(), h.last_deadline());
        assert_eq!(deadlines(holders), deadlines(&list));
        for token in 0..60 {
            assert_eq!(holders.get(&[token]), list.get(&[token]));
        }
        for now in (0..42).map(Instant::from_millis) {
            let live = |h: &Holders| h.live(now).map(|hold| hold.token().clone()).collect::<BTreeSet<_>>();
            assert_eq!(live(holders), live(&list), "at {now:?}");
            let figures = |h: &Holders| {
                (h.count_live(now), h.greatest_fence(now), h.first_granted(now), h.delay_of_expired(now))
            };
            assert_eq!(figures(holders), figures(&list), "at {now:?}");
        }
    }

    /// Changes holders and a map in the same way. The number of holds rises and falls past [`FEW`]. A round
    /// is a list of changes, the time at which the expired holds are taken, and the `max` of `take_expired`
    /// and `take_some`. A change with an even fence removes the hold of its token, if there is one.
    fn play(rounds: Vec<(Vec<Hold>, u64, usize)>) {
        let (mut holders, mut map) = (Holders::Few(Vec::new()), BTreeMap::new());
        for (changes, now, max) in rounds {
            for hold in changes {
                let (token, old) = (hold.token().clone(), map.remove(hold.token()));
                if old.is_some() && hold.fence().get() % 2 == 0 {
                    assert_eq!(holders.remove(token.as_bytes()), old);
                } else {
                    let changed = holders.change(token.as_bytes(), |old| *old = hold.clone());
                    assert_eq!(changed.is_some(), old.is_some());
                    if old.is_none() {
                        holders.push(hold.clone());
                    }
                    map.insert(token, hold);
                }
                assert_same(&holders, &map);
            }
            let now = Instant::from_millis(now);
            let expired = map.values().filter(|hold| hold.deadline().passed(now)).count();
            let taken = holders.take_expired(now, max);
            assert!((expired.min(max)..=expired).contains(&taken.len()));
            for hold in taken {
                assert!(hold.deadline().passed(now) && map.remove(hold.token()) == Some(hold));
            }
            assert_same(&holders, &map);
            let some = holders.take_some(max);
            assert_eq!(some.len(), map.len().min(max));
            assert!(some.into_iter().all(|hold| map.remove(hold.token()) == Some(hold)));
            assert_same(&holders, &map);
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn few_and_many_holders_behave_like_a_map(rounds in vec((vec(any_hold(), 1..60), 1..40u64, 1..9usize), 1..4)) {
            play(rounds);
        }
    }
}
