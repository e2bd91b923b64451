//! GUARD and FENCED, which run another command only if the caller still holds the lock.

use super::words::{Args, decimal, number, words};
use crate::error::{Error, Misuse};
use crate::names::TokenRef;
use crate::units::Fence;

/// `DLOCK.GUARD key token command [arg ...]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard<'s, 'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
    /// Name and arguments of the command to run.
    pub command: &'s [&'a [u8]],
}

impl<'s, 'a> Guard<'s, 'a> {
    pub fn parse(args: &'s [&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        Ok(Guard { key: args.next()?, token: args.token()?, command: args.command()? })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.GUARD", self.key, self.token.as_bytes()]);
        out.extend(words(self.command));
        out
    }
}

/// `DLOCK.FENCED gate fence command [arg ...]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fenced<'s, 'a> {
    pub gate: &'a [u8],
    pub fence: Fence,
    /// Name and arguments of the command to run.
    pub command: &'s [&'a [u8]],
}

impl<'s, 'a> Fenced<'s, 'a> {
    pub fn parse(args: &'s [&'a [u8]]) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        Ok(Fenced { gate: args.next()?, fence: args.fence()?, command: args.command()? })
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let mut out = words(&[b"DLOCK.FENCED", self.gate]);
        out.push(decimal(self.fence.get()));
        out.extend(words(self.command));
        out
    }

    /// Returns whether the gate must be raised to this fence. `gate` is the gate's value, `None` if the key
    /// does not exist. Fails if the gate has seen a greater fence, or if its value is no number.
    pub fn raises(&self, gate: Option<&[u8]>) -> Result<bool, Error> {
        let Some(text) = gate else { return Ok(true) };
        match number(text).ok_or(Error::NoGate)? {
            greatest if greatest > self.fence.get() => Err(Error::StaleFence(greatest)),
            seen => Ok(seen < self.fence.get()),
        }
    }
}
