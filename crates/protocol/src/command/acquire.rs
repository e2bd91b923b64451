//! ACQUIRE and its options.

use super::words::{Args, Given, decimal, within, words};
use crate::error::Misuse;
use crate::event::NotifyRef;
use crate::names::{LabelRef, OwnerIdRef};
use crate::request::{LockRequestRef, Mode, Reentry};
use crate::units::{Delay, Ttl, Wait};

/// `DLOCK.ACQUIRE key token <ttl | MAX> [SHARED | PERMITS n] [REENTRANT | DEPTH n] [BLOCK ms]
/// [QUEUE ms [NOTIFY channel message | SNOTIFY channel message]] [EPHEMERAL] [DELAY ms] [LABEL text]
/// [OWNER id]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Acquire<'a> {
    pub key: &'a [u8],
    pub request: LockRequestRef<'a>,
    /// Time that the connection waits. `None`: it does not wait.
    pub block: Option<Wait>,
    /// The position that the token gets in the wait queue. `None`: the token does not queue.
    pub queue: Option<Queue<'a>>,
}

/// `QUEUE ms [NOTIFY channel message | SNOTIFY channel message]`
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Queue<'a> {
    /// Time that the position is kept after this call.
    pub ms: Ttl,
    pub notify: Option<NotifyRef<'a>>,
}

impl<'a> Acquire<'a> {
    /// `longest_lease` is the maximum of the ttl and of DELAY, `longest_position` that of QUEUE.
    pub fn parse(args: &[&'a [u8]], longest_lease: Ttl, longest_position: Ttl) -> Result<Self, Misuse> {
        let mut args = Args::new(args);
        let (key, token, ttl) = (args.next()?, args.token()?, args.ttl(longest_lease)?);
        let plain = Acquire { key, request: LockRequestRef::new(token, ttl), block: None, queue: None };
        if args.is_empty() { Ok(plain) } else { plain.with_options(args, longest_lease, longest_position) }
    }

    #[inline(never)]
    fn with_options(
        self,
        mut args: Args<'_, 'a>,
        longest_lease: Ttl,
        longest_position: Ttl,
    ) -> Result<Self, Misuse> {
        let Acquire { key, mut request, mut block, .. } = self;
        let (mut queue, mut notify) = (None, None);
        const MODE: [&str; 2] = ["SHARED", "PERMITS"];
        // REENTRANT raises the hold count by one; DEPTH n raises a lower count to n.
        const REENTRY: [&str; 2] = ["REENTRANT", "DEPTH"];
        const NOTIFY: [&str; 2] = ["NOTIFY", "SNOTIFY"];
        let mut given = Given::default();
        while let Some(option) = args.option() {
            match () {
                _ if given.accept_one(&option, "SHARED", MODE)? => request.mode = Mode::Shared,
                _ if given.accept_one(&option, "PERMITS", MODE)? => {
                    request.mode = Mode::Permits(args.count("PERMITS")?);
                }
                _ if given.accept_one(&option, "REENTRANT", REENTRY)? => request.reentry = Reentry::OneMore,
                _ if given.accept_one(&option, "DEPTH", REENTRY)? => {
                    request.reentry = Reentry::AtLeast(args.count("DEPTH")?);
                }
                _ if given.accept(&option, "BLOCK")? => {
                    block = Wait::from_millis(within(args.value("BLOCK")?, "BLOCK ms", 0, Wait::MAX_MILLIS)?);
                }
                _ if given.accept(&option, "QUEUE")? => {
                    let ms = within(args.value("QUEUE")?, "QUEUE ms", 1, longest_position.millis())?;
                    queue = Ttl::from_millis(ms);
                }
                _ if given.accept_one(&option, "NOTIFY", NOTIFY)? => notify = Some(args.notify("NOTIFY")?),
                _ if given.accept_one(&option, "SNOTIFY", NOTIFY)? => {
                    notify = Some(args.notify("SNOTIFY")?.sharded());
                }
                _ if given.accept(&option, "EPHEMERAL")? => request.ephemeral = true,
                _ if given.accept(&option, "DELAY")? => {
                    let ms = within(args.value("DELAY")?, "DELAY ms", 0, longest_lease.millis())?;
                    request.delay = Delay::from_millis(ms).unwrap_or_default();
                }
                _ if given.accept(&option, "LABEL")? => {
                    request.label = LabelRef::new(args.value("LABEL")?).ok_or(Misuse::LabelLength)?;
                }
                _ if given.accept(&option, "OWNER")? => {
                    let owner = OwnerIdRef::new(args.value("OWNER")?);
                    request.owner = Some(owner.ok_or(Misuse::OwnerLength)?);
                }
                _ => return Err(option.unknown()),
            }
        }
        let queue = match (queue, notify) {
            (None, Some(_)) => return Err(Misuse::NotifyAlone),
            (queue, notify) => queue.map(|ms| Queue { ms, notify }),
        };
        Ok(Acquire { key, request, block, queue })
    }

    /// Returns whether the command has no options and an explicit ttl. Such a command may be logged verbatim:
    /// replicated, and written to the append only file. Of any other ACQUIRE, the effect is logged: a
    /// DLOCK._SET with the changed lock. The ttl MAX is not explicit: it can stand for another ttl on another
    /// server.
    pub fn is_plain(args: &[&[u8]]) -> bool {
        matches!(args, [_, _, [b'0'..=b'9', ..]])
    }

    pub fn to_args(&self) -> Vec<Vec<u8>> {
        // Destructured without `..`: a new option must not compile until it is written here.
        let Acquire { key, request, block, queue } = self;
        let LockRequestRef { token, ttl, mode, reentry, ephemeral, delay, label, owner } = request;
        let mut out = words(&[b"DLOCK.ACQUIRE", key, token.as_bytes()]);
        out.push(decimal(ttl.millis()));
        match mode {
            Mode::Exclusive => {}
            Mode::Shared => out.push(b"SHARED".to_vec()),
            Mode::Permits(n) => out.extend([b"PERMITS".to_vec(), decimal(n.get().into())]),
        }
        match reentry {
            Reentry::Keep => {}
            Reentry::OneMore => out.push(b"REENTRANT".to_vec()),
            Reentry::AtLeast(n) => out.extend([b"DEPTH".to_vec(), decimal(n.get().into())]),
        }
        if let Some(wait) = block {
            out.extend([b"BLOCK".to_vec(), decimal(wait.millis())]);
        }
        if let Some(Queue { ms, notify }) = queue {
            out.extend([b"QUEUE".to_vec(), decimal(ms.millis())]);
            if let Some(notify) = notify {
                let word: &[u8] = if notify.is_sharded() { b"SNOTIFY" } else { b"NOTIFY" };
                out.extend(words(&[word, notify.channel(), notify.message()]));
            }
        }
        if *ephemeral {
            out.push(b"EPHEMERAL".to_vec());
        }
        if !delay.is_none() {
            out.extend([b"DELAY".to_vec(), decimal(delay.millis())]);
        }
        if !label.is_empty() {
            out.extend([b"LABEL".to_vec(), label.as_bytes().to_vec()]);
        }
        if let Some(owner) = owner {
            out.extend([b"OWNER".to_vec(), owner.as_bytes().to_vec()]);
        }
        out
    }
}
