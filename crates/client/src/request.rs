//! The requests to the masters, as commands of the protocol.

use dlock_protocol::command::{self, Queue};
use dlock_protocol::{Delay, Fence, Mode, NotifyRef, ReleaseCount, Token, Ttl};
use dlock_quorum::Instant;
use rand::TryRng;
use redis::{Cmd, Pipeline};
use std::num::NonZeroU32;
use std::ops::Deref;
use std::time::Duration;

/// Largest number of holders that an inspection shows.
pub(crate) const MAX_HOLDERS: u32 = 1000;

/// A lock request for one resource, the same for all masters.
#[derive(Debug, Clone)]
pub(crate) struct LockRequest {
    pub(crate) resource: Vec<u8>,
    pub(crate) options: dlock_protocol::LockRequest,
}

/// Gives direct access to the options of the request.
impl Deref for LockRequest {
    type Target = dlock_protocol::LockRequest;

    fn deref(&self) -> &Self::Target {
        &self.options
    }
}

impl LockRequest {
    /// Returns an ACQUIRE that does not wait.
    pub(crate) fn acquire(&self) -> Cmd {
        self.acquire_with(None)
    }

    /// Returns an ACQUIRE with QUEUE, which queues the token or keeps its position. The server stores the
    /// position for `kept` after this request.
    pub(crate) fn queue(&self, kept: Duration, notify: Option<NotifyRef<'_>>) -> Cmd {
        let ms = u64::try_from(kept.as_millis()).ok().and_then(Ttl::from_millis);
        self.acquire_with(ms.map(|ms| Queue { ms, notify }))
    }

    fn acquire_with(&self, queue: Option<Queue<'_>>) -> Cmd {
        let (key, request) = (self.resource.as_slice(), self.options.borrowed());
        cmd(&command::Acquire { key, request, block: None, queue }.to_args())
    }

    /// Returns the same request for another mode.
    pub(crate) fn in_mode(&self, mode: Mode) -> LockRequest {
        let mut request = self.clone();
        request.options.mode = mode;
        request
    }

    /// Returns the same request without its owner.
    pub(crate) fn without_owner(&self) -> LockRequest {
        let mut request = self.clone();
        request.options.owner = None;
        request
    }

    pub(crate) fn confirm(&self, fence: Fence) -> Cmd {
        let (key, token, ttl) = (self.resource.as_slice(), self.token.borrowed(), self.ttl);
        cmd(&command::Confirm { key, token, fence, ttl }.to_args())
    }

    /// Returns a CONFIRM that only reads the fence of the hold. A CONFIRM with a fence below that of the hold
    /// changes nothing, and the reply is the fence of the hold.
    pub(crate) fn read_fence(&self) -> Cmd {
        self.confirm(Fence::MIN)
    }

    /// Returns the requested lease.
    pub(crate) fn ttl(&self) -> Duration {
        Duration::from_millis(self.ttl.millis())
    }

    pub(crate) fn release(&self) -> Release {
        Release::new(self.resource.clone(), self.token.clone())
    }

    /// Returns the CANCEL of the token's positions in the queue. It ends no hold.
    pub(crate) fn cancel(&self) -> Cmd {
        cancel(&self.resource, &self.token)
    }
}

pub(crate) fn cancel(resource: &[u8], token: &Token) -> Cmd {
    let waiters = command::CancelTarget::Token(token.borrowed());
    cmd(&command::Cancel { key: resource, waiters }.to_args())
}

pub(crate) fn extend(resource: &[u8], token: &Token, ttl: Ttl) -> Pipeline {
    let mut commands = redis::pipe();
    commands.add_command(cmd(&command::Extend { key: resource, token: token.borrowed(), ttl }.to_args()));
    commands
}

/// EXTEND, followed by a read that makes the server track the key again (CLIENT TRACKING), because each write
/// ends the tracking.
pub(crate) fn extend_and_track(resource: &[u8], token: &Token, ttl: Ttl) -> Pipeline {
    let mut commands = extend(resource, token, ttl);
    commands.add_command(holds(resource, token));
    commands
}

/// RELEASE of the whole hold count and of the positions in the queue.
#[derive(Debug, Clone)]
pub(crate) struct Release {
    pub(crate) resource: Vec<u8>,
    pub(crate) token: Token,
    /// The end of the delay after the hold; `None` without a delay.
    pub(crate) closed_until: Option<Instant>,
    /// The end of the validity of the hold; `None` if it is not known.
    pub(crate) valid_until: Option<Instant>,
}

impl Release {
    pub(crate) fn new(resource: Vec<u8>, token: Token) -> Release {
        Release { resource, token, closed_until: None, valid_until: None }
    }

    /// Returns the command to send now.
    pub(crate) fn command(&self, now: Instant) -> Cmd {
        let Release { resource, token, closed_until, .. } = self;
        let delay = closed_until.map_or(Duration::ZERO, |end| end.saturating_since(now));
        let delay = delay.as_millis().try_into().ok().and_then(Delay::from_millis).unwrap_or_default();
        let release = command::Release::new(resource, token.borrowed(), ReleaseCount::All);
        cmd(&command::Release { delay, ..release }.to_args())
    }
}

pub(crate) fn waiters(resource: &[u8], limit: u32) -> Cmd {
    cmd(&command::Waiters { key: resource, count: NonZeroU32::new(limit) }.to_args())
}

pub(crate) fn holds(resource: &[u8], token: &Token) -> Cmd {
    cmd(&command::Holds { key: resource, token: token.borrowed() }.to_args())
}

pub(crate) fn inspect(resource: &[u8], limit: u32) -> Cmd {
    cmd(&command::Inspect { key: resource, count: NonZeroU32::new(limit) }.to_args())
}

pub(crate) fn list(cursor: u64, pattern: Option<&[u8]>, only_waited_for: bool) -> Cmd {
    let count = NonZeroU32::new(command::List::MAX_EXAMINED);
    cmd(&command::List { cursor, pattern, count, waited: only_waited_for }.to_args())
}

pub(crate) fn log(limit: u32, key: Option<&[u8]>) -> Cmd {
    cmd(&command::Log::Read { count: NonZeroU32::new(limit), key }.to_args())
}

/// Asks for the type of the value under a key.
pub(crate) fn type_of(key: &[u8]) -> Cmd {
    cmd(&[b"TYPE", key])
}

/// Sets the library name of a connection. Servers before Redis 7.2 do not know the command.
pub(crate) fn set_library_name(name: &str) -> Cmd {
    cmd(&["CLIENT", "SETINFO", "LIB-NAME", name])
}

pub(crate) fn break_holds(resource: &[u8]) -> Cmd {
    cmd(&[command::table::BREAK.name.as_bytes(), resource])
}

/// Returns an unused token, made as by DLOCK.TOKEN.
pub(crate) fn fresh_token() -> Token {
    let mut bytes = [0; 20];
    // The bytes come from the operating system. After a fork, a generator of this process would draw the same
    // token in the parent and in the child. Then both could hold the lock at once.
    rand::rngs::SysRng.try_fill_bytes(&mut bytes).expect("the operating system gives randomness");
    Token::of_random(bytes)
}

/// Returns the command with these words.
pub(crate) fn cmd(words: &[impl AsRef<[u8]>]) -> Cmd {
    let mut cmd = Cmd::new();
    for word in words {
        cmd.arg(word.as_ref());
    }
    cmd
}
