//! Arguments one by one.

use std::num::NonZeroU32;

use crate::error::Misuse;
use crate::names::TokenRef;
use crate::request::MAX_COUNT;
use crate::units::Ttl;

/// What is left of a command's arguments.
pub(super) struct Args<'s, 'a>(&'s [&'a [u8]]);

impl<'s, 'a> Args<'s, 'a> {
    pub fn new(args: &'s [&'a [u8]]) -> Self {
        Args(args)
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    pub fn next(&mut self) -> Result<&'a [u8], Misuse> {
        self.take().ok_or(Misuse::Arguments)
    }

    pub fn token(&mut self) -> Result<TokenRef<'a>, Misuse> {
        TokenRef::new(self.next()?).ok_or(Misuse::TokenLength)
    }

    pub fn ttl(&mut self, max: Ttl) -> Result<Ttl, Misuse> {
        number(self.next()?).and_then(Ttl::from_millis).filter(|ttl| *ttl <= max).ok_or(Misuse::Ttl(max))
    }

    pub fn option(&mut self) -> Option<Word<'a>> {
        self.take().map(Word)
    }

    /// What stands behind an option.
    pub fn value(&mut self, option: &'static str) -> Result<&'a [u8], Misuse> {
        self.take().ok_or(Misuse::NoValue(option))
    }

    pub fn count(&mut self, option: &'static str) -> Result<NonZeroU32, Misuse> {
        let n = number(self.value(option)?).filter(|n| *n <= u64::from(MAX_COUNT));
        n.and_then(|n| NonZeroU32::new(n as u32)).ok_or(Misuse::Range(option, 1, MAX_COUNT.into()))
    }

    /// Nothing may be left.
    pub fn end<T>(self, parsed: T) -> Result<T, Misuse> {
        if self.0.is_empty() { Ok(parsed) } else { Err(Misuse::Arguments) }
    }

    fn take(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

/// A word where an option may stand.
pub(super) struct Word<'a>(&'a [u8]);

impl Word<'_> {
    pub fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name.as_bytes())
    }

    /// Shown as far as it is harmless to show: it may be anything, a token too.
    pub fn unknown(&self) -> Misuse {
        let harmless = self.0.len() <= 16 && self.0.iter().all(u8::is_ascii_alphabetic);
        Misuse::Unknown(if harmless { String::from_utf8_lossy(self.0).into_owned() } else { "..".into() })
    }
}

/// A whole number in decimal digits as a program writes it: no sign, no blank, no leading zero, no overflow.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 20 || (bytes[0] == b'0' && bytes.len() > 1) {
        return None;
    }
    bytes.iter().try_fold(0u64, |n, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}
