//! What is asked of the masters, in the words of the protocol.

use dlock_protocol::command;
use dlock_protocol::{Count, Counts, Mode, Token, Ttl};
use rand::TryRng;
use redis::Cmd;
use std::time::Duration;

use crate::quorum::Fence;

/// What one acquisition asks for; the same for all masters.
#[derive(Debug, Clone)]
pub(crate) struct LockRequest {
    pub(crate) resource: Vec<u8>,
    pub(crate) token: Token,
    pub(crate) ttl: Ttl,
    pub(crate) mode: Mode,
    pub(crate) ephemeral: bool,
    /// In ms.
    pub(crate) delay: u32,
    pub(crate) label: String,
}

impl LockRequest {
    /// One try, or a place in line.
    pub(crate) fn acquire(&self, block: Option<dlock_protocol::Wait>) -> Cmd {
        let acquire = command::Acquire {
            key: &self.resource,
            token: self.token.as_bytes(),
            ttl: self.ttl,
            mode: self.mode,
            count: Count::Keep,
            block,
            ephemeral: self.ephemeral,
            delay: self.delay,
            label: self.label.as_bytes(),
        };
        cmd(&acquire.to_args())
    }

    pub(crate) fn confirm(&self, fence: Fence) -> Cmd {
        let (key, token, ttl) = (self.resource.as_slice(), self.token.as_bytes(), self.ttl);
        cmd(&command::Confirm { key, token, fence, ttl }.to_args())
    }

    /// The lease that is asked for.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl.millis())
    }

    pub(crate) fn release(&self) -> Cmd {
        release(&self.resource, &self.token)
    }
}

pub(crate) fn extend(resource: &[u8], token: &Token, ttl: Ttl) -> Cmd {
    cmd(&command::Extend { key: resource, token: token.as_bytes(), ttl }.to_args())
}

/// Every count, and its places in line.
pub(crate) fn release(resource: &[u8], token: &Token) -> Cmd {
    cmd(&command::Release { key: resource, token: token.as_bytes(), counts: Counts::All }.to_args())
}

pub(crate) fn waiters(resource: &[u8], most: u32) -> Cmd {
    cmd(&command::Waiters { key: resource, count: std::num::NonZeroU32::new(most) }.to_args())
}

pub(crate) fn holds(resource: &[u8], token: &Token) -> Cmd {
    cmd(&command::Holds { key: resource, token: token.as_bytes() }.to_args())
}

pub(crate) fn inspect(resource: &[u8]) -> Cmd {
    only_key(command::table::INSPECT.name, resource)
}

pub(crate) fn break_holds(resource: &[u8]) -> Cmd {
    only_key(command::table::BREAK.name, resource)
}

/// A token that nobody has used, as DLOCK.TOKEN makes them.
pub(crate) fn fresh_token() -> Token {
    let mut bytes = [0; 20];
    // Not a generator of the process's own: after a fork two would draw the same, and a token used twice is two holders.
    rand::rngs::SysRng.try_fill_bytes(&mut bytes).expect("the operating system gives randomness");
    Token::of_random(bytes)
}

fn only_key(name: &str, resource: &[u8]) -> Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(resource);
    cmd
}

fn cmd(args: &[Vec<u8>]) -> Cmd {
    let mut cmd = Cmd::new();
    for arg in args {
        cmd.arg(arg.as_slice());
    }
    cmd
}
