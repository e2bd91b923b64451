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

use heap::{Heap, Node};
use slab::{END, Entry, IN_HEAP, Place, Slab};

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
    /// See [`Schedule::begin_bulk`].
    is_bulk: bool,
}

/// The two ends of a list in which nothing is due before what stands before it. With when they are due, for
/// every row is asked each time: looking it up in their entries took 16 ns more where leases are of any
/// length.
#[derive(Clone, Copy)]
struct Row {
    first: Node,
    last: Node,
}

/// One for each length of lease that is in use at a time. A single lease that is much longer may close one
/// for a while.
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

    /// From now on entries come as those of a file do, very many in no order, and nobody asks what is due
    /// first until [`Schedule::end_bulk`]. They wait in the heap, as a plain list.
    pub fn begin_bulk(&mut self) {
        self.is_bulk = true;
    }

    /// Sorts all that came, and lines them up one behind the other: they take the room and the time of leases
    /// of one length, which a heap of them would not.
    pub fn end_bulk(&mut self) {
        self.is_bulk = false;
        let mut came = std::mem::take(&mut self.heap).into_nodes();
        came.sort_unstable_by_key(|node| node.due);
        came.into_iter().for_each(|node| self.line_up(node.slot, node.due));
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

    /// Moves an entry that has a row for itself into the heap: it is due long after others, and closes the
    /// row to them.
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

    /// Takes an entry away from where it stands; its neighbours close up.
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

/// Tells entries where in the heap they are now.
fn moved_in<T>(entries: &mut Slab<T>) -> impl FnMut(u32, u32) {
    |slot, place| {
        if let Some(entry) = entries.get_mut(slot) {
            entry.place = Place { before: place, after: IN_HEAP };
        }
    }
}

#[cfg(test)]
mod tests;
