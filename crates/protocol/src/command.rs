//! Every command, parsed and written side by side. Nobody else spells them.
//!
//! Parsing is strict and total: whatever does not read as exactly one command is a [`Misuse`], and nothing is
//! guessed.

use std::num::NonZeroU32;

use crate::error::Misuse;
use crate::names::TokenRef;
use crate::request::{MAX_COUNT, ReleaseCount};
use crate::units::{Fence, Ttl};

mod acquire;
pub mod table;
mod words;

pub use acquire::Acquire;
pub use table::{Doc, TABLE};
use words::{Args, number};

bitflags::bitflags! {
    /// Which options were given already.
    #[derive(Clone, Copy)]
    struct Given: u8 {
        const MODE = 1;
        const COUNT = 2;
        const BLOCK = 4;
        const EPHEMERAL = 8;
        const DELAY = 16;
        const LABEL = 32;
    }
}

impl Given {
    fn once(&mut self, option: Given, what: &'static str) -> Result<(), Misuse> {
        if self.intersects(option) {
            return Err(Misuse::Twice(what));
        }
        self.insert(option);
        Ok(())
    }
}

/// `DLOCK.RELEASE key token [ALL | DEPTH n]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release<'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
    pub count: ReleaseCount,
}

impl<'a> Release<'a> {
    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let (key, token, mut count) = (args.next()?, args.token()?, ReleaseCount::One);
        let mut given = Given::empty();
        while let Some(option) = args.option() {
            if option.is("ALL") {
                given.once(Given::COUNT, "ALL or DEPTH")?;
                count = ReleaseCount::All;
            } else if option.is("DEPTH") {
                given.once(Given::COUNT, "ALL or DEPTH")?;
                let n = number(args.value("DEPTH")?).filter(|n| *n <= u64::from(MAX_COUNT));
                count = ReleaseCount::Above(n.ok_or(Misuse::Range("DEPTH n", 0, MAX_COUNT.into()))? as u32);
            } else {
                return Err(option.unknown());
            }
        }
        Ok(Release { key, token, count })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.RELEASE", self.key, self.token.as_bytes()]);
        match self.count {
            ReleaseCount::One => {}
            ReleaseCount::All => out.push(b"ALL".to_vec()),
            ReleaseCount::Above(n) => out.extend([b"DEPTH".to_vec(), decimal(n.into())]),
        }
        out
    }
}

/// `DLOCK.EXTEND key token ttl`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend<'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
    pub ttl: Ttl,
}

impl<'a> Extend<'a> {
    pub fn parse(args: &[&'a [u8]], max_ttl: Ttl) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let parsed = Extend { key: args.next()?, token: args.token()?, ttl: args.ttl(max_ttl)? };
        args.end(parsed)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.EXTEND", self.key, self.token.as_bytes()]);
        out.push(decimal(self.ttl.millis()));
        out
    }
}

/// `DLOCK.CONFIRM key token fence ttl`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Confirm<'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
    pub fence: Fence,
    pub ttl: Ttl,
}

impl<'a> Confirm<'a> {
    pub fn parse(args: &[&'a [u8]], max_ttl: Ttl) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let (key, token) = (args.next()?, args.token()?);
        let fence = number(args.next()?).and_then(Fence::from_outside);
        let fence = fence.ok_or(Misuse::Range("fence", 1, Fence::MAX))?;
        let parsed = Confirm { key, token, fence, ttl: args.ttl(max_ttl)? };
        args.end(parsed)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.CONFIRM", self.key, self.token.as_bytes()]);
        out.extend([decimal(self.fence.get()), decimal(self.ttl.millis())]);
        out
    }
}

/// A key and a token, as `DLOCK.HOLDS key token` takes them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Holds<'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
}

impl<'a> Holds<'a> {
    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let parsed = Holds { key: args.next()?, token: args.token()? };
        args.end(parsed)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        words(&[b"DLOCK.HOLDS", self.key, self.token.as_bytes()])
    }
}

/// `DLOCK.PTTL key [token]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pttl<'a> {
    pub key: &'a [u8],
    pub token: Option<TokenRef<'a>>,
}

impl<'a> Pttl<'a> {
    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let key = args.next()?;
        let token = if args.is_empty() { None } else { Some(args.token()?) };
        args.end(Pttl { key, token })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.PTTL", self.key]);
        out.extend(self.token.map(|token| token.as_bytes().to_vec()));
        out
    }
}

/// `DLOCK.WAITERS key [COUNT n]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Waiters<'a> {
    pub key: &'a [u8],
    /// None for all of them.
    pub count: Option<NonZeroU32>,
}

impl<'a> Waiters<'a> {
    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        key_and_count(args).map(|(key, count)| Waiters { key, count })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        with_count(words(&[b"DLOCK.WAITERS", self.key]), self.count)
    }
}

/// `DLOCK.INSPECT key [COUNT n]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inspect<'a> {
    pub key: &'a [u8],
    /// The most holders that are shown; None: [`Inspect::SHOWN`].
    pub count: Option<NonZeroU32>,
}

impl<'a> Inspect<'a> {
    /// So many holders are shown unless it says otherwise.
    pub const SHOWN: usize = 1000;

    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        key_and_count(args).map(|(key, count)| Inspect { key, count })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        with_count(words(&[b"DLOCK.INSPECT", self.key]), self.count)
    }
}

fn key_and_count<'a>(args: &[&'a [u8]]) -> Result<(&'a [u8], Option<NonZeroU32>), Misuse> {
    let mut args = Args::new(args);
    let (key, mut count) = (args.next()?, None);
    while let Some(option) = args.option() {
        if !option.is("COUNT") {
            return Err(option.unknown());
        }
        if count.is_some() {
            return Err(Misuse::Twice("COUNT"));
        }
        count = Some(args.count("COUNT")?);
    }
    Ok((key, count))
}

fn with_count(mut out: Vec<Vec<u8>>, count: Option<NonZeroU32>) -> Vec<Vec<u8>> {
    if let Some(n) = count {
        out.extend([b"COUNT".to_vec(), decimal(n.get().into())]);
    }
    out
}

/// `DLOCK.CANCEL key token` or `DLOCK.CANCEL key CLIENT id`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cancel<'a> {
    pub key: &'a [u8],
    pub who: Whom<'a>,
}

/// Whose waiters CANCEL takes out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Whom<'a> {
    Token(TokenRef<'a>),
    Client(u64),
}

impl<'a> Cancel<'a> {
    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let (mut rest, all) = (Args::new(args), args.len());
        let key = rest.next()?;
        if all < 3 {
            let parsed = Cancel { key, who: Whom::Token(rest.token()?) };
            return rest.end(parsed);
        }
        match rest.option() {
            Some(option) if option.is("CLIENT") => {
                let id = number(rest.value("CLIENT")?).filter(|id| *id <= i64::MAX as u64);
                let id = id.ok_or(Misuse::Range("CLIENT id", 0, i64::MAX as u64))?;
                rest.end(Cancel { key, who: Whom::Client(id) })
            }
            Some(option) => Err(option.unknown()),
            None => Err(Misuse::Arguments),
        }
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.CANCEL", self.key]);
        match self.who {
            Whom::Token(token) => out.push(token.as_bytes().to_vec()),
            Whom::Client(id) => out.extend([b"CLIENT".to_vec(), decimal(id)]),
        }
        out
    }
}

/// A command that takes one key and nothing else: `DLOCK.BREAK key`.
pub fn only_key<'a>(args: &[&'a [u8]]) -> Result<&'a [u8], Misuse> {
    let mut args = Args::new(args);
    let key = args.next()?;
    args.end(key)
}

/// A command that takes nothing: `DLOCK.TOKEN`, `DLOCK.HELP`.
pub fn no_arguments(args: &[&[u8]]) -> Result<(), Misuse> {
    Args::new(args).end(())
}

fn words(words: &[&[u8]]) -> Vec<Vec<u8>> {
    words.iter().map(|word| word.to_vec()).collect()
}

fn decimal(number: u64) -> Vec<u8> {
    number.to_string().into_bytes()
}
