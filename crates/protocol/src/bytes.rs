//! Byte strings that need no allocation if they are short.

use std::borrow::Cow;
use std::cmp::Ordering;
use std::hash::{Hash, Hasher};
use std::ops::Deref;

use crate::steps;

/// An immutable byte string. Up to `INLINE` bytes are stored in the value itself. Its size is `INLINE` + 2
/// bytes, rounded up to a multiple of 8. A `SmallVec` of the same capacity, which can grow, would be a third
/// larger. The size matters because each hold has two of these strings: its token and its label. Comparisons
/// are counted for tests (see [`steps`]).
#[derive(Clone)]
pub struct Inline<const INLINE: usize>(Inner<INLINE>);

/// The byte string for labels, keys and other short texts. A value takes 24 bytes. A token is an
/// `Inline<30>`.
pub type Bytes = Inline<22>;

#[derive(Clone)]
enum Inner<const INLINE: usize> {
    Short(u8, [u8; INLINE]),
    Long(Box<[u8]>),
}

impl<const INLINE: usize> Inner<INLINE> {
    #[inline(never)]
    fn long(bytes: &[u8]) -> Self {
        Inner::Long(bytes.into())
    }
}

impl<const INLINE: usize> Inline<INLINE> {
    pub const EMPTY: Self = Inline(Inner::Short(0, [0; INLINE]));

    /// Bytes on the heap besides the value itself.
    pub fn heap_size(&self) -> usize {
        match &self.0 {
            Inner::Short(..) => 0,
            Inner::Long(bytes) => bytes.len(),
        }
    }
}

impl<const INLINE: usize> From<&[u8]> for Inline<INLINE> {
    fn from(bytes: &[u8]) -> Self {
        let mut short = [0; INLINE];
        Inline(match short.get_mut(..bytes.len()) {
            Some(start) => {
                start.copy_from_slice(bytes);
                Inner::Short(bytes.len() as u8, short)
            }
            None => Inner::long(bytes),
        })
    }
}

impl<const INLINE: usize> Default for Inline<INLINE> {
    fn default() -> Self {
        Inline::EMPTY
    }
}

impl<const INLINE: usize> PartialEq for Inline<INLINE> {
    fn eq(&self, other: &Self) -> bool {
        steps::add_one();
        **self == **other
    }
}

impl<const INLINE: usize> Eq for Inline<INLINE> {}

impl<const INLINE: usize> PartialOrd for Inline<INLINE> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl<const INLINE: usize> Ord for Inline<INLINE> {
    fn cmp(&self, other: &Self) -> Ordering {
        steps::add_one();
        (**self).cmp(&**other)
    }
}

impl<const INLINE: usize> Hash for Inline<INLINE> {
    fn hash<H: Hasher>(&self, state: &mut H) {
        (**self).hash(state);
    }
}

impl<const INLINE: usize> std::fmt::Debug for Inline<INLINE> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "\"{}\"", self.escape_ascii())
    }
}

impl<const INLINE: usize> Deref for Inline<INLINE> {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match &self.0 {
            Inner::Short(len, bytes) => &bytes[..usize::from(*len)],
            Inner::Long(bytes) => bytes,
        }
    }
}

/// Returns the first `most` bytes of a text, with three dots if more follow.
pub fn cut(text: &[u8], most: usize) -> Cow<'_, [u8]> {
    match text.get(..most) {
        Some(start) if text.len() > most => [start, b"..."].concat().into(),
        _ => text.into(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_equal_to_their_source() {
        for len in 0..300 {
            let bytes: Vec<u8> = (0..len).map(|n| n as u8).collect();
            let copy = Bytes::from(&bytes[..]);
            assert_eq!(*copy, *bytes);
            assert_eq!(*copy.clone(), *bytes);
            assert_eq!(copy.heap_size(), if len <= 22 { 0 } else { len });
        }
    }

    #[test]
    fn bytes_have_the_documented_size() {
        assert_eq!((size_of::<Bytes>(), size_of::<Inline<30>>()), (24, 32));
    }
}
