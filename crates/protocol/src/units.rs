//! The numbers and names that mean something, each with one way to make it.
//!
//! Nothing here reads a clock or draws a random number.

use std::fmt;
use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Add;

use crate::bytes::Inline;
use crate::steps;

/// A moment of the server clock, in microseconds. The server clock is the wall clock at the server's start and moves
/// with the boot-time clock from there on, so it never jumps.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Instant(u64);

impl Instant {
    /// The first moment of a millisecond.
    pub const fn from_millis(ms: u64) -> Self {
        Instant(ms.saturating_mul(1000))
    }

    /// `us`: microseconds of the server clock.
    pub const fn from_micros(us: u64) -> Self {
        Instant(us)
    }

    pub const fn micros(self) -> u64 {
        self.0
    }

    /// The whole milliseconds that have passed: rounded down.
    pub const fn millis(self) -> u64 {
        self.0 / 1000
    }

    /// Milliseconds since an `earlier` moment; 0 where it is later.
    pub const fn millis_since(self, earlier: Instant) -> u64 {
        self.0.saturating_sub(earlier.0) / 1000
    }
}

/// How long a lease lasts: 1 to 4,294,967,295 ms (49 days).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Ttl(NonZeroU32);

impl Ttl {
    pub const MAX: Ttl = Ttl(NonZeroU32::MAX);

    /// None outside the range.
    pub fn from_millis(ms: u64) -> Option<Ttl> {
        u32::try_from(ms).ok().and_then(NonZeroU32::new).map(Ttl)
    }

    pub const fn millis(self) -> u64 {
        self.0.get() as u64
    }
}

/// How long an ACQUIRE waits in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// `BLOCK 0`.
    Forever,
    /// 1 to [`Wait::MAX_MILLIS`] milliseconds.
    Millis(u64),
}

impl Wait {
    /// About 31 years: far beyond any use, and far from overflowing a clock.
    pub const MAX_MILLIS: u64 = 1_000_000_000_000;

    /// As BLOCK says it: 0 waits for ever. None above [`Wait::MAX_MILLIS`].
    pub fn from_millis(ms: u64) -> Option<Wait> {
        match ms {
            0 => Some(Wait::Forever),
            1..=Self::MAX_MILLIS => Some(Wait::Millis(ms)),
            _ => None,
        }
    }

    /// As BLOCK says it.
    pub const fn millis(self) -> u64 {
        match self {
            Wait::Forever => 0,
            Wait::Millis(ms) => ms,
        }
    }

    /// When the wait is over, if ever.
    pub fn until(self, now: Instant) -> Option<Deadline> {
        match self {
            Wait::Forever => None,
            Wait::Millis(ms) => Some(now.after_millis(ms)),
        }
    }
}

/// The millisecond of the server clock at which something is over.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Deadline(NonZeroU64);

impl Instant {
    /// Rounded up, so that what is promised for `ms` is never over sooner.
    pub fn after_millis(self, ms: u64) -> Deadline {
        Deadline::at_millis(self.0.div_ceil(1000).saturating_add(ms))
    }
}

impl Add<Ttl> for Instant {
    type Output = Deadline;

    fn add(self, ttl: Ttl) -> Deadline {
        self.after_millis(ttl.millis())
    }
}

impl Deadline {
    /// For the codec and the schedule, which carry deadlines as plain milliseconds.
    pub fn at_millis(ms: u64) -> Deadline {
        Deadline(NonZeroU64::new(ms).unwrap_or(NonZeroU64::MIN))
    }

    pub const fn millis(self) -> u64 {
        self.0.get()
    }

    pub const fn passed(self, now: Instant) -> bool {
        now.millis() >= self.0.get()
    }

    /// Milliseconds left, rounded down; 0 once it has passed.
    pub const fn left(self, now: Instant) -> u64 {
        self.0.get().saturating_mul(1000).saturating_sub(now.micros()) / 1000
    }

    /// The later deadline that lies `ms` behind this one.
    pub fn plus_millis(self, ms: u64) -> Deadline {
        Deadline(self.0.saturating_add(ms))
    }
}

/// The number of a hold: greater than that of every grant before it on this server, and below 2^53 so that every
/// client language holds it. Resources outside refuse writes that carry a lower one than they have seen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fence(NonZeroU64);

impl Fence {
    /// 2^53 - 1; as microseconds of Unix time that is the year 2255.
    pub const MAX: u64 = (1 << 53) - 1;

    /// A fence that came from outside (an argument, stored bytes). None outside 1..=[`Fence::MAX`].
    pub fn from_outside(number: u64) -> Option<Fence> {
        NonZeroU64::new(number).filter(|n| n.get() <= Self::MAX).map(Fence)
    }

    pub const fn get(self) -> u64 {
        self.0.get()
    }
}

/// Who holds or waits: 1 to 255 bytes, compared whole, never parsed. A token proves ownership, so Debug shows only how
/// it begins. One that [`Token::of_random`] makes takes no allocation of its own.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Token(Inline<30>);

impl Token {
    pub const MAX_LEN: usize = 255;

    /// Random bytes as DLOCK.TOKEN and the Rust client spell them: 27 characters of URL-safe base64 without padding.
    pub fn of_random(random: [u8; 20]) -> Token {
        const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_";
        let spelled: [u8; 27] = std::array::from_fn(|at| {
            let (byte, bit) = (at * 6 / 8, at * 6 % 8);
            let next = random.get(byte + 1).copied().unwrap_or(0);
            let two = u16::from_be_bytes([random[byte], next]);
            DIGITS[usize::from(two >> (10 - bit)) & 63]
        });
        Token(spelled[..].into())
    }

    /// None outside 1..=255 bytes.
    pub fn new(bytes: &[u8]) -> Option<Token> {
        Self::fits(bytes).then(|| Token(bytes.into()))
    }

    /// Whether these bytes can be a token.
    pub fn fits(bytes: &[u8]) -> bool {
        (1..=Self::MAX_LEN).contains(&bytes.len())
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    /// Bytes on the heap besides the token itself.
    pub fn heap_size(&self) -> usize {
        self.0.heap_size()
    }
}

impl std::borrow::Borrow<[u8]> for Token {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

impl PartialEq<[u8]> for Token {
    fn eq(&self, other: &[u8]) -> bool {
        steps::one();
        self.as_bytes() == other
    }
}

impl fmt::Debug for Token {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Token({})", prefix(self.as_bytes()))
    }
}

/// How a token is shown to people: its first characters, the rest left out.
pub fn prefix(token: &[u8]) -> String {
    let shown = token.get(..6).unwrap_or(token).escape_ascii();
    if token.len() > 6 { format!("{shown}..") } else { shown.to_string() }
}

/// A connection as the server numbers it; means nothing after a restart or on another server.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ClientId(pub u64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_never_over_before_its_ttl() {
        let granted = Instant::from_micros(10_900);
        let deadline = granted + Ttl::from_millis(5).unwrap();
        assert!(!deadline.passed(Instant::from_micros(15_899)));
        assert!(deadline.passed(Instant::from_micros(16_000)));
        assert_eq!(deadline.left(granted), 5);
    }

    #[test]
    fn random_bytes_are_spelled_in_27_url_safe_characters() {
        assert_eq!(Token::of_random([0; 20]), *b"AAAAAAAAAAAAAAAAAAAAAAAAAAA".as_slice());
        assert_eq!(Token::of_random([0xff; 20]), *b"__________________________8".as_slice());
        assert_eq!(Token::of_random(*b"the quick brown fox."), *b"dGhlIHF1aWNrIGJyb3duIGZveC4".as_slice());
        assert_eq!(Token::of_random([1; 20]).heap_size(), 0);
    }

    #[test]
    fn a_token_shows_only_how_it_begins() {
        assert_eq!(format!("{:?}", Token::new(b"secret-and-long").unwrap()), "Token(secret..)");
        assert_eq!(format!("{:?}", Token::new(b"\x00a\n").unwrap()), "Token(\\x00a\\n)");
        assert!(Token::new(b"").is_none() && Token::new(&[0; 256]).is_none());
    }
}
