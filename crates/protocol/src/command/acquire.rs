//! ACQUIRE, the command with the many options.

use super::words::{Args, number};
use super::{Given, decimal, words};
use crate::error::Misuse;
use crate::request::{Count, Mode};
use crate::units::{Ttl, Wait};

/// `DLOCK.ACQUIRE key token ttl [SHARED | PERMITS n] [REENTRANT | DEPTH n] [BLOCK ms] [EPHEMERAL] [DELAY ms] [LABEL text]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    pub key: &'a [u8],
    pub token: &'a [u8],
    pub ttl: Ttl,
    pub mode: Mode,
    pub count: Count,
    /// None tries once.
    pub block: Option<Wait>,
    pub ephemeral: bool,
    /// ms; 0 for none.
    pub delay: u32,
    /// Empty for none.
    pub label: &'a [u8],
}

/// The longest label, in bytes.
pub const MAX_LABEL: usize = 255;

impl<'a> Acquire<'a> {
    /// An exclusive try without options.
    pub fn new(key: &'a [u8], token: &'a [u8], ttl: Ttl) -> Self {
        let (mode, count, block) = (Mode::Exclusive, Count::Keep, None);
        Acquire { key, token, ttl, mode, count, block, ephemeral: false, delay: 0, label: b"" }
    }

    pub fn parse(args: &[&'a [u8]], max_ttl: Ttl) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let mut parsed = Acquire::new(args.next()?, args.token()?, args.ttl(max_ttl)?);
        let mut given = Given::empty();
        while let Some(option) = args.option() {
            match () {
                _ if option.is("SHARED") => {
                    given.once(Given::MODE, "SHARED or PERMITS")?;
                    parsed.mode = Mode::Shared;
                }
                _ if option.is("PERMITS") => {
                    given.once(Given::MODE, "SHARED or PERMITS")?;
                    parsed.mode = Mode::Permits(args.count("PERMITS")?);
                }
                _ if option.is("REENTRANT") => {
                    given.once(Given::COUNT, "REENTRANT or DEPTH")?;
                    parsed.count = Count::OneMore;
                }
                _ if option.is("DEPTH") => {
                    given.once(Given::COUNT, "REENTRANT or DEPTH")?;
                    parsed.count = Count::AtLeast(args.count("DEPTH")?);
                }
                _ if option.is("BLOCK") => {
                    given.once(Given::BLOCK, "BLOCK")?;
                    let ms = number(args.value("BLOCK")?).and_then(Wait::from_millis);
                    parsed.block = Some(ms.ok_or(Misuse::Range("BLOCK ms", 0, Wait::MAX_MILLIS))?);
                }
                _ if option.is("EPHEMERAL") => {
                    given.once(Given::EPHEMERAL, "EPHEMERAL")?;
                    parsed.ephemeral = true;
                }
                _ if option.is("DELAY") => {
                    given.once(Given::DELAY, "DELAY")?;
                    let ms = number(args.value("DELAY")?).filter(|ms| *ms <= max_ttl.millis());
                    parsed.delay = ms.ok_or(Misuse::Range("DELAY ms", 0, max_ttl.millis()))? as u32;
                }
                _ if option.is("LABEL") => {
                    given.once(Given::LABEL, "LABEL")?;
                    parsed.label = args.value("LABEL")?;
                    if parsed.label.len() > MAX_LABEL {
                        return Err(Misuse::LabelLength);
                    }
                }
                _ => return Err(option.unknown()),
            }
        }
        Ok(parsed)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.ACQUIRE", self.key, self.token]);
        out.push(decimal(self.ttl.millis()));
        match self.mode {
            Mode::Exclusive => {}
            Mode::Shared => out.push(b"SHARED".to_vec()),
            Mode::Permits(n) => out.extend([b"PERMITS".to_vec(), decimal(n.get().into())]),
        }
        match self.count {
            Count::Keep => {}
            Count::OneMore => out.push(b"REENTRANT".to_vec()),
            Count::AtLeast(n) => out.extend([b"DEPTH".to_vec(), decimal(n.get().into())]),
        }
        if let Some(wait) = self.block {
            out.extend([b"BLOCK".to_vec(), decimal(wait.millis())]);
        }
        if self.ephemeral {
            out.push(b"EPHEMERAL".to_vec());
        }
        if self.delay > 0 {
            out.extend([b"DELAY".to_vec(), decimal(self.delay.into())]);
        }
        if !self.label.is_empty() {
            out.extend([b"LABEL".to_vec(), self.label.to_vec()]);
        }
        out
    }
}
