//! Whose tokens are: what the search for deadlocks goes by.

use crate::names::{Token, TokenRef};

/// Who acquires with one token after the other: a process, a job, a thread of it. Spelled as a token is, and
/// no secret. An owner within another is written after it and a slash: as long as `job/step` waits, `job`
/// releases nothing.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Token);

/// The bytes of an owner, checked and borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerIdRef<'a>(TokenRef<'a>);

impl OwnerId {
    pub const MAX_LEN: usize = Token::MAX_LEN;
    /// Between an owner and one within it.
    pub const WITHIN: u8 = b'/';

    /// None outside 1..=255 bytes.
    pub fn new(bytes: &[u8]) -> Option<OwnerId> {
        OwnerIdRef::new(bytes).map(OwnerIdRef::to_owned)
    }

    pub fn borrowed(&self) -> OwnerIdRef<'_> {
        OwnerIdRef(self.0.borrowed())
    }

    /// As it is shown in place of a token.
    pub fn as_token(&self) -> &Token {
        &self.0
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Whether it is this one, or within it.
    pub fn is_within(&self, other: &OwnerId) -> bool {
        let rest = self.as_bytes().strip_prefix(other.as_bytes());
        rest.is_some_and(|rest| rest.first().is_none_or(|next| *next == Self::WITHIN))
    }

    /// The owners that it is within, the nearest last.
    pub fn around(&self) -> impl Iterator<Item = OwnerId> {
        let slashes = self.as_bytes().iter().enumerate().filter(|(_, byte)| **byte == Self::WITHIN);
        slashes.filter_map(|(at, _)| OwnerId::new(&self.as_bytes()[..at]))
    }

    /// Bytes on the heap besides the owner itself.
    pub fn heap_size(&self) -> usize {
        self.0.heap_size()
    }
}

impl<'a> OwnerIdRef<'a> {
    /// None outside 1..=255 bytes.
    pub fn new(bytes: &'a [u8]) -> Option<OwnerIdRef<'a>> {
        TokenRef::new(bytes).map(OwnerIdRef)
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0.as_bytes()
    }

    pub fn to_owned(self) -> OwnerId {
        OwnerId(self.0.to_owned())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn owner(bytes: &str) -> OwnerId {
        OwnerId::new(bytes.as_bytes()).unwrap()
    }

    #[test]
    fn an_owner_is_within_itself_and_those_before_its_slashes() {
        for (inner, outer, within) in [
            ("job", "job", true),
            ("job/step", "job", true),
            ("job/step/7", "job", true),
            ("jobs", "job", false),
            ("job", "job/step", false),
            ("job/step", "job/st", false),
            ("job//", "job", true),
        ] {
            assert_eq!(owner(inner).is_within(&owner(outer)), within, "{inner} {outer}");
        }
        let around: Vec<OwnerId> = owner("/a/b//c").around().collect();
        assert_eq!(around, ["/a", "/a/b", "/a/b/"].map(owner));
    }
}
