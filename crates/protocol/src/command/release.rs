//! RELEASE and its options.

use super::words::{Args, Given, decimal, within, words};
use crate::error::Misuse;
use crate::names::TokenRef;
use crate::request::{MAX_COUNT, ReleaseCount};
use crate::units::{Delay, Ttl};

/// `DLOCK.RELEASE key token [ALL | DEPTH n] [DELAY ms]`. DEPTH lowers a greater hold count to n.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Release<'a> {
    pub key: &'a [u8],
    pub token: TokenRef<'a>,
    pub count: ReleaseCount,
    /// If this command ends the hold, the lock is not granted for this time.
    pub delay: Delay,
}

impl<'a> Release<'a> {
    /// Returns a RELEASE without a delay.
    pub fn new(key: &'a [u8], token: TokenRef<'a>, count: ReleaseCount) -> Self {
        Release { key, token, count, delay: Delay::NONE }
    }

    /// `longest_delay` is the maximum of DELAY.
    pub fn parse(args: &[&'a [u8]], longest_delay: Ttl) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let plain = Release::new(args.next()?, args.token()?, ReleaseCount::One);
        if args.is_empty() { Ok(plain) } else { plain.with_options(args, longest_delay) }
    }

    #[inline(never)]
    fn with_options(mut self, mut args: Args<'_, 'a>, longest_delay: Ttl) -> Result<Self, Misuse> {
        const COUNT: [&str; 2] = ["ALL", "DEPTH"];
        let mut given = Given::default();
        while let Some(option) = args.option() {
            match () {
                _ if given.accept_one(&option, "ALL", COUNT)? => self.count = ReleaseCount::All,
                _ if given.accept_one(&option, "DEPTH", COUNT)? => {
                    let n = within(args.value("DEPTH")?, "DEPTH n", 0, MAX_COUNT.into())?;
                    self.count = ReleaseCount::Above(n as u32);
                }
                _ if given.accept(&option, "DELAY")? => {
                    let ms = within(args.value("DELAY")?, "DELAY ms", 0, longest_delay.millis())?;
                    self.delay = Delay::from_millis(ms).unwrap_or_default();
                }
                _ => return Err(option.unknown()),
            }
        }
        Ok(self)
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        let Release { key, token, count, delay } = self;
        let mut out = words(&[b"DLOCK.RELEASE", key, token.as_bytes()]);
        match count {
            ReleaseCount::One => {}
            ReleaseCount::All => out.push(b"ALL".to_vec()),
            ReleaseCount::Above(n) => out.extend([b"DEPTH".to_vec(), decimal((*n).into())]),
        }
        if !delay.is_none() {
            out.extend([b"DELAY".to_vec(), decimal(delay.millis())]);
        }
        out
    }
}
