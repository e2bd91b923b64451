//! Each command, with its parser beside its writer. No other module spells a command.
//!
//! Parsing is strict: arguments that are not exactly one valid command are a [`Misuse`].

use std::num::NonZeroU32;

use crate::error::Misuse;
use crate::names::TokenRef;
pub use crate::request::CancelTarget;
use crate::request::ReleaseCount;
use crate::units::{Fence, Ttl};

mod acquire;
mod guarded;
mod listing;
pub mod table;
mod words;

pub use acquire::{Acquire, Queue};
pub use guarded::{Fenced, Guard};
pub use listing::{List, Log};
pub use table::{Doc, TABLE};
use words::{Args, decimal, most, words};

/// Defines a command with a key and further arguments. Each argument has an expression that parses it and one
/// that writes it.
macro_rules! command {
    (
        $(#[$doc:meta])* $command:ident = $name:ident |$args:ident $(, $limit:ident: $of:ty)?| {
            $($(#[$about:meta])* $field:ident: $kind:ty = $read:expr => $write:expr,)*
        }
    ) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub struct $command<'a> {
            pub key: &'a [u8],
            $($(#[$about])* pub $field: $kind,)*
        }

        impl<'a> $command<'a> {
            pub fn parse(args: &[&'a [u8]] $(, $limit: $of)?) -> Result<Self, Misuse> {
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
    /// `DLOCK.RELEASE key token [ALL | DEPTH n]`
    Release = RELEASE |args| {
        token: TokenRef<'a> = args.token()? => words(&[token.as_bytes()]),
        count: ReleaseCount = args.release_count()? => match count {
            ReleaseCount::One => Vec::new(),
            ReleaseCount::All => words(&[b"ALL"]),
            ReleaseCount::Above(n) => vec![b"DEPTH".to_vec(), decimal(n.into())],
        },
    }
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
        count: Option<NonZeroU32> = args.most()? => most(count),
    }
}

command! {
    /// `DLOCK.INSPECT key [COUNT n]`
    Inspect = INSPECT |args| {
        /// The maximum number of holders in the reply: see [`Inspect::shown`].
        count: Option<NonZeroU32> = args.most()? => most(count),
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
        who: CancelTarget<'a> = args.cancel_target()? => match who {
            CancelTarget::Token(token) => words(&[token.as_bytes()]),
            CancelTarget::Client(id) => vec![b"CLIENT".to_vec(), decimal(id)],
        },
    }
}

/// Parses a command whose only argument is a key: `DLOCK.BREAK key`.
pub fn only_key<'a>(args: &[&'a [u8]]) -> Result<&'a [u8], Misuse> {
    let mut args = Args::new(args);
    let key = args.next()?;
    args.end(key)
}

/// Parses a command without arguments: `DLOCK.TOKEN`, `DLOCK.HELP`.
pub fn no_arguments(args: &[&[u8]]) -> Result<(), Misuse> {
    Args::new(args).end(())
}
