//! Memory that grows and shrinks by pieces.

/// A vector that grows by chunks, so that growing never moves what is there.
#[derive(Clone)]
pub(super) struct Chunks<T> {
    chunks: Vec<Vec<T>>,
    len: usize,
}

/// 1,024 entries: 16 to 48 KB, far below what a server notices.
pub(super) const CHUNK_BITS: usize = 10;
pub(super) const CHUNK: usize = 1 << CHUNK_BITS;

impl<T> Default for Chunks<T> {
    fn default() -> Self {
        Chunks { chunks: Vec::new(), len: 0 }
    }
}

impl<T> Chunks<T> {
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn get(&self, at: usize) -> &T {
        &self.chunks[at >> CHUNK_BITS][at & (CHUNK - 1)]
    }

    pub(super) fn get_mut(&mut self, at: usize) -> &mut T {
        &mut self.chunks[at >> CHUNK_BITS][at & (CHUNK - 1)]
    }

    pub(super) fn checked(&self, at: usize) -> Option<&T> {
        self.chunks.get(at >> CHUNK_BITS)?.get(at & (CHUNK - 1))
    }

    pub(super) fn push(&mut self, item: T) {
        if self.len >> CHUNK_BITS == self.chunks.len() {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        self.chunks[self.len >> CHUNK_BITS].push(item);
        self.len += 1;
    }

    pub(super) fn into_vec(self) -> Vec<T> {
        let mut all = Vec::with_capacity(self.len);
        self.chunks.into_iter().for_each(|chunk| all.extend(chunk));
        all
    }

    /// Keeps an empty chunk or two, so that going to and fro over a border allocates nothing.
    pub(super) fn pop(&mut self) {
        if self.len > 0 {
            self.len -= 1;
            self.chunks[self.len >> CHUNK_BITS].pop();
            self.chunks.truncate((self.len >> CHUNK_BITS) + 2);
        }
    }
}
