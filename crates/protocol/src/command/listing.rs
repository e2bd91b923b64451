//! LIST and LOG.

use std::num::NonZeroU32;

use super::words::{Args, decimal, most, number, words};
use crate::error::Misuse;
use crate::request::MAX_PATTERN;

/// `DLOCK.LIST cursor [MATCH pattern] [COUNT n] [WAITED]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct List<'a> {
    /// The cursor of the last reply; 0 starts an iteration.
    pub cursor: u64,
    /// A glob-style pattern, as for KEYS. `None` matches every key.
    pub pattern: Option<&'a [u8]>,
    /// The approximate number of locks to examine. `None` stands for [`List::LOOKED_AT`].
    pub count: Option<NonZeroU32>,
    /// Whether to return only locks that have waiters.
    pub waited: bool,
}

impl<'a> List<'a> {
    /// The default of COUNT.
    pub const LOOKED_AT: u32 = 100;
    /// The maximum number of locks that a call examines, whatever its COUNT.
    pub const MOST_LOOKED_AT: u32 = 250;
    /// The maximum length of a pattern in bytes: the work of a match grows with it.
    pub const MAX_PATTERN: usize = MAX_PATTERN;

    pub fn parse(args: &[&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let cursor = number(args.next()?).ok_or(Misuse::Range("cursor", 0, u64::MAX))?;
        let mut list = List { cursor, pattern: None, count: None, waited: false };
        while let Some(option) = args.option() {
            match () {
                _ if option.is("MATCH") && list.pattern.is_none() => {
                    let pattern = args.value("MATCH")?;
                    let fits = pattern.len() <= Self::MAX_PATTERN;
                    list.pattern = Some(fits.then_some(pattern).ok_or(Misuse::PatternLength)?);
                }
                _ if option.is("COUNT") && list.count.is_none() => list.count = Some(args.count("COUNT")?),
                _ if option.is("WAITED") && !list.waited => list.waited = true,
                _ if option.is("MATCH") => return Err(Misuse::Twice("MATCH")),
                _ if option.is("COUNT") => return Err(Misuse::Twice("COUNT")),
                _ if option.is("WAITED") => return Err(Misuse::Twice("WAITED")),
                _ => return Err(option.unknown()),
            }
        }
        Ok(list)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.LIST"]);
        out.push(decimal(self.cursor));
        out.extend(self.pattern.iter().flat_map(|pattern| [b"MATCH".to_vec(), pattern.to_vec()]));
        out.extend(most(self.count));
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
        let (mut count, mut key, mut first) = (None, None, true);
        while let Some(option) = args.option() {
            match () {
                _ if option.is("RESET") && first => return args.end(Log::Reset),
                _ if option.is("COUNT") && count.is_none() => count = Some(args.count("COUNT")?),
                _ if option.is("KEY") && key.is_none() => key = Some(args.value("KEY")?),
                _ if option.is("COUNT") => return Err(Misuse::Twice("COUNT")),
                _ if option.is("KEY") => return Err(Misuse::Twice("KEY")),
                _ => return Err(option.unknown()),
            }
            first = false;
        }
        Ok(Log::Read { count, key })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        match *self {
            Log::Read { count, key } => {
                let mut out = words(&[b"DLOCK.LOG"]);
                out.extend(most(count));
                out.extend(key.iter().flat_map(|key| [b"KEY".to_vec(), key.to_vec()]));
                out
            }
            Log::Reset => words(&[b"DLOCK.LOG", b"RESET"]),
        }
    }
}
