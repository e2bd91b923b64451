//! ACQUIRE, the command with the many options.

use super::words::{Args, within};
use super::{Given, decimal, words};
use crate::error::Misuse;
use crate::names::LabelRef;
use crate::request::{LockRequestRef, Mode, Reentry};
use crate::units::{Delay, Ttl, Wait};

/// `DLOCK.ACQUIRE key token <ttl | MAX> [SHARED | PERMITS n] [REENTRANT | DEPTH n] [BLOCK ms] [EPHEMERAL]
/// [DELAY ms] [LABEL text]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    pub key: &'a [u8],
    pub request: LockRequestRef<'a>,
    /// None tries once.
    pub block: Option<Wait>,
}

impl<'a> Acquire<'a> {
    pub fn parse(args: &[&'a [u8]], max_ttl: Ttl) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let (key, token, ttl) = (args.next()?, args.token()?, args.ttl(max_ttl)?);
        let (mut request, mut block) = (LockRequestRef::new(token, ttl), None);
        let mut given = Given::empty();
        while let Some(option) = args.option() {
            match () {
                _ if option.is("SHARED") => {
                    given.once(Given::MODE, "SHARED or PERMITS")?;
                    request.mode = Mode::Shared;
                }
                _ if option.is("PERMITS") => {
                    given.once(Given::MODE, "SHARED or PERMITS")?;
                    request.mode = Mode::Permits(args.count("PERMITS")?);
                }
                _ if option.is("REENTRANT") => {
                    given.once(Given::COUNT, "REENTRANT or DEPTH")?;
                    request.reentry = Reentry::OneMore;
                }
                _ if option.is("DEPTH") => {
                    given.once(Given::COUNT, "REENTRANT or DEPTH")?;
                    request.reentry = Reentry::AtLeast(args.count("DEPTH")?);
                }
                _ if option.is("BLOCK") => {
                    given.once(Given::BLOCK, "BLOCK")?;
                    block = Wait::from_millis(within(args.value("BLOCK")?, "BLOCK ms", 0, Wait::MAX_MILLIS)?);
                }
                _ if option.is("EPHEMERAL") => {
                    given.once(Given::EPHEMERAL, "EPHEMERAL")?;
                    request.ephemeral = true;
                }
                _ if option.is("DELAY") => {
                    given.once(Given::DELAY, "DELAY")?;
                    let ms = within(args.value("DELAY")?, "DELAY ms", 0, max_ttl.millis())?;
                    request.delay = Delay::from_millis(ms).unwrap_or_default();
                }
                _ if option.is("LABEL") => {
                    given.once(Given::LABEL, "LABEL")?;
                    request.label = LabelRef::new(args.value("LABEL")?).ok_or(Misuse::LabelLength)?;
                }
                _ => return Err(option.unknown()),
            }
        }
        Ok(Acquire { key, request, block })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let Acquire { key, request, block } = self;
        let mut out = words(&[b"DLOCK.ACQUIRE", key, request.token.as_bytes()]);
        out.push(decimal(request.ttl.millis()));
        match request.mode {
            Mode::Exclusive => {}
            Mode::Shared => out.push(b"SHARED".to_vec()),
            Mode::Permits(n) => out.extend([b"PERMITS".to_vec(), decimal(n.get().into())]),
        }
        match request.reentry {
            Reentry::Keep => {}
            Reentry::OneMore => out.push(b"REENTRANT".to_vec()),
            Reentry::AtLeast(n) => out.extend([b"DEPTH".to_vec(), decimal(n.get().into())]),
        }
        if let Some(wait) = block {
            out.extend([b"BLOCK".to_vec(), decimal(wait.millis())]);
        }
        if request.ephemeral {
            out.push(b"EPHEMERAL".to_vec());
        }
        if !request.delay.is_none() {
            out.extend([b"DELAY".to_vec(), decimal(request.delay.millis())]);
        }
        if !request.label.is_empty() {
            out.extend([b"LABEL".to_vec(), request.label.as_bytes().to_vec()]);
        }
        out
    }
}
