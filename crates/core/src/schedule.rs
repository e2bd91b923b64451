//! What is due next, among millions: rows in order of time, and a heap for what fits into none of them, over a slab.
//!
//! Leases of one length end in the order in which they begin, so a new entry nearly always belongs at the end of a row;
//! and it may leave from wherever it stands, as most do long before they are due. Both touch nothing but the neighbours,
//! however many there are. With a heap alone an acquire and release cost 2 % more beside 1,600 other holds.
//!
//! An entry can be moved or taken out by its slot, so nothing stale is ever left in it. Memory grows and shrinks by
//! whole chunks and is never copied over as a whole: no insertion stalls on a reallocation, however many there are.

use crate::units::Deadline;
use chunks::{CHUNK, Chunks};
use heap::{Heap, Node};

mod chunks;
mod heap;

/// Where an entry lives, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Stands for "not scheduled" in places where four bytes matter.
    pub const NONE: Slot = Slot(END);
}

/// Entries by when they are due.
#[derive(Clone)]
pub struct Schedule<T> {
    entries: Chunks<Entry<T>>,
    len: usize,
    /// The first of the free slots, which form a list.
    free: u32,
    rows: [Row; ROWS],
    heap: Heap,
}

#[derive(Clone)]
enum Entry<T> {
    Used(Used<T>),
    /// With the next free slot.
    Free(u32),
}

#[derive(Clone)]
struct Used<T> {
    due: Deadline,
    place: Place,
    item: T,
}

/// Where an entry stands. Two numbers and no enum, which would take 8 bytes more for each hold.
#[derive(Clone, Copy)]
struct Place {
    /// The slot before it in its row, [`END`] for the first; in the heap: its place there.
    before: u32,
    /// The slot behind it in its row, [`END`] for the last; in the heap: [`IN_HEAP`].
    after: u32,
}

const END: u32 = u32::MAX;
const IN_HEAP: u32 = END - 1;

/// The slots at the two ends of a list in which nothing is due before what stands before it; [`END`] where it is empty.
#[derive(Clone, Copy)]
struct Row {
    first: u32,
    last: u32,
}

/// One for each length of lease that is in use at a time, and some for single ones that are much longer: behind such a
/// one a row takes no others until it is over.
const ROWS: usize = 8;

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        let rows = [Row { first: END, last: END }; ROWS];
        Schedule { entries: Chunks::default(), len: 0, free: END, rows, heap: Heap::default() }
    }
}

impl<T> Schedule<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// What is due first. Entries due at the same moment come in no particular order.
    pub fn first(&self) -> Option<(Deadline, Slot)> {
        let of_row = |row: &Row| Some((self.used(row.first)?.due, Slot(row.first)));
        let of_heap = self.heap.first().map(|node| (node.due, Slot(node.slot)));
        self.rows.iter().filter_map(of_row).chain(of_heap).min()
    }

    /// None once four billion entries are in use.
    pub fn insert(&mut self, due: Deadline, item: T) -> Option<Slot> {
        let place = Place { before: END, after: END };
        let entry = Entry::Used(Used { due, place, item });
        let slot = if self.free == END {
            let slot = u32::try_from(self.entries.len()).ok().filter(|slot| *slot < IN_HEAP)?;
            self.entries.push(entry);
            slot
        } else {
            let slot = self.free;
            if let Entry::Free(next) = std::mem::replace(self.entries.get_mut(slot as usize), entry) {
                self.free = next;
            }
            slot
        };
        self.len += 1;
        self.line_up(slot, due);
        Some(Slot(slot))
    }

    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.used(slot.0).map(|used| &used.item)
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.used_mut(slot.0).map(|used| &mut used.item)
    }

    /// Makes the entry due at another moment. Nothing happens where the slot is not in use.
    pub fn reschedule(&mut self, slot: Slot, due: Deadline) {
        let Some(used) = self.used_mut(slot.0).filter(|used| used.due != due) else { return };
        used.due = due;
        let place = used.place;
        self.leave(slot.0, place);
        self.line_up(slot.0, due);
    }

    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let place = self.used(slot.0)?.place;
        self.leave(slot.0, place);
        let entry = std::mem::replace(self.entries.get_mut(slot.0 as usize), Entry::Free(self.free));
        self.free = slot.0;
        self.len -= 1;
        if self.is_empty() && self.entries.len() > CHUNK {
            // Give the memory of a flood back once it is over.
            (self.entries, self.free) = (Chunks::default(), END);
        }
        match entry {
            Entry::Used(used) => Some(used.item),
            Entry::Free(_) => None,
        }
    }

    /// Every entry, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        (0..self.entries.len()).filter_map(|at| match self.entries.get(at) {
            Entry::Used(used) => Some((Slot(at as u32), &used.item)),
            Entry::Free(_) => None,
        })
    }

    /// Bytes an entry takes here, without what its item has on the heap. Those that fit into no row take 16 more.
    pub const ENTRY_SIZE: usize = size_of::<Entry<T>>();

    fn used(&self, slot: u32) -> Option<&Used<T>> {
        match self.entries.checked(slot as usize)? {
            Entry::Used(used) => Some(used),
            Entry::Free(_) => None,
        }
    }

    fn used_mut(&mut self, slot: u32) -> Option<&mut Used<T>> {
        match self.entries.checked_mut(slot as usize)? {
            Entry::Used(used) => Some(used),
            Entry::Free(_) => None,
        }
    }

    /// Puts an entry that stands nowhere at the end of the first row that it fits behind, or else into the heap.
    fn line_up(&mut self, slot: u32, due: Deadline) {
        let fits = |row: &Row| self.used(row.last).is_none_or(|last| last.due <= due);
        let Some(row) = self.rows.iter().position(fits) else {
            let node = Node { due, slot };
            return self.heap.push(node, moved_in(&mut self.entries));
        };
        let before = std::mem::replace(&mut self.rows[row].last, slot);
        match self.used_mut(before) {
            Some(last) => last.place.after = slot,
            None => self.rows[row].first = slot,
        }
        if let Some(used) = self.used_mut(slot) {
            used.place = Place { before, after: END };
        }
    }

    /// Takes an entry away from where it stands; its neighbours close up.
    fn leave(&mut self, slot: u32, Place { before, after }: Place) {
        if after == IN_HEAP {
            return self.heap.remove(before, moved_in(&mut self.entries));
        }
        match self.used_mut(before) {
            Some(used) => used.place.after = after,
            None => self.rows.iter_mut().filter(|row| row.first == slot).for_each(|row| row.first = after),
        }
        match self.used_mut(after) {
            Some(used) => used.place.before = before,
            None => self.rows.iter_mut().filter(|row| row.last == slot).for_each(|row| row.last = before),
        }
    }
}

/// Tells entries where in the heap they are now.
fn moved_in<T>(entries: &mut Chunks<Entry<T>>) -> impl FnMut(u32, u32) {
    |slot, place| {
        if let Entry::Used(used) = entries.get_mut(slot as usize) {
            used.place = Place { before: place, after: IN_HEAP };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

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
            for row in &self.rows {
                let (mut before, mut at, mut due) = (END, row.first, Deadline::at_millis(0));
                while let Some(used) = self.used(at) {
                    assert!(used.due >= due, "a row is out of order");
                    assert_eq!(used.place.before, before, "a row is not linked back");
                    (before, at, due) = (at, used.place.after, used.due);
                    count += 1;
                }
                assert_eq!((at, before), (END, row.last), "a row has no end");
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
            prop_assert_eq!(schedule.iter().count(), model.len());
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
        // Each longer than the next one: each spoils a row for those that are shorter.
        for length in (0..2 * ROWS as u64).rev() {
            schedule.insert(Deadline::at_millis(400_000 + length), ()).unwrap();
        }
        let in_heap = schedule.len() - schedule.in_rows();
        assert_eq!(in_heap, ROWS);
        let mut last = Deadline::at_millis(0);
        while let Some((due, slot)) = schedule.first() {
            assert!(due >= last);
            last = due;
            schedule.remove(slot);
        }
    }
}
