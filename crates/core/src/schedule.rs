//! What is due next, among millions: rows in order of time, and a heap for what fits into none of them, over
//! a slab.
//!
//! Leases of one length end in the order in which they begin, so a new entry nearly always belongs at the end
//! of a row; and it may leave from wherever it stands, as most do long before they are due. Both touch
//! nothing but the neighbours, however many there are. With a heap alone an acquire and release cost 2 % more
//! beside 1,600 other holds.
//!
//! An entry can be moved or taken out by its slot, so nothing stale is ever left in it. Memory grows and
//! shrinks by whole chunks and is never copied over as a whole: no insertion stalls on a reallocation,
//! however many there are.

use dlock_protocol::Deadline;

use heap::Heap;
use slab::{Entry, Place, Slab};

mod chunks;
mod heap;
mod slab;

pub use slab::Slot;

/// Entries by when they are due.
#[derive(Clone)]
pub struct Schedule<T> {
    entries: Slab<T>,
    /// None where a row is empty.
    rows: [Option<Row>; ROWS],
    heap: Heap,
}

const END: u32 = u32::MAX;
const IN_HEAP: u32 = END - 1;

/// The two ends of a list in which nothing is due before what stands before it. With when they are due, for
/// every row is asked each time: looking it up in their entries took 16 ns more where leases are of any
/// length.
#[derive(Clone, Copy)]
struct Row {
    first: Node,
    last: Node,
}

/// An entry by its slot, with when it is due.
#[derive(Clone, Copy)]
struct Node {
    due: Deadline,
    slot: u32,
}

/// One for each length of lease that is in use at a time. A single lease that is much longer may close one
/// for a while.
const ROWS: usize = 8;

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Schedule { entries: Slab::default(), rows: [None; ROWS], heap: Heap::default() }
    }
}

impl<T> Schedule<T> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is due first. Entries due at the same moment come in no particular order.
    pub fn first(&self) -> Option<(Deadline, Slot)> {
        let rows = self.rows.iter().flatten().map(|row| row.first);
        let first = rows.chain(self.heap.first()).min_by_key(|node| node.due)?;
        Some((first.due, Slot::at(first.slot)?))
    }

    /// None once four billion entries are in use.
    pub fn insert(&mut self, due: Deadline, item: T) -> Option<Slot> {
        let slot = self.entries.insert(due, item)?;
        self.line_up(slot, due);
        Slot::at(slot)
    }

    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.entries.get(slot.index())?.item.as_ref()
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.entries.get_mut(slot.index())?.item.as_mut()
    }

    /// Makes the entry due at another moment. Nothing happens where the slot is not in use.
    pub fn reschedule(&mut self, slot: Slot, due: Deadline) {
        let used = |entry: &&mut Entry<T>| entry.item.is_some() && entry.due != due;
        let Some(entry) = self.entries.get_mut(slot.index()).filter(used) else { return };
        entry.due = due;
        let place = entry.place;
        self.leave(slot.index(), place);
        self.line_up(slot.index(), due);
    }

    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get(slot.index()).filter(|entry| entry.item.is_some())?;
        self.leave(slot.index(), entry.place);
        self.entries.remove(slot.index())
    }

    /// The slots from this one on, each with what is in it; of empty ones in a row perhaps only the first.
    pub fn slots(&self, from: u32) -> impl Iterator<Item = (u32, Option<&T>)> {
        self.entries.slots(from)
    }

    /// Bytes an entry takes here, without what its item has on the heap. Those that fit into no row take 16
    /// more.
    pub const ENTRY_SIZE: usize = size_of::<Entry<T>>();

    /// Puts an entry that stands nowhere at the end of the first row that it fits behind, or else into the
    /// heap.
    fn line_up(&mut self, slot: u32, due: Deadline) {
        let last = Node { due, slot };
        let fits = |row: &Option<Row>| row.is_none_or(|row| row.last.due <= due);
        let Some(row) = self.rows.iter().position(fits).or_else(|| self.clear_a_row()) else {
            return self.heap.push(last, moved_in(&mut self.entries));
        };
        let before = match &mut self.rows[row] {
            Some(row) => std::mem::replace(&mut row.last, last).slot,
            empty => {
                *empty = Some(Row { first: last, last });
                END
            }
        };
        if let Some(entry) = self.entries.get_mut(before) {
            entry.place.after = slot;
        }
        if let Some(entry) = self.entries.get_mut(slot) {
            entry.place = Place { before, after: END };
        }
    }

    /// Moves an entry that has a row for itself into the heap: it is due long after others, and closes the
    /// row to them.
    fn clear_a_row(&mut self) -> Option<usize> {
        let alone = |row: &Option<Row>| row.is_some_and(|row| row.first.slot == row.last.slot);
        let row = self.rows.iter().position(alone)?;
        let only = self.rows[row].take()?.first;
        self.heap.push(only, moved_in(&mut self.entries));
        Some(row)
    }

    /// Takes an entry away from where it stands; its neighbours close up.
    fn leave(&mut self, slot: u32, Place { before, after }: Place) {
        if after == IN_HEAP {
            return self.heap.remove(before, moved_in(&mut self.entries));
        }
        let ahead = self.entries.get_mut(before).map(|entry| {
            entry.place.after = after;
            Node { due: entry.due, slot: before }
        });
        let behind = self.entries.get_mut(after).map(|entry| {
            entry.place.before = before;
            Node { due: entry.due, slot: after }
        });
        if ahead.is_some() && behind.is_some() {
            return;
        }
        let at_an_end = |row: &Row| row.first.slot == slot || row.last.slot == slot;
        if let Some(row) = self.rows.iter_mut().find(|row| row.as_ref().is_some_and(at_an_end)) {
            *row = match (*row, ahead, behind) {
                (Some(row), None, Some(first)) => Some(Row { first, ..row }),
                (Some(row), Some(last), None) => Some(Row { last, ..row }),
                _ => None,
            };
        }
    }
}

/// Tells entries where in the heap they are now.
fn moved_in<T>(entries: &mut Slab<T>) -> impl FnMut(u32, u32) {
    |slot, place| {
        if let Some(entry) = entries.get_mut(slot) {
            entry.place = Place { before: place, after: IN_HEAP };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::{BTreeMap, BTreeSet};

    #[derive(Clone, Debug)]
    enum Op {
        /// Due so long after the time that has passed.
        Insert(u64),
        Remove(usize),
        Move(usize, u64),
        PopFirst,
        Pass(u64),
    }

    /// As leases are: of a few lengths; and of any.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![3 => prop::sample::select(vec![10u64, 30, 300]), 1 => 1..500u64]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => length().prop_map(Op::Insert),
            2 => any::<usize>().prop_map(Op::Remove),
            2 => (any::<usize>(), length()).prop_map(|(i, length)| Op::Move(i, length)),
            2 => Just(Op::PopFirst),
            2 => (1..5u64).prop_map(Op::Pass),
        ]
    }

    impl<T> Schedule<T> {
        /// How many stand in rows, which are in order and linked to and fro.
        fn in_rows(&self) -> usize {
            let mut count = 0;
            for row in self.rows.iter().flatten() {
                let (mut before, mut at, mut due) = (END, row.first.slot, row.first.due);
                while let Some(used) = self.entries.get(at) {
                    assert!(used.due >= due, "a row is out of order");
                    assert_eq!(used.place.before, before, "a row is not linked back");
                    (before, at, due) = (at, used.place.after, used.due);
                    count += 1;
                }
                assert_eq!((at, before, due), (END, row.last.slot, row.last.due), "a row has no end");
            }
            count
        }
    }

    /// Enough for several chunks; Miri, a hundred times slower, sees a part of one.
    const MOST: usize = if cfg!(miri) { 100 } else { 3000 };

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn it_is_a_sorted_map(ops in prop::collection::vec(op(), 1..MOST)) {
            let mut schedule = Schedule::default();
            let mut model: BTreeMap<Slot, (u64, usize)> = BTreeMap::new();
            let nth = |model: &BTreeMap<Slot, (u64, usize)>, i: usize| {
                model.keys().nth(i % model.len().max(1)).copied()
            };
            let mut now = 1;
            for (item, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Insert(length) => {
                        let due = now + length;
                        let slot = schedule.insert(Deadline::at_millis(due), item).unwrap();
                        prop_assert!(model.insert(slot, (due, item)).is_none(), "slot given twice");
                    }
                    Op::Remove(i) => if let Some(slot) = nth(&model, i) {
                        prop_assert_eq!(schedule.remove(slot), model.remove(&slot).map(|(_, item)| item));
                        prop_assert_eq!(schedule.remove(slot), None);
                    },
                    Op::Move(i, length) => if let Some(slot) = nth(&model, i) {
                        schedule.reschedule(slot, Deadline::at_millis(now + length));
                        model.get_mut(&slot).unwrap().0 = now + length;
                    },
                    Op::PopFirst => if let Some((_, slot)) = schedule.first() {
                        schedule.remove(slot);
                        model.remove(&slot);
                    },
                    Op::Pass(time) => now += time,
                }
                prop_assert_eq!(schedule.len(), model.len());
                let least = model.values().map(|(due, _)| *due).min();
                prop_assert_eq!(schedule.first().map(|(due, _)| due.millis()), least);
                if let Some((due, slot)) = schedule.first() {
                    prop_assert_eq!(model[&slot].0, due.millis());
                    prop_assert_eq!(schedule.get(slot), Some(&model[&slot].1));
                }
                prop_assert!(schedule.in_rows() <= model.len());
            }
            let used = schedule.slots(0).filter_map(|(slot, item)| Some((Slot::at(slot)?, *item?)));
            prop_assert!(used.eq(model.iter().map(|(slot, (_, item))| (*slot, *item))), "slots are missing");
            while let Some((_, slot)) = schedule.first() {
                prop_assert!(schedule.remove(slot).is_some_and(|item| Some(item) == model.remove(&slot).map(|(_, item)| item)));
            }
            prop_assert!(model.is_empty(), "not all come out");
        }
    }

    #[test]
    fn leases_of_a_few_lengths_stand_in_rows_and_what_fits_into_none_in_the_heap() {
        let mut schedule = Schedule::default();
        for now in 0..1000 {
            for length in [30_000, 10_000, 300_000] {
                schedule.insert(Deadline::at_millis(now + length), ()).unwrap();
            }
        }
        assert_eq!(schedule.in_rows(), 3000);
        // Each longer than the next one: each closes a row, until it has to leave it for the next.
        for length in (0..1000).rev() {
            schedule.insert(Deadline::at_millis(400_000 + length), ()).unwrap();
        }
        assert_eq!(schedule.len() - schedule.in_rows(), 1000 - ROWS);
        for now in 1000..2000 {
            for length in [30_000, 10_000] {
                schedule.insert(Deadline::at_millis(now + length), ()).unwrap();
            }
        }
        assert!(schedule.len() - schedule.in_rows() <= 1000, "leases of one length are in the heap");
        let mut last = Deadline::at_millis(0);
        while let Some((due, slot)) = schedule.first() {
            assert!(due >= last);
            last = due;
            assert!(schedule.remove(slot).is_some(), "the first is not in use");
        }
    }

    #[test]
    fn memory_comes_back_with_what_is_taken_out_whatever_stays() {
        let mut schedule = Schedule::default();
        let fill = |schedule: &mut Schedule<u64>, many: u64| -> BTreeSet<Slot> {
            (0..many).map(|at| schedule.insert(Deadline::at_millis(1 + at), at).unwrap()).collect()
        };
        let mut slots = fill(&mut schedule, 50_000);
        let stays = *slots.iter().nth(20_000).unwrap();
        for round in 0..3 {
            for slot in slots.iter().rev().filter(|slot| **slot != stays) {
                assert!(schedule.remove(*slot).is_some());
            }
            assert_eq!((schedule.len(), schedule.get(stays)), (1, Some(&20_000)), "{round}");
            assert!(schedule.entries.allocated() <= 2 * chunks::CHUNK, "{}", schedule.entries.allocated());
            slots = fill(&mut schedule, 5_000);
            assert_eq!((slots.len(), slots.contains(&stays)), (5_000, false), "a slot is given twice");
            assert!(schedule.entries.allocated() <= 7 * chunks::CHUNK, "{}", schedule.entries.allocated());
        }
        // Gaps are filled before more is allocated.
        let before = schedule.entries.allocated();
        slots.iter().step_by(2).for_each(|slot| assert!(schedule.remove(*slot).is_some()));
        fill(&mut schedule, 2_500);
        assert_eq!(schedule.entries.allocated(), before);
    }
}
