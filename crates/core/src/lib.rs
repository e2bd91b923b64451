//! The lock itself: who holds a resource, who waits for it, and who is next.
//!
//! This crate decides and does nothing else. It knows no server, no clock, no randomness, no I/O and no
//! threads: time comes in as an argument, and what must happen outside comes out as a [`Step`]. The words in
//! which it is asked are those of `dlock-protocol`.
//!
//! - [`bounds`], [`admission`]: how far numbers and bytes from outside are gone along with
//! - [`fences`]: the numbers of grants, and how many are reserved ahead
//! - [`marking`], [`mark`]: when those are written to the disk, and their bytes
//! - [`grace`]: when a server may have forgotten holds, and until when it grants nothing new
//! - [`lock`]: one resource, what is stored of it
//! - [`queue`]: everybody who waits, in which order, until when
//! - [`decide`]: the operations, over one lock and its queue
//! - [`deadlock`]: would this wait close a cycle?
//! - [`schedule`], [`scheduled`]: what is due next, among millions
//! - [`background`], [`tasks`], [`deliveries`]: what has to be done without anybody asking
//! - [`listing`], [`glob`]: a walk over all locks
//! - [`log`]: what went wrong lately
//! - [`codec`]: the bytes of a lock at rest and on the replication link
//!
//! ```
//! use dlock_core::{
//!     Acquired, ClientId, Fences, Instant, Lock, LockRequest, Name, Rank, Step, Terms, Token, Ttl, Turn,
//!     Waiting,
//! };
//!
//! let (name, now) = (Name::new(0, b"invoice:42"), Instant::from_millis(1_000));
//! let terms = Terms { grants_from: now, longest_lease: Ttl::MAX, most_holders: 100, most_served: 10 };
//! let (mut fences, mut waiting, mut lock) = (Fences::default(), Waiting::default(), Lock::default());
//! let mut acquire = |token: &[u8], client, now| {
//!     let (token, ttl) = (Token::new(token).unwrap(), Ttl::from_millis(30_000).unwrap());
//!     let mut step = Step::default();
//!     let mut turn = Turn::new(now, terms, &name, &mut fences, &mut waiting, &mut lock, &mut step);
//!     turn.acquire(&LockRequest::new(token, ttl).borrowed(), ClientId(client))
//! };
//!
//! assert!(matches!(acquire(b"a", 1, now), Acquired::Held(_)));
//! assert_eq!(acquire(b"b", 2, now), Acquired::NotNow(Rank::Newcomer));
//! // Nobody has looked at it meanwhile; the expired hold is not seen all the same.
//! assert!(matches!(acquire(b"b", 2, Instant::from_millis(31_000)), Acquired::Held(_)));
//! ```
#![forbid(unsafe_code)]

pub mod admission;
pub mod background;
pub mod bounds;
pub mod codec;
pub mod deadlock;
pub mod decide;
pub mod deliveries;
pub mod fences;
pub mod glob;
pub mod grace;
pub mod listing;
pub mod lock;
pub mod log;
pub mod mark;
pub mod marking;
pub mod outcome;
pub mod queue;
pub mod schedule;
pub mod scheduled;
pub mod step;
pub mod tasks;

pub use bounds::{Bounds, Skew};
pub use decide::{Acquired, Confirmed, Terms, Turn};
pub use deliveries::give_back;
pub use dlock_protocol::{
    Bytes, ClientId, Deadline, Delay, Fence, Instant, Label, LabelRef, LockRequest, LockRequestRef, Mode,
    Notify, NotifyRef, OwnerId, OwnerIdRef, Reentry, ReleaseCount, Token, TokenRef, Ttl, Wait,
};
pub use fences::Fences;
pub use lock::{Ephemeral, Hold, Lock};
pub use outcome::{Granted, Outcome, Refusal};
pub use queue::{Limits, Name, Newcomer, Owner, Queued, Rank, Waiter, WaiterId, Waiting};
pub use step::{Binding, Change, Departed, End, Event, Rest, Step};
