//! GUARD and FENCED: a command that runs only for whoever still holds the lock.

use super::words::{Args, number};
use super::{decimal, words};
use crate::error::{Error, Misuse};
use crate::names::TokenRef;
use crate::units::Fence;

/// `DLOCK.GUARD key token command [arg ...]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Guard<'s, 'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
    /// Its name and its arguments.
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
    /// Its name and its arguments.
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

    /// Whether a gate that holds this text, or nothing, has to be raised to the fence. The error where it has
    /// seen a greater one, or is no gate.
    pub fn raises(&self, gate: Option<&[u8]>) -> Result<bool, Error> {
        let Some(text) = gate else { return Ok(true) };
        match number(text).ok_or(Error::NoGate)? {
            greatest if greatest > self.fence.get() => Err(Error::StaleFence(greatest)),
            seen => Ok(seen < self.fence.get()),
        }
    }
}
