//! A schedule for millions of entries: rows in deadline order, and a slab that stores the entries.
//!
//! Leases of one length end in the order in which they began. So they fit into one row, and a new entry is
//! nearly always appended to a row. Entries leave from any place, most of them long before they are due. A
//! row is a linked list, so an insertion and a removal touch only the neighbours. A `BTreeSet` holds the
//! entries that fit into no row. (With all entries in a `BTreeSet`, an acquire and release cost 4 % more
//! beside 1,600 other holds.)
//!
//! The slab grows and shrinks by chunks, so that no insertion waits for a reallocation of all entries.

use std::collections::BTreeSet;
use std::mem;
use std::num::NonZeroU32;

use dlock_protocol::Deadline;

/// Entries by the time at which they are due.
#[derive(Clone)]
pub struct Schedule<T> {
    entries: Slab<T>,
    /// `None` for an empty row.
    rows: [Option<Row>; ROWS],
    /// The entries in no row.
    others: BTreeSet<Node>,
}

/// The slot of an entry, until it is removed. Stored as index + 1, so that `Option<Slot>` has the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(NonZeroU32);

/// The slot of an entry, with the deadline that determines the order.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Node {
    due: Deadline,
    slot: u32,
}

/// The first and the last entry of a row. Their deadlines are stored here, too, because an insertion compares
/// its deadline with those of the rows. Looking them up in the entries took 16 ns more.
#[derive(Clone, Copy)]
struct Row {
    first: Node,
    last: Node,
}

/// Number of rows. Leases of one length fill one row, so this many lengths can be in use at a time. A much
/// longer lease at the end of a row blocks the row for shorter leases.
const ROWS: usize = 8;

/// The neighbours of an entry in its row. Two numbers: an enum would take 8 bytes more for each entry.
#[derive(Clone, Copy)]
struct Place {
    /// The slot before it. [`END`] for the first one.
    before: u32,
    /// The slot after it. [`END`] for the last one, [`NO_ROW`] for an entry in no row.
    after: u32,
}

/// No slot.
const END: u32 = u32::MAX;
const NO_ROW: u32 = END - 1;

impl Slot {
    /// `None` for [`END`], which is no index.
    fn at(index: u32) -> Option<Slot> {
        NonZeroU32::new(index.wrapping_add(1)).map(Slot)
    }

    fn index(self) -> u32 {
        self.0.get() - 1
    }
}

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Schedule { entries: Slab::default(), rows: [None; ROWS], others: BTreeSet::new() }
    }
}

impl<T> Schedule<T> {
    pub fn len(&self) -> usize {
        self.entries.len
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The entry that is due first. Entries of the same ms have no order.
    pub fn first(&self) -> Option<(Deadline, Slot)> {
        let rows = self.rows.iter().flatten().map(|row| row.first);
        let first = rows.chain(self.others.first().copied()).min_by_key(|node| node.due)?;
        Some((first.due, Slot::at(first.slot)?))
    }

    /// Adds an entry. `None` if four billion entries are in use.
    pub fn insert(&mut self, due: Deadline, item: T) -> Option<Slot> {
        let slot = self.entries.insert(due, item)?;
        self.append_to_row(slot, due);
        Slot::at(slot)
    }

    pub fn get(&self, slot: Slot) -> Option<&T> {
        self.entries.get(slot.index())?.item.as_ref()
    }

    /// Changes the deadline of an entry. Has no effect on a slot that is not in use.
    pub fn reschedule(&mut self, slot: Slot, due: Deadline) {
        let must_move = |entry: &&Entry<T>| entry.item.is_some() && entry.due != due;
        let Some(&Entry { due: old, place, .. }) = self.entries.get(slot.index()).filter(must_move) else {
            return;
        };
        self.unlink(Node { due: old, slot: slot.index() }, place);
        if let Some(entry) = self.entries.get_mut(slot.index()) {
            entry.due = due;
        }
        self.append_to_row(slot.index(), due);
    }

    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let entry = self.entries.get(slot.index()).filter(|entry| entry.item.is_some())?;
        self.unlink(Node { due: entry.due, slot: slot.index() }, entry.place);
        self.entries.remove(slot.index())
    }

    /// The slots from `from` on, each with its item. A run of empty slots may be shortened to its first
    /// slot.
    pub fn slots(&self, from: u32) -> impl Iterator<Item = (u32, Option<&T>)> {
        self.entries.slots(from)
    }

    /// Bytes of an entry, without the heap memory of its item. An entry in no row takes about 25 more.
    pub const ENTRY_SIZE: usize = size_of::<Entry<T>>();

    /// Appends an entry to the first row in which no entry is due later, or else to a row that `clear_a_row`
    /// empties. If no row can be emptied, puts the entry in no row.
    fn append_to_row(&mut self, slot: u32, due: Deadline) {
        let last = Node { due, slot };
        let fits = |row: &Option<Row>| row.is_none_or(|row| row.last.due <= due);
        let Some(row) = self.rows.iter().position(fits).or_else(|| self.clear_a_row()) else {
            return self.put_in_no_row(last);
        };
        let before = match &mut self.rows[row] {
            Some(row) => mem::replace(&mut row.last, last).slot,
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
    fn put_in_no_row(&mut self, node: Node) {
        self.others.insert(node);
        if let Some(entry) = self.entries.get_mut(node.slot) {
            entry.place = Place { before: END, after: NO_ROW };
        }
    }

    /// Empties a row that has a single entry, which is due later than the entry to append. Returns the index
    /// of the row.
    #[inline(never)]
    fn clear_a_row(&mut self) -> Option<usize> {
        let alone = |row: &Option<Row>| row.is_some_and(|row| row.first.slot == row.last.slot);
        let row = self.rows.iter().position(alone)?;
        let only = self.rows[row].take()?.first;
        self.put_in_no_row(only);
        Some(row)
    }

    /// Removes an entry from its place and links its neighbours.
    fn unlink(&mut self, node: Node, Place { before, after }: Place) {
        if after == NO_ROW {
            self.others.remove(&node);
            return;
        }
        let node_before = self.entries.get_mut(before).map(|entry| {
            entry.place.after = after;
            Node { due: entry.due, slot: before }
        });
        let node_after = self.entries.get_mut(after).map(|entry| {
            entry.place.before = before;
            Node { due: entry.due, slot: after }
        });
        if node_before.is_some() && node_after.is_some() {
            return;
        }
        let at_an_end = |row: &Row| row.first == node || row.last == node;
        if let Some(row) = self.rows.iter_mut().find(|row| row.as_ref().is_some_and(at_an_end)) {
            *row = match (*row, node_before, node_after) {
                (Some(row), None, Some(first)) => Some(Row { first, ..row }),
                (Some(row), Some(last), None) => Some(Row { last, ..row }),
                _ => None,
            };
        }
    }
}

/// Stores entries in chunks. The memory of a chunk without entries is freed.
#[derive(Clone)]
struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// The indexes of the chunks with room. The last one is filled first.
    open: Vec<u32>,
    /// The memory of the last chunk that became empty, for the next chunk that needs memory. So entries that
    /// come and go at the border of a chunk allocate nothing.
    spare: Vec<Entry<T>>,
    len: usize,
}

#[derive(Clone)]
struct Chunk<T> {
    /// Allocated with the first entry.
    entries: Vec<Entry<T>>,
    used: usize,
    /// The first free entry. Free entries form a list by [`Place::after`].
    free: u32,
}

#[derive(Clone)]
struct Entry<T> {
    due: Deadline,
    place: Place,
    /// `None` in a free entry.
    item: Option<T>,
}

/// 1,024 entries, about 40 KB: no client notices the time of such an allocation.
const CHUNK_BITS: usize = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), open: Vec::new(), spare: Vec::new(), len: 0 }
    }
}

impl<T> Slab<T> {
    /// The entry of a slot, used or free.
    fn get(&self, slot: u32) -> Option<&Entry<T>> {
        let (chunk, within) = split(slot);
        self.chunks.get(chunk)?.entries.get(within)
    }

    fn get_mut(&mut self, slot: u32) -> Option<&mut Entry<T>> {
        let (chunk, within) = split(slot);
        self.chunks.get_mut(chunk)?.entries.get_mut(within)
    }

    /// Adds an entry. `None` if four billion are in use.
    fn insert(&mut self, due: Deadline, item: T) -> Option<u32> {
        let at = match self.open.last() {
            Some(at) => *at,
            None => self.open_another()?,
        };
        let chunk = &mut self.chunks[at as usize];
        let entry = Entry { due, place: Place { before: END, after: END }, item: Some(item) };
        let within = match chunk.entries.get_mut(chunk.free as usize) {
            Some(free) => {
                let next = mem::replace(free, entry).place.after;
                mem::replace(&mut chunk.free, next)
            }
            None => {
                if chunk.entries.capacity() == 0 {
                    chunk.entries = mem::take(&mut self.spare);
                    chunk.entries.reserve_exact(CHUNK);
                }
                chunk.entries.push(entry);
                (chunk.entries.len() - 1) as u32
            }
        };
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.open.pop();
        }
        self.len += 1;
        Some(at << CHUNK_BITS | within)
    }

    fn remove(&mut self, slot: u32) -> Option<T> {
        let (at, within) = split(slot);
        let chunk = self.chunks.get_mut(at)?;
        let entry = chunk.entries.get_mut(within)?;
        let item = entry.item.take()?;
        entry.place.after = mem::replace(&mut chunk.free, within as u32);
        if chunk.used == CHUNK {
            self.open.push(at as u32);
        }
        chunk.used -= 1;
        if chunk.used == 0 {
            self.spare = mem::take(&mut chunk.entries);
            self.spare.clear();
            chunk.free = END;
        }
        self.len -= 1;
        Some(item)
    }

    /// `None` if four billion entries are in use.
    #[cold]
    fn open_another(&mut self) -> Option<u32> {
        let at = u32::try_from(self.chunks.len()).ok().filter(|at| *at < END >> CHUNK_BITS)?;
        self.chunks.push(Chunk { entries: Vec::new(), used: 0, free: END });
        self.open.push(at);
        Some(at)
    }

    /// The slots from `from` on, each with its item. Of a chunk without entries, only the first slot.
    fn slots(&self, from: u32) -> impl Iterator<Item = (u32, Option<&T>)> {
        let (first, skipped) = split(from);
        self.chunks.iter().enumerate().skip(first).flat_map(move |(at, chunk)| {
            let start = at << CHUNK_BITS;
            let empty = chunk.entries.is_empty().then_some((start as u32, None));
            let entries = chunk.entries.iter().enumerate().skip(if at == first { skipped } else { 0 });
            let entries = entries.map(move |(within, entry)| ((start | within) as u32, entry.item.as_ref()));
            empty.into_iter().chain(entries)
        })
    }
}

/// The chunk of a slot, and its index there.
fn split(slot: u32) -> (usize, usize) {
    let slot = slot as usize;
    (slot >> CHUNK_BITS, slot & (CHUNK - 1))
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    #[derive(Clone, Debug)]
    enum Op {
        /// Inserts an entry that is due this many ms from now.
        Insert(u64),
        Remove(usize),
        Reschedule(usize, u64),
        PopFirst,
        Advance(u64),
    }

    /// The ms until an entry is due. Mostly one of three lengths, as with leases.
    fn length() -> impl Strategy<Value = u64> {
        prop_oneof![3 => prop::sample::select(vec![10u64, 30, 300]), 1 => 1..500u64]
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            6 => length().prop_map(Op::Insert),
            2 => any::<usize>().prop_map(Op::Remove),
            2 => (any::<usize>(), length()).prop_map(|(i, length)| Op::Reschedule(i, length)),
            2 => Just(Op::PopFirst),
            2 => (1..5u64).prop_map(Op::Advance),
        ]
    }

    impl<T> Schedule<T> {
        /// The number of entries that the allocated memory has room for.
        fn allocated(&self) -> usize {
            let chunks = self.entries.chunks.iter().map(|chunk| &chunk.entries);
            chunks.chain([&self.entries.spare]).map(Vec::capacity).sum()
        }

        /// The number of entries in rows. Asserts that the rows are in order and linked in both directions.
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
                let end = (END, row.last.slot, row.last.due);
                assert_eq!((at, before, due), end, "a row does not end at its last entry");
            }
            count
        }
    }

    /// Enough operations to fill several chunks. Miri is a hundred times slower, and fills a part of one.
    const MAX_OPS: usize = if cfg!(miri) { 100 } else { 3000 };

    proptest! {
        #![proptest_config(ProptestConfig { cases: if cfg!(miri) { 5 } else { 256 }, ..ProptestConfig::default() })]
        #[test]
        fn a_schedule_behaves_like_a_sorted_map(ops in prop::collection::vec(op(), 1..MAX_OPS)) {
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
                        prop_assert!(model.insert(slot, (due, item)).is_none(), "a used slot was returned again");
                    }
                    Op::Remove(i) => if let Some(slot) = nth(&model, i) {
                        prop_assert_eq!(schedule.remove(slot), model.remove(&slot).map(|(_, item)| item));
                        prop_assert_eq!(schedule.remove(slot), None);
                    },
                    Op::Reschedule(i, length) => if let Some(slot) = nth(&model, i) {
                        schedule.reschedule(slot, Deadline::at_millis(now + length));
                        model.get_mut(&slot).unwrap().0 = now + length;
                    },
                    Op::PopFirst => if let Some((_, slot)) = schedule.first() {
                        schedule.remove(slot);
                        model.remove(&slot);
                    },
                    Op::Advance(time) => now += time,
                }
                prop_assert_eq!(schedule.len(), model.len());
                prop_assert!(schedule.in_rows() <= model.len());
                let earliest = model.values().map(|(due, _)| *due).min();
                prop_assert_eq!(schedule.first().map(|(due, _)| due.millis()), earliest);
                if let Some((due, slot)) = schedule.first() {
                    prop_assert_eq!(model[&slot].0, due.millis());
                    prop_assert_eq!(schedule.get(slot), Some(&model[&slot].1));
                }
            }
            let used = schedule.slots(0).filter_map(|(slot, item)| Some((Slot::at(slot)?, *item?)));
            prop_assert!(used.eq(model.iter().map(|(slot, (_, item))| (*slot, *item))), "slots are missing");
            while let Some((_, slot)) = schedule.first() {
                prop_assert!(schedule.remove(slot).is_some_and(|item| Some(item) == model.remove(&slot).map(|(_, item)| item)));
            }
            prop_assert!(model.is_empty(), "`first` did not return every entry");
        }
    }

    #[test]
    fn leases_of_a_few_lengths_are_in_rows_and_other_entries_are_not() {
        let mut schedule = Schedule::default();
        for now in 0..1000 {
            for length in [30_000, 10_000, 300_000] {
                schedule.insert(Deadline::at_millis(now + length), ()).unwrap();
            }
        }
        assert_eq!(schedule.in_rows(), 3000);
        // Each entry is due before the previous one, so each row takes at most one of them, at its end.
        for length in (0..1000).rev() {
            schedule.insert(Deadline::at_millis(400_000 + length), ()).unwrap();
        }
        assert_eq!(schedule.len() - schedule.in_rows(), 1000 - ROWS);
        // A single entry in a row makes room for leases, and is then in no row.
        for now in 1000..2000 {
            for length in [30_000, 10_000] {
                schedule.insert(Deadline::at_millis(now + length), ()).unwrap();
            }
        }
        assert!(schedule.len() - schedule.in_rows() <= 1000, "leases of one length are in no row");
        let mut last = Deadline::at_millis(0);
        while let Some((due, slot)) = schedule.first() {
            assert!(due >= last);
            last = due;
            assert!(schedule.remove(slot).is_some(), "the slot of the first entry is not in use");
        }
    }

    #[test]
    fn removed_entries_free_their_memory_even_if_one_entry_stays() {
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
            // The chunk of the entry that stays, and the spare one.
            assert!(schedule.allocated() <= 2 * CHUNK, "{}", schedule.allocated());
            slots = fill(&mut schedule, 5_000);
            assert_eq!(slots.len(), 5_000);
            assert!(!slots.contains(&stays), "a used slot was returned again");
            // 5,000 entries fill at most 5 chunks more.
            assert!(schedule.allocated() <= 7 * CHUNK, "{}", schedule.allocated());
        }
        // Gaps are filled before more is allocated.
        let before = schedule.allocated();
        slots.iter().step_by(2).for_each(|slot| assert!(schedule.remove(*slot).is_some()));
        fill(&mut schedule, 2_500);
        assert_eq!(schedule.allocated(), before);
    }
}
