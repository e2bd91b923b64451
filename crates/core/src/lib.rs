//! The lock: holders, waiters, and the next grant.
//!
//! This crate decides and does nothing else. It has no server, no clock, no randomness, no I/O and no
//! threads: time is an argument, and effects on the outside are returned as a [`Step`]. Requests have the
//! types of `dlock-protocol`.
//!
//! The types to know first:
//!
//! - [`Lock`]: the stored state of one lock; [`Lock::at`] reads it at one moment
//! - [`Hold`]: the tenure of one token
//! - [`Waiting`]: the wait queues of all locks
//! - [`Turn`]: one operation on one lock and its queue
//! - [`Step`]: the effects of an operation, which the caller carries out
//! - [`Fences`]: issues the fence of each grant
//! - [`Joining`]: the beginning of a wait, with the search for a deadlock
//! - [`Background`](background::Background): the work that no command causes: timeouts, expired leases
//!
//! Further modules: [`codec`] is about the bytes of stored and replicated locks, [`plain`] about commands
//! that are replicated verbatim. [`admission`] limits leases and fences from outside, and the bytes of
//! RESTORE. Two modules are about restarts: [`grace`] is the grace period, and [`mark`] is a number on the
//! disk that is normally greater than all fences. [`listing`] is LIST, and [`log`] is LOG. [`schedule`] sorts
//! locks and waits by the time at which they are due. [`due_locks`] uses it for the locks of one database.
//!
//! ```
//! use dlock_core::{
//!     Acquired, ClientId, Fences, Grants, Instant, Lock, LockRequest, Name, Rank, Step, Terms, Token, Ttl,
//!     Turn, Waiting,
//! };
//!
//! let (name, now) = (Name::new(0, b"invoice:42"), Instant::from_millis(1_000));
//! let (longest_lease, max_holders, max_grants_per_turn) = (Ttl::MAX, 100, 10);
//! let terms = Terms { grants: Grants::From(now), longest_lease, max_holders, max_grants_per_turn };
//! let (mut fences, mut waiting, mut lock) = (Fences::default(), Waiting::default(), Lock::default());
//! let mut acquire = |token: &[u8], client, now| {
//!     let (token, ttl) = (Token::new(token).unwrap(), Ttl::from_millis(30_000).unwrap());
//!     let mut step = Step::default();
//!     let mut turn = Turn::new(now, terms, &name, &mut fences, &mut waiting, &mut lock, &mut step);
//!     turn.acquire(&LockRequest::new(token, ttl).borrowed(), ClientId(client))
//! };
//!
//! assert!(matches!(acquire(b"a", 1, now), Acquired::Held(_)));
//! // Not granted. With BLOCK or QUEUE, the request would join the queue at this rank.
//! assert_eq!(acquire(b"b", 2, now), Acquired::NotNow(Rank::Newcomer));
//! // The first hold has expired. It no longer counts, although no background job has run.
//! assert!(matches!(acquire(b"b", 2, Instant::from_millis(31_000)), Acquired::Held(_)));
//! ```
#![forbid(unsafe_code)]

pub mod admission;
pub mod background;
pub mod codec;
pub mod deadlock;
pub mod decide;
pub mod deliveries;
pub mod due_locks;
pub mod fences;
pub mod grace;
pub mod joining;
pub mod listing;
pub mod lock;
pub mod log;
pub mod mark;
pub mod plain;
pub mod queue;
pub mod schedule;
pub mod step;
pub mod tasks;

pub use admission::{Bounds, Skew};
pub use decide::{Acquired, Confirmed, Grants, Terms, Turn};
pub use deliveries::shrink_if_sparse;
pub use dlock_protocol::error::Refusal;
pub use dlock_protocol::{
    Bytes, ClientId, Deadline, Delay, Fence, Instant, Label, LabelRef, LockRequest, LockRequestRef, Mode,
    Notify, NotifyRef, OwnerId, OwnerIdRef, Reentry, ReleaseCount, Token, TokenRef, Ttl, Wait,
};
pub use fences::Fences;
pub use joining::{CannotJoin, Joined, Joining, NewWait};
pub use lock::{Ephemeral, Hold, Lock};
pub use queue::{
    Granted, Kept, Limits, Name, NewPosition, NewWaiter, Outcome, Queued, Rank, WaitKind, Waiter, WaiterId,
    Waiting,
};
pub use step::{Binding, Change, End, EndedHolds, Event, RareEffects, Step};
