//! Short strings of bytes without an allocation of their own.

use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

/// Bytes that never change. Up to [`Bytes::INLINE`] of them lie in the value itself, which takes 24 bytes in any case: a
/// quarter less than a vector that does the same and can grow, and there are two of them for each hold.
#[derive(Clone)]
pub struct Bytes(Inner);

#[derive(Clone)]
enum Inner {
    Short(u8, [u8; Bytes::INLINE]),
    Long(Box<[u8]>),
}

impl Bytes {
    /// What fits into the 24 bytes of the value beside the length and the mark of the variant.
    pub const INLINE: usize = 22;

    pub const EMPTY: Bytes = Bytes(Inner::Short(0, [0; Bytes::INLINE]));

    /// Bytes on the heap besides the value itself.
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Inner::Short(..) => 0,
            Inner::Long(bytes) => bytes.len(),
        }
    }
}

impl From<&[u8]> for Bytes {
    fn from(bytes: &[u8]) -> Self {
        let mut short = [0; Bytes::INLINE];
        Bytes(match short.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                Inner::Short(bytes.len() as u8, short)
            }
            None => Inner::Long(bytes.into()),
        })
    }
}

impl Default for Bytes {
    fn default() -> Self {
        Bytes::EMPTY
    }
}

impl PartialEq for Bytes {
    fn eq(&self, other: &Self) -> bool {
        **self == **other
    }
}

impl Eq for Bytes {}

impl PartialOrd for Bytes {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Bytes {
    fn cmp(&self, other: &Self) -> Ordering {
        (**self).cmp(&**other)
    }
}

impl Hash for Bytes {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl std::fmt::Debug for Bytes {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

impl Deref for Bytes {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Short(len, bytes) => &bytes[..usize::from(*len)],
            Inner::Long(bytes) => bytes,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn they_are_what_they_were_made_of() {
        for len in 0..300 {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let kept = Bytes::from(&bytes[..]);
            assert_eq!(*kept, *bytes);
            assert_eq!(*kept.clone(), *bytes);
            assert_eq!(kept.heap_size(), if len <= Bytes::INLINE { 0 } else { len });
        }
    }

    #[test]
    fn they_take_24_bytes() {
        assert_eq!(size_of::<Bytes>(), 24);
    }
}
