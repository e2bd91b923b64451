//! The owner of tokens (OWNER), for the search for deadlocks.

use crate::names::{Token, TokenRef};

/// The name of a client that acquires with several tokens: a process, a thread, a job. It has the form of a
/// token, but is no secret. An owner releases nothing while one of its tokens waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct OwnerId(Token);

/// The bytes of an owner, checked and borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OwnerIdRef<'a>(TokenRef<'a>);

impl OwnerId {
    pub const MAX_LEN: usize = Token::MAX_LEN;

    /// `None` outside 1..=255 bytes.
    pub fn new(bytes: &[u8]) -> Option<OwnerId> {
        OwnerIdRef::new(bytes).map(OwnerIdRef::to_owned)
    }

    pub fn borrowed(&self) -> OwnerIdRef<'_> {
        OwnerIdRef(self.0.borrowed())
    }

    /// The owner in the form in which messages show a token.
    pub fn as_token(&self) -> &Token {
        &self.0
    }

    pub fn as_bytes(&self) -> &[u8] {
        self.0.as_bytes()
    }

    /// Bytes on the heap besides the owner itself.
    pub fn heap_size(&self) -> usize {
        self.0.heap_size()
    }
}

impl<'a> OwnerIdRef<'a> {
    /// `None` outside 1..=255 bytes.
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
