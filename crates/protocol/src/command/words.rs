//! Parses the arguments of a command one after the other. The functions at the end write arguments.

use std::num::NonZeroU32;

use smallvec::SmallVec;

use crate::error::Misuse;
use crate::event::NotifyRef;
use crate::names::TokenRef;
use crate::request::{CancelTarget, MAX_COUNT};
use crate::units::{Fence, Ttl};

/// The arguments that are not parsed yet.
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

    /// Parses `<ttl | MAX>`: MAX stands for `max`, the longest lease.
    pub fn ttl(&mut self, max: Ttl) -> Result<Ttl, Misuse> {
        match self.next()? {
            word if Word(word).is("MAX") => Ok(max),
            ms => number(ms).and_then(Ttl::from_millis).filter(|ttl| *ttl <= max).ok_or(Misuse::Ttl(max)),
        }
    }

    /// Returns the remaining arguments as a command, which must not be empty.
    pub fn command(&mut self) -> Result<&'s [&'a [u8]], Misuse> {
        Some(std::mem::take(&mut self.0)).filter(|rest| !rest.is_empty()).ok_or(Misuse::Arguments)
    }

    /// Returns the next argument, which should be the name of an option.
    pub fn option(&mut self) -> Option<Word<'a>> {
        self.take().map(Word)
    }

    /// Returns the value that follows an option.
    pub fn value(&mut self, option: &'static str) -> Result<&'a [u8], Misuse> {
        self.take().ok_or(Misuse::NoValue(option))
    }

    pub fn count(&mut self, option: &'static str) -> Result<NonZeroU32, Misuse> {
        let n = within(self.value(option)?, option, 1, MAX_COUNT.into())?;
        Ok(NonZeroU32::new(n as u32).unwrap_or(NonZeroU32::MIN))
    }

    /// Parses the channel and the message after NOTIFY or SNOTIFY.
    pub fn notify(&mut self, option: &'static str) -> Result<NotifyRef<'a>, Misuse> {
        let (channel, message) = (self.value(option)?, self.value(option)?);
        NotifyRef::new(channel, message).ok_or(Misuse::NotifyLength)
    }

    pub fn fence(&mut self) -> Result<Fence, Misuse> {
        number(self.next()?).and_then(Fence::from_outside).ok_or(Misuse::Range("fence", 1, Fence::MAX))
    }

    /// Parses `[COUNT n]`.
    pub fn optional_count(&mut self) -> Result<Option<NonZeroU32>, Misuse> {
        let (mut count, mut given) = (None, Given::default());
        while let Some(option) = self.option() {
            if !given.accept(&option, "COUNT")? {
                return Err(option.unknown());
            }
            count = Some(self.count("COUNT")?);
        }
        Ok(count)
    }

    /// Parses `token | CLIENT id`.
    pub fn cancel_target(&mut self) -> Result<CancelTarget<'a>, Misuse> {
        match self.0 {
            [] | [_] => self.token().map(CancelTarget::Token),
            [option, ..] if !Word(option).is("CLIENT") => Err(Word(option).unknown()),
            [_, id, ..] => {
                self.0 = &self.0[2..];
                within(id, "CLIENT id", 0, i64::MAX as u64).map(CancelTarget::Client)
            }
        }
    }

    /// Returns `parsed` if no argument remains.
    pub fn end<T>(self, parsed: T) -> Result<T, Misuse> {
        if self.0.is_empty() { Ok(parsed) } else { Err(Misuse::Arguments) }
    }

    fn take(&mut self) -> Option<&'a [u8]> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(first)
    }
}

/// An argument in the place of an option's name.
pub(super) struct Word<'a>(&'a [u8]);

impl Word<'_> {
    pub fn is(&self, name: &str) -> bool {
        self.0.eq_ignore_ascii_case(name.as_bytes())
    }

    /// The error for an unknown option. Repeats the word only if it is short and alphabetic, because other
    /// words may be tokens.
    pub fn unknown(&self) -> Misuse {
        let harmless = self.0.len() <= 16 && self.0.iter().all(u8::is_ascii_alphabetic);
        Misuse::Unknown(if harmless { String::from_utf8_lossy(self.0).into_owned() } else { "..".into() })
    }
}

/// The names of the options that were parsed so far.
#[derive(Default)]
pub(super) struct Given(SmallVec<[&'static str; 4]>);

impl Given {
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Accepts an option if it has this name: records the name and returns true. Fails if the option was
    /// given before.
    pub fn accept(&mut self, option: &Word<'_>, name: &'static str) -> Result<bool, Misuse> {
        self.accept_unless(option, name, &[name], Misuse::Twice(name))
    }

    /// Like [`Given::accept`], for one of two options that exclude each other. Fails if either was given
    /// before.
    pub fn accept_one(
        &mut self,
        option: &Word<'_>,
        name: &'static str,
        [one, other]: [&'static str; 2],
    ) -> Result<bool, Misuse> {
        self.accept_unless(option, name, &[one, other], Misuse::Exclusive(one, other))
    }

    /// Like [`Given::accept`]. Fails with `error` if one of `excluded` was given before.
    fn accept_unless(
        &mut self,
        option: &Word<'_>,
        name: &'static str,
        excluded: &[&str],
        error: Misuse,
    ) -> Result<bool, Misuse> {
        if !option.is(name) {
            return Ok(false);
        }
        if self.0.iter().any(|given| excluded.contains(given)) {
            return Err(error);
        }
        self.0.push(name);
        Ok(true)
    }
}

/// Parses a number in the range `least..=greatest`.
pub(super) fn within(bytes: &[u8], what: &'static str, least: u64, greatest: u64) -> Result<u64, Misuse> {
    let number = number(bytes).filter(|n| (least..=greatest).contains(n));
    number.ok_or(Misuse::Range(what, least, greatest))
}

/// Parses a whole number in decimal digits, without sign, blanks or leading zeros. `None` if it overflows 64
/// bits.
pub(super) fn number(bytes: &[u8]) -> Option<u64> {
    if bytes.is_empty() || bytes.len() > 20 || (bytes[0] == b'0' && bytes.len() > 1) {
        return None;
    }
    bytes.iter().try_fold(0u64, |n, digit| {
        let digit = digit.is_ascii_digit().then(|| u64::from(digit - b'0'))?;
        n.checked_mul(10)?.checked_add(digit)
    })
}

/// Returns owned copies of these arguments.
pub(super) fn words(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

pub(super) fn decimal(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}

/// Writes `[COUNT n]`.
pub(super) fn count_option(count: Option<NonZeroU32>) -> Vec<Vec<u8>> {
    count.map_or_else(Vec::new, |n| vec![b"COUNT".to_vec(), decimal(n.get().into())])
}
