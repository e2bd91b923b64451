//! What is due next, among millions: an indexed 4-ary heap over a slab.
//!
//! An entry can be moved or taken out by its slot, so nothing stale is ever left in it. Memory grows and shrinks by
//! whole chunks and is never copied over as a whole: no insertion stalls on a reallocation, however many there are.

use crate::units::Deadline;

/// Where an entry lives, until it is removed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(u32);

impl Slot {
    /// Stands for "not scheduled" in places where four bytes matter.
    pub const NONE: Slot = Slot(u32::MAX);
}

/// Entries by when they are due.
#[derive(Clone)]
pub struct Schedule<T> {
    heap: Chunks<Node>,
    entries: Chunks<Entry<T>>,
    /// The first of the free slots, which form a list.
    free: u32,
}

#[derive(Clone, Copy)]
struct Node {
    due: Deadline,
    slot: u32,
}

#[derive(Clone)]
enum Entry<T> {
    /// With its place in the heap.
    Used(u32, T),
    /// With the next free slot.
    Free(u32),
}

const ARITY: usize = 4;
const END: u32 = u32::MAX;

impl<T> Default for Schedule<T> {
    fn default() -> Self {
        Schedule { heap: Chunks::default(), entries: Chunks::default(), free: END }
    }
}

impl<T> Schedule<T> {
    pub fn len(&self) -> usize {
        self.heap.len()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// What is due first. Entries due at the same moment come in no particular order.
    pub fn first(&self) -> Option<(Deadline, Slot)> {
        (!self.is_empty()).then(|| {
            let node = self.heap.get(0);
            (node.due, Slot(node.slot))
        })
    }

    /// None once four billion entries are in use.
    pub fn insert(&mut self, due: Deadline, item: T) -> Option<Slot> {
        let place = u32::try_from(self.heap.len()).ok().filter(|place| *place < END)?;
        let slot = if self.free == END {
            self.entries.push(Entry::Used(place, item));
            (self.entries.len() - 1) as u32
        } else {
            let slot = self.free;
            let entry = self.entries.get_mut(slot as usize);
            if let Entry::Free(next) = std::mem::replace(entry, Entry::Used(place, item)) {
                self.free = next;
            }
            slot
        };
        self.heap.push(Node { due, slot });
        self.sift_up(place as usize);
        Some(Slot(slot))
    }

    pub fn get(&self, slot: Slot) -> Option<&T> {
        match self.entries.checked(slot.0 as usize)? {
            Entry::Used(_, item) => Some(item),
            Entry::Free(_) => None,
        }
    }

    pub fn get_mut(&mut self, slot: Slot) -> Option<&mut T> {
        self.entries.checked(slot.0 as usize)?;
        match self.entries.get_mut(slot.0 as usize) {
            Entry::Used(_, item) => Some(item),
            Entry::Free(_) => None,
        }
    }

    /// Makes the entry due at another moment. Nothing happens where the slot is not in use.
    pub fn reschedule(&mut self, slot: Slot, due: Deadline) {
        let Some(place) = self.place(slot) else { return };
        let earlier = due < self.heap.get(place).due;
        self.heap.get_mut(place).due = due;
        if earlier { self.sift_up(place) } else { self.sift_down(place) }
    }

    pub fn remove(&mut self, slot: Slot) -> Option<T> {
        let place = self.place(slot)?;
        let last = *self.heap.get(self.heap.len() - 1);
        self.heap.pop();
        if last.slot != slot.0 {
            // The last one comes into the gap, and goes up or down from there.
            self.put(place, last);
            self.sift_up(place);
            self.sift_down(place);
        }
        let entry = std::mem::replace(self.entries.get_mut(slot.0 as usize), Entry::Free(self.free));
        self.free = slot.0;
        if self.is_empty() && self.entries.len() > CHUNK {
            // Give the memory of a flood back once it is over.
            (self.entries, self.free) = (Chunks::default(), END);
        }
        match entry {
            Entry::Used(_, item) => Some(item),
            Entry::Free(_) => None,
        }
    }

    /// Every entry, in no particular order.
    pub fn iter(&self) -> impl Iterator<Item = (Slot, &T)> {
        (0..self.entries.len()).filter_map(|at| match self.entries.get(at) {
            Entry::Used(_, item) => Some((Slot(at as u32), item)),
            Entry::Free(_) => None,
        })
    }

    /// Bytes an entry takes here, without what its item has on the heap.
    pub const ENTRY_SIZE: usize = size_of::<Node>() + size_of::<Entry<T>>();

    fn place(&self, slot: Slot) -> Option<usize> {
        match self.entries.checked(slot.0 as usize)? {
            Entry::Used(place, _) => Some(*place as usize),
            Entry::Free(_) => None,
        }
    }

    fn sift_up(&mut self, start: usize) {
        let node = *self.heap.get(start);
        let mut at = start;
        while at > 0 {
            let parent = (at - 1) / ARITY;
            let above = *self.heap.get(parent);
            if above.due <= node.due {
                break;
            }
            self.put(at, above);
            at = parent;
        }
        if at != start {
            self.put(at, node);
        }
    }

    fn sift_down(&mut self, start: usize) {
        let node = *self.heap.get(start);
        let mut at = start;
        loop {
            let children = at * ARITY + 1..(at * ARITY + 1 + ARITY).min(self.heap.len());
            let Some(least) = children.min_by_key(|child| self.heap.get(*child).due) else { break };
            let below = *self.heap.get(least);
            if node.due <= below.due {
                break;
            }
            self.put(at, below);
            at = least;
        }
        if at != start {
            self.put(at, node);
        }
    }

    /// Writes a place of the heap and tells the entry where it is now.
    fn put(&mut self, place: usize, node: Node) {
        *self.heap.get_mut(place) = node;
        if let Entry::Used(at, _) = self.entries.get_mut(node.slot as usize) {
            *at = place as u32;
        }
    }
}

/// A vector that grows by chunks, so that growing never moves what is there.
#[derive(Clone)]
struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

/// 1,024 entries: some ten to thirty KB, far below what a server notices.
const CHUNK_BITS: usize = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunks<T> {
    fn len(&self) -> usize {
        self.len
    }

    fn get(&self, at: usize) -> &T {
        &self.chunks[at >> CHUNK_BITS][at & (CHUNK - 1)]
    }

    fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at >> CHUNK_BITS][at & (CHUNK - 1)]
    }

    fn checked(&self, at: usize) -> Option<&T> {
        self.chunks.get(at >> CHUNK_BITS)?.get(at & (CHUNK - 1))
    }

    fn push(&mut self, item: T) {
        if self.len >> CHUNK_BITS == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[self.len >> CHUNK_BITS].push(item);
        self.len += 1;
    }

    /// Keeps one empty chunk, so that going to and fro over a border allocates nothing.
    fn pop(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.chunks[self.len >> CHUNK_BITS].pop();
            self.chunks.truncate((self.len >> CHUNK_BITS) + 2);
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
        Insert(u64),
        Remove(usize),
        Move(usize, u64),
        PopFirst,
    }

    fn op() -> impl Strategy<Value = Op> {
        prop_oneof![
            4 => (1..500u64).prop_map(Op::Insert),
            1 => any::<usize>().prop_map(Op::Remove),
            2 => (any::<usize>(), 1..500u64).prop_map(|(i, due)| Op::Move(i, due)),
            2 => Just(Op::PopFirst),
        ]
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
            for (item, op) in ops.into_iter().enumerate() {
                match op {
                    Op::Insert(due) => {
                        let slot = schedule.insert(Deadline::at_millis(due), item).unwrap();
                        prop_assert!(model.insert(slot, (due, item)).is_none(), "slot given twice");
                    }
                    Op::Remove(i) => if let Some(slot) = nth(&model, i) {
                        prop_assert_eq!(schedule.remove(slot), model.remove(&slot).map(|(_, item)| item));
                        prop_assert_eq!(schedule.remove(slot), None);
                    },
                    Op::Move(i, due) => if let Some(slot) = nth(&model, i) {
                        schedule.reschedule(slot, Deadline::at_millis(due));
                        model.get_mut(&slot).unwrap().0 = due;
                    },
                    Op::PopFirst => if let Some((_, slot)) = schedule.first() {
                        schedule.remove(slot);
                        model.remove(&slot);
                    },
                }
                prop_assert_eq!(schedule.len(), model.len());
                let least = model.values().map(|(due, _)| *due).min();
                prop_assert_eq!(schedule.first().map(|(due, _)| due.millis()), least);
                if let Some((due, slot)) = schedule.first() {
                    prop_assert_eq!(model[&slot].0, due.millis());
                    prop_assert_eq!(schedule.get(slot), Some(&model[&slot].1));
                }
            }
            prop_assert_eq!(schedule.iter().count(), model.len());
        }
    }
}
