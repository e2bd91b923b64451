//! Each command, with its parser beside its writer.
//!
//! Parsing is strict: arguments that are not exactly one valid command are a [`Misuse`].

use std::num::NonZeroU32;

use crate::error::{Error, Misuse};
use crate::names::TokenRef;
pub use crate::request::CancelTarget;
use crate::request::MAX_PATTERN;
use crate::units::{Fence, Ttl};

mod acquire;
mod release;
pub mod table;
mod words;

pub use acquire::{Acquire, Queue};
pub use release::Release;
pub use table::{Doc, TABLE};
use words::{Args, Given, count_option, decimal, number, words};

/// Defines a command with a key and further arguments. Each argument has an expression that parses it and one
/// that writes it. The bytes of the arguments have the lifetime `'a`. A command with a field that is a slice
/// of the argument list (GUARD, FENCED) has a second lifetime, that of the list.
macro_rules! command {
    (
        $(#[$doc:meta])*
        $command:ident $(<$list:lifetime>)? = $name:ident |$args:ident $(, $limit:ident: $of:ty)?| {
            $($(#[$about:meta])* $field:ident: $kind:ty = $read:expr => $write:expr,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $command<$($list,)? 'a> {
            pub key: &'a [u8],
            $($(#[$about])* pub $field: $kind,)*
        }

        impl<$($list,)? 'a> $command<$($list,)? 'a> {
            pub fn parse(args: &$($list)? [&'a [u8]] $(, $limit: $of)?) -> Result<Self, Misuse> {
                let mut $args = Args::new(args);
                let key = $args.next()?;
                $(let $field = $read;)*
                $args.end($command { key, $($field),* })
            }

            pub fn to_args(&self) -> Vec<Vec<u8>> {
                let mut out = words(&[table::$name.name.as_bytes(), self.key]);
                $(
                    let $field = self.$field;
                    out.extend($write);
                )*
                out
            }
        }
    };
}

command! {
    /// `DLOCK.EXTEND key token <ttl | MAX>`
    Extend = EXTEND |args, max_ttl: Ttl| {
        token: TokenRef<'a> = args.token()? => words(&[token.as_bytes()]),
        ttl: Ttl = args.ttl(max_ttl)? => [decimal(ttl.millis())],
    }
}

command! {
    /// `DLOCK.CONFIRM key token fence <ttl | MAX>`
    Confirm = CONFIRM |args, max_ttl: Ttl| {
        token: TokenRef<'a> = args.token()? => words(&[token.as_bytes()]),
        fence: Fence = args.fence()? => [decimal(fence.get())],
        ttl: Ttl = args.ttl(max_ttl)? => [decimal(ttl.millis())],
    }
}

command! {
    /// `DLOCK.HOLDS key token`
    Holds = HOLDS |args| {
        token: TokenRef<'a> = args.token()? => words(&[token.as_bytes()]),
    }
}

command! {
    /// `DLOCK.PTTL key [token]`
    Pttl = PTTL |args| {
        token: Option<TokenRef<'a>> = if args.is_empty() { None } else { Some(args.token()?) }
            => token.map(|token| token.as_bytes().to_vec()),
    }
}

command! {
    /// `DLOCK.WAITERS key [COUNT n]`
    Waiters = WAITERS |args| {
        /// The maximum number of waiters in the reply: see [`Inspect::shown`].
        count: Option<NonZeroU32> = args.optional_count()? => count_option(count),
    }
}

command! {
    /// `DLOCK.INSPECT key [COUNT n]`
    Inspect = INSPECT |args| {
        /// The maximum number of holders in the reply: see [`Inspect::shown`].
        count: Option<NonZeroU32> = args.optional_count()? => count_option(count),
    }
}

impl Inspect<'_> {
    /// The maximum number of holders or waiters in a reply. Writing 100,000 of them would stop the server for
    /// 60 ms.
    pub const MAX_SHOWN: usize = 1000;

    /// Returns the maximum number of holders or waiters in a reply to a command with this COUNT.
    pub fn shown(count: Option<NonZeroU32>) -> usize {
        count.map_or(Self::MAX_SHOWN, |n| Self::MAX_SHOWN.min(n.get() as usize))
    }
}

command! {
    /// `DLOCK.CANCEL key token` or `DLOCK.CANCEL key CLIENT id`
    Cancel = CANCEL |args| {
        waiters: CancelTarget<'a> = args.cancel_target()? => match waiters {
            CancelTarget::Token(token) => words(&[token.as_bytes()]),
            CancelTarget::Client(id) => vec![b"CLIENT".to_vec(), decimal(id)],
        },
    }
}

command! {
    /// `DLOCK.GUARD key token command [arg ...]`
    Guard<'s> = GUARD |args| {
        token: TokenRef<'a> = args.token()? => words(&[token.as_bytes()]),
        /// Name and arguments of the command to run.
        command: &'s [&'a [u8]] = args.command()? => words(command),
    }
}

command! {
    /// `DLOCK.FENCED gate fence command [arg ...]`. The key is the gate, whose value is
    /// the greatest fence that it has seen.
    Fenced<'s> = FENCED |args| {
        fence: Fence = args.fence()? => [decimal(fence.get())],
        /// Name and arguments of the command to run.
        command: &'s [&'a [u8]] = args.command()? => words(command),
    }
}

impl Fenced<'_, '_> {
    /// Returns whether the gate must be raised to this fence. `gate` is the gate's value, `None` if the key
    /// does not exist. Fails if the gate has seen a greater fence, or if its value is no number.
    pub fn raises(&self, gate: Option<&[u8]>) -> Result<bool, Error> {
        let Some(text) = gate else { return Ok(true) };
        match number(text).ok_or(Error::NotAGate)? {
            greatest if greatest > self.fence.get() => Err(Error::StaleFence(greatest)),
            seen => Ok(seen < self.fence.get()),
        }
    }
}

/// `DLOCK.LIST cursor [MATCH pattern] [COUNT n] [WAITED]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a> {
    /// The cursor of the last reply; 0 starts an iteration.
    pub cursor: u64,
    /// A glob-style pattern, as for KEYS. `None` matches every key.
    pub pattern: Option<&'a [u8]>,
    /// The approximate number of locks to examine. `None` stands for [`List::DEFAULT_COUNT`].
    pub count: Option<NonZeroU32>,
    /// Whether to return only locks that have waiters.
    pub waited: bool,
}

impl<'a> List<'a> {
    /// The default of COUNT.
    pub const DEFAULT_COUNT: u32 = 100;
    /// The maximum number of locks that a call examines, whatever its COUNT.
    pub const MAX_EXAMINED: u32 = 250;

    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let cursor = number(args.next()?).ok_or(Misuse::Range("cursor", 0, u64::MAX))?;
        let mut list = List { cursor, pattern: None, count: None, waited: false };
        let mut given = Given::default();
        while let Some(option) = args.option() {
            match () {
                _ if given.accept(&option, "MATCH")? => {
                    let pattern = Some(args.value("MATCH")?).filter(|pattern| pattern.len() <= MAX_PATTERN);
                    list.pattern = Some(pattern.ok_or(Misuse::PatternLength)?);
                }
                _ if given.accept(&option, "COUNT")? => list.count = Some(args.count("COUNT")?),
                _ if given.accept(&option, "WAITED")? => list.waited = true,
                _ => return Err(option.unknown()),
            }
        }
        Ok(list)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.LIST"]);
        out.push(decimal(self.cursor));
        out.extend(self.pattern.iter().flat_map(|pattern| [b"MATCH".to_vec(), pattern.to_vec()]));
        out.extend(count_option(self.count));
        out.extend(self.waited.then(|| b"WAITED".to_vec()));
        out
    }
}

/// `DLOCK.LOG [COUNT n] [KEY key]` or `DLOCK.LOG RESET`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Log<'a> {
    /// The newest `count` entries, or all. With `key`, only entries about that key.
    Read {
        count: Option<NonZeroU32>,
        key: Option<&'a [u8]>,
    },
    Reset,
}

impl<'a> Log<'a> {
    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let (mut count, mut key, mut given) = (None, None, Given::default());
        while let Some(option) = args.option() {
            match () {
                _ if option.is("RESET") && given.is_empty() => return args.end(Log::Reset),
                _ if given.accept(&option, "COUNT")? => count = Some(args.count("COUNT")?),
                _ if given.accept(&option, "KEY")? => key = Some(args.value("KEY")?),
                _ => return Err(option.unknown()),
            }
        }
        Ok(Log::Read { count, key })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        match *self {
            Log::Read { count, key } => {
                let mut out = words(&[b"DLOCK.LOG"]);
                out.extend(count_option(count));
                out.extend(key.iter().flat_map(|key| [b"KEY".to_vec(), key.to_vec()]));
                out
            }
            Log::Reset => words(&[b"DLOCK.LOG", b"RESET"]),
        }
    }
}

/// Parses a command with a key as its only argument: `DLOCK.BREAK key`.
pub fn only_key<'a>(args: &[&'a [u8]]) -> Result<&'a [u8], Misuse> {
    let mut args = Args::new(args);
    let key = args.next()?;
    args.end(key)
}

/// Parses a command without arguments: `DLOCK.TOKEN`, `DLOCK.HELP`.
pub fn no_arguments(args: &[&[u8]]) -> Result<(), Misuse> {
    Args::new(args).end(())
}
