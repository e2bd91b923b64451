//! Tokens, owners and labels, which clients choose. Each exists owned and borrowed, with a checked length.

use std::fmt;

use crate::bytes::{Bytes, Inline};
use crate::steps;

/// The identity of a holder or waiter: 1 to 255 bytes. A token proves ownership, so Debug shows only its
/// beginning. A token of [`Token::of_random`] is stored without an allocation.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Inline<30>);

impl Token {
    pub const MAX_LEN: usize = 255;

    /// Encodes random bytes as a token, for DLOCK.TOKEN and the Rust client: 27 characters of URL-safe base64
    /// without padding. The first character is never a hyphen, which a command line would take for an option.
    pub fn of_random(mut random: [u8; 20]) -> Token {
        // The index of the hyphen in DIGITS.
        const HYPHEN: u8 = 62;
        if random[0] >> 2 == HYPHEN {
            random[0] ^= 0x80;
        }
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        // Each character encodes 6 bits, which begin in `byte` and may end in the next one.
        let spelled: [u8; 27] = std::array::from_fn(|at| {
            let (byte, bit) = (at * 6 / 8, at * 6 % 8);
            let next = random.get(byte + 1).copied().unwrap_or(0);
            let two = u16::from_be_bytes([random[byte], next]);
            DIGITS[usize::from(two >> (10 - bit)) & 63]
        });
        Token(spelled[..].into())
    }

    /// `None` outside of 1 to 255 bytes.
    pub fn new(bytes: &[u8]) -> Option<Token> {
        TokenRef::new(bytes).map(TokenRef::to_owned)
    }

    pub fn borrowed(&self) -> TokenRef<'_> {
        TokenRef(&self.0)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes on the heap besides the token itself.
    pub fn heap_size(&self) -> usize {
        self.0.heap_size()
    }
}

/// The bytes of a token, checked and borrowed.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct TokenRef<'a>(&'a [u8]);

impl<'a> TokenRef<'a> {
    /// `None` outside of 1 to 255 bytes.
    pub fn new(bytes: &'a [u8]) -> Option<TokenRef<'a>> {
        (1..=Token::MAX_LEN).contains(&bytes.len()).then_some(TokenRef(bytes))
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn to_owned(self) -> Token {
        Token(self.0.into())
    }
}

impl std::borrow::Borrow<[u8]> for Token {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<[u8]> for Token {
    fn eq(&self, other: &[u8]) -> bool {
        // Counted, because tests limit the number of comparisons.
        steps::add_one();
        self.as_bytes() == other
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.borrowed().fmt(f)
    }
}

impl fmt::Debug for TokenRef<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let start = self.0.get(..6).unwrap_or(self.0).escape_ascii();
        let rest = if self.0.len() > 6 { ".." } else { "" };
        write!(f, "Token({start}{rest})")
    }
}

/// The name of a client that acquires with several tokens: a process, a thread, a job. It has the form of a
/// token, but is no secret. An owner must release nothing while one of its tokens waits: the detection of
/// deadlocks assumes so.
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

    /// The owner as a token, for messages that show an owner or a token.
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

/// Free text for operators that describes a holder or a waiter, at most 255 bytes. Empty if there is none.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Label(Bytes);

impl Label {
    pub const MAX_LEN: usize = 255;
    pub const NONE: Label = Label(Bytes::EMPTY);

    /// `None` if it is longer than 255 bytes.
    pub fn new(bytes: &[u8]) -> Option<Label> {
        LabelRef::new(bytes).map(LabelRef::to_owned)
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn borrowed(&self) -> LabelRef<'_> {
        LabelRef(&self.0)
    }

    /// Bytes on the heap besides the label itself.
    pub fn heap_size(&self) -> usize {
        self.0.heap_size()
    }
}

/// The bytes of a label, checked and borrowed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LabelRef<'a>(&'a [u8]);

impl<'a> LabelRef<'a> {
    /// `None` if it is longer than 255 bytes.
    pub fn new(bytes: &'a [u8]) -> Option<LabelRef<'a>> {
        (bytes.len() <= Label::MAX_LEN).then_some(LabelRef(bytes))
    }

    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }

    pub fn is_empty(self) -> bool {
        self.0.is_empty()
    }

    pub fn to_owned(self) -> Label {
        Label(self.0.into())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_random_encodes_20_bytes_as_27_url_safe_characters() {
        assert_eq!(Token::of_random([0; 20]), *b"AAAAAAAAAAAAAAAAAAAAAAAAAAA".as_slice());
        assert_eq!(Token::of_random([0xff; 20]), *b"__________________________8".as_slice());
        assert_eq!(Token::of_random(*b"the quick brown fox."), *b"dGhlIHF1aWNrIGJyb3duIGZveC4".as_slice());
        assert_eq!(Token::of_random([1; 20]).heap_size(), 0);
    }

    #[test]
    fn random_tokens_never_begin_with_a_hyphen() {
        for first in 0..=u8::MAX {
            let mut random = [7; 20];
            random[0] = first;
            assert_ne!(Token::of_random(random).as_bytes()[0], b'-', "{first}");
        }
    }

    #[test]
    fn debug_shows_only_the_beginning_of_a_token() {
        assert_eq!(format!("{:?}", Token::new(b"secret-and-long").unwrap()), "Token(secret..)");
        assert_eq!(format!("{:?}", Token::new(b"\x00a\n").unwrap()), "Token(\\x00a\\n)");
        assert!(Token::new(b"").is_none() && Token::new(&[0; 256]).is_none());
    }
}
