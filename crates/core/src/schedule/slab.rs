//! A slab of chunks that stores entries. A chunk without entries is freed at once.

use std::num::NonZeroU32;

use dlock_protocol::Deadline;

use super::chunks::{CHUNK, CHUNK_BITS};

/// No slot.
pub(super) const END: u32 = u32::MAX;
/// In [`Place::after`]: the entry is in the heap.
pub(super) const IN_HEAP: u32 = END - 1;

/// The slot of an entry, until it is removed. Stored as index + 1, so that `Option<Slot>` has the same size.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Slot(NonZeroU32);

impl Slot {
    /// `None` for [`END`], which is no index.
    pub(super) fn at(index: u32) -> Option<Slot> {
        NonZeroU32::new(index.wrapping_add(1)).map(Slot)
    }

    pub(super) fn index(self) -> u32 {
        self.0.get() - 1
    }
}

#[derive(Clone)]
pub(super) struct Slab<T> {
    chunks: Vec<Chunk<T>>,
    /// The chunks with room. The last one is filled first.
    open: Vec<u32>,
    len: usize,
}

#[derive(Clone)]
struct Chunk<T> {
    /// Allocated with the first entry.
    entries: Vec<Entry<T>>,
    used: usize,
    /// The first free entry. Free entries form a list by `after`.
    free: u32,
}

#[derive(Clone)]
pub(super) struct Entry<T> {
    pub due: Deadline,
    pub place: Place,
    /// `None` in a free entry.
    pub item: Option<T>,
}

/// The place of an entry. Two numbers: an enum would take 8 bytes more for each hold.
#[derive(Clone, Copy)]
pub(super) struct Place {
    /// The slot before it in its row, [`END`] for the first one. In the heap, its place there.
    pub before: u32,
    /// The slot after it in its row, [`END`] for the last one. In the heap, [`IN_HEAP`].
    pub after: u32,
}

impl<T> Default for Slab<T> {
    fn default() -> Self {
        Slab { chunks: Vec::new(), open: Vec::new(), len: 0 }
    }
}

impl<T> Chunk<T> {
    #[inline(never)]
    fn push(&mut self, due: Deadline, item: T) -> u32 {
        let entry = Entry { due, place: Place { before: END, after: END }, item: Some(item) };
        if self.entries.capacity() == 0 {
            self.entries.reserve_exact(CHUNK);
        }
        self.entries.push(entry);
        (self.entries.len() - 1) as u32
    }

    /// Frees its memory, if no entry is in use.
    fn give_back(&mut self) {
        if self.used == 0 {
            (self.entries, self.free) = (Vec::new(), END);
        }
    }
}

impl<T> Slab<T> {
    pub fn len(&self) -> usize {
        self.len
    }

    /// The entry of a slot, used or free.
    pub fn get(&self, slot: u32) -> Option<&Entry<T>> {
        let (chunk, within) = split(slot);
        self.chunks.get(chunk)?.entries.get(within)
    }

    pub fn get_mut(&mut self, slot: u32) -> Option<&mut Entry<T>> {
        let (chunk, within) = split(slot);
        self.chunks.get_mut(chunk)?.entries.get_mut(within)
    }

    /// Adds an entry. `None` if four billion are in use.
    pub fn insert(&mut self, due: Deadline, item: T) -> Option<u32> {
        let at = match self.open.last() {
            Some(at) => *at,
            None => self.open_another()?,
        };
        let chunk = &mut self.chunks[at as usize];
        let within = match chunk.entries.get_mut(chunk.free as usize) {
            Some(free) => {
                let next = free.place.after;
                *free = Entry { due, place: Place { before: END, after: END }, item: Some(item) };
                std::mem::replace(&mut chunk.free, next)
            }
            None => chunk.push(due, item),
        };
        chunk.used += 1;
        if chunk.used == CHUNK {
            self.open.pop();
        }
        self.len += 1;
        Some(at << CHUNK_BITS | within)
    }

    pub fn remove(&mut self, slot: u32) -> Option<T> {
        let (at, within) = split(slot);
        let chunk = self.chunks.get_mut(at)?;
        let entry = chunk.entries.get_mut(within)?;
        let item = entry.item.take()?;
        entry.place.after = std::mem::replace(&mut chunk.free, within as u32);
        chunk.used -= 1;
        self.len -= 1;
        if matches!(chunk.used, 0) || chunk.used == CHUNK - 1 {
            self.tidy(at);
        }
        Some(item)
    }

    /// Updates `open` after a full chunk got room, or a chunk became empty.
    #[inline(never)]
    fn tidy(&mut self, at: usize) {
        let (was_full, is_empty) = (self.chunks[at].used == CHUNK - 1, self.chunks[at].used == 0);
        // An empty chunk is kept if it is filled next, so that entries that come and go at its border
        // allocate nothing.
        let filled_next = self.open.last().map(|last| *last as usize);
        if was_full {
            filled_next.into_iter().for_each(|before| self.chunks[before].give_back());
            self.open.push(at as u32);
        } else if is_empty && filled_next != Some(at) {
            self.chunks[at].give_back();
        }
    }

    /// None once four billion are in use.
    #[cold]
    fn open_another(&mut self) -> Option<u32> {
        let at = u32::try_from(self.chunks.len()).ok().filter(|at| *at < END >> CHUNK_BITS)?;
        self.chunks.push(Chunk { entries: Vec::new(), used: 0, free: END });
        self.open.push(at);
        Some(at)
    }

    /// The slots from this one on, each with its item. Of an empty chunk, only the first.
    pub fn slots(&self, from: u32) -> impl Iterator<Item = (u32, Option<&T>)> {
        let (first, skipped) = split(from);
        self.chunks.iter().enumerate().skip(first).flat_map(move |(at, chunk)| {
            let start = at << CHUNK_BITS;
            let empty = chunk.entries.is_empty().then_some((start as u32, None));
            let entries = chunk.entries.iter().enumerate().skip(if at == first { skipped } else { 0 });
            let entries = entries.map(move |(within, entry)| ((start | within) as u32, entry.item.as_ref()));
            empty.into_iter().chain(entries)
        })
    }

    #[cfg(test)]
    pub fn allocated(&self) -> usize {
        self.chunks.iter().map(|chunk| chunk.entries.capacity()).sum()
    }
}

fn split(slot: u32) -> (usize, usize) {
    let slot = slot as usize;
    (slot >> CHUNK_BITS, slot & (CHUNK - 1))
}
