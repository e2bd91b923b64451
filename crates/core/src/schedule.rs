//! A schedule for millions of entries: rows in deadline order, a heap for entries that fit into no row, and a
//! slab that stores them.
//!
//! Leases of one length end in the order in which they began, so a new entry nearly always belongs at the end
//! of a row. Entries leave from any place, most of them long before they are due. Both operations touch the
//! neighbours only. With a heap alone, an acquire and release cost 2 % more beside 1,600 other holds.
//!
//! An entry is moved or removed by its slot, so no stale entry is left. Memory grows and shrinks by chunks:
//! no insertion waits for a reallocation of all entries.

use dlock_protocol::Deadline;

use heap::{Heap, Node};
use slab::{END, Entry, IN_HEAP, Place, Slab};

mod chunks;
mod heap;
mod slab;

pub use slab::Slot;

/// Entries by the time at which they are due.
#[derive(Clone)]
pub struct Schedule<T> {
    entries: Slab<T>,
    /// `None` for an empty row.
    rows: [Option<Row>; ROWS],
    heap: Heap,
    /// See [`Schedule::begin_bulk`].
    is_bulk: bool,
}

/// The first and the last entry of a row, with their deadlines: every insertion compares all rows, and a
/// look-up in the entries took 16 ns more.
#[derive(Clone, Copy)]
struct Row {
    first: Node,
    last: Node,
}

/// Number of rows: one for each length of lease that is in use at a time. A single much longer lease may
/// block one for a while.
const ROWS: usize = 8;

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Schedule { entries: Slab::default(), rows: [None; ROWS], heap: Heap::default(), is_bulk: false }
    }
}

impl<T> Schedule<T> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Begins a load: many entries arrive in any order, and none is due before [`Schedule::end_bulk`]. They
    /// are kept in the heap, as an unordered list.
    pub fn begin_bulk(&mut self) {
        self.is_bulk = true;
    }

    /// Ends a load: sorts its entries and links them into one row, which takes less room and time than a
    /// heap.
    pub fn end_bulk(&mut self) {
        self.is_bulk = false;
        let mut came = std::mem::take(&mut self.heap).into_nodes();
        came.sort_unstable_by_key(|node| node.due);
        came.into_iter().for_each(|node| self.line_up(node.slot, node.due));
    }

    /// The entry that is due first. Entries of the same ms have no order.
    pub fn first(&self) -> Option<(Deadline, Slot)> {
        let rows = self.rows.iter().flatten().map(|row| row.first);
        let first = rows.chain(self.heap.first()).min_by_key(|node| node.due)?;
        Some((first.due, Slot::at(first.slot)?))
    }

    /// Adds an entry. `None` if four billion entries are in use.
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

    /// Changes the deadline of an entry. Has no effect on a slot that is not in use.
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

    /// The slots from this one on, each with its item. Of consecutive empty slots, only the first may be
    /// included.
    pub fn slots(&self, from: u32) -> impl Iterator<Item = (u32, Option<&T>)> {
        self.entries.slots(from)
    }

    /// Bytes of an entry, without the heap memory of its item. An entry in the heap takes 16 more.
    pub const ENTRY_SIZE: usize = size_of::<Entry<T>>();

    /// Puts an entry at the end of the first row that it fits behind, or else into the heap.
    fn line_up(&mut self, slot: u32, due: Deadline) {
        let last = Node { due, slot };
        let fits = |row: &Option<Row>| row.is_none_or(|row| row.last.due <= due);
        let row = if self.is_bulk { None } else { self.rows.iter().position(fits) };
        let Some(row) = row.or_else(|| self.clear_a_row()) else { return self.put_in_heap(last) };
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

    #[inline(never)]
    fn put_in_heap(&mut self, node: Node) {
        if self.is_bulk {
            self.heap.append(node, moved_in(&mut self.entries));
        } else {
            self.heap.push(node, moved_in(&mut self.entries));
        }
    }

    #[inline(never)]
    fn take_from_heap(&mut self, place: u32) {
        self.heap.remove(place, moved_in(&mut self.entries));
    }

    /// Moves an entry that is alone in its row into the heap: it is due long after others, and blocks the row
    /// for them.
    #[inline(never)]
    fn clear_a_row(&mut self) -> Option<usize> {
        if self.is_bulk {
            return None;
        }
        let alone = |row: &Option<Row>| row.is_some_and(|row| row.first.slot == row.last.slot);
        let row = self.rows.iter().position(alone)?;
        let only = self.rows[row].take()?.first;
        self.heap.push(only, moved_in(&mut self.entries));
        Some(row)
    }

    /// Removes an entry from its place and links its neighbours.
    fn leave(&mut self, slot: u32, Place { before, after }: Place) {
        if after == IN_HEAP {
            return self.take_from_heap(before);
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

/// Returns a function that stores the new places of entries that the heap moved.
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
        BeginBulk,
        EndBulk,
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
            1 => prop_oneof![Just(Op::BeginBulk), Just(Op::EndBulk)],
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
                    Op::BeginBulk => schedule.begin_bulk(),
                    Op::EndBulk => schedule.end_bulk(),
                    Op::PopFirst => if let Some((_, slot)) = schedule.first() {
                        schedule.remove(slot);
                        model.remove(&slot);
                    },
                    Op::Pass(time) => now += time,
                }
                prop_assert_eq!(schedule.len(), model.len());
                prop_assert!(schedule.in_rows() <= model.len());
                if schedule.is_bulk {
                    continue;
                }
                let least = model.values().map(|(due, _)| *due).min();
                prop_assert_eq!(schedule.first().map(|(due, _)| due.millis()), least);
                if let Some((due, slot)) = schedule.first() {
                    prop_assert_eq!(model[&slot].0, due.millis());
                    prop_assert_eq!(schedule.get(slot), Some(&model[&slot].1));
                }
            }
            schedule.end_bulk();
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
    fn the_entries_of_a_load_are_in_one_row() {
        let mut schedule = Schedule::default();
        schedule.begin_bulk();
        let slots: Vec<Slot> = (0..3000)
            .map(|n| schedule.insert(Deadline::at_millis(1 + n * 7919 % 3001), n).unwrap())
            .collect();
        assert_eq!(schedule.in_rows(), 0);
        slots.iter().step_by(3).for_each(|slot| assert!(schedule.remove(*slot).is_some()));
        schedule.end_bulk();
        assert_eq!((schedule.len(), schedule.in_rows()), (2000, 2000));
        assert_eq!(schedule.rows.iter().flatten().count(), 1);
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
