//! The lock itself: who holds a resource, who waits for it, and who is next.
//!
//! This crate decides and does nothing else. It knows no server, no clock, no randomness, no I/O and no threads:
//! time comes in as an argument, and what must happen outside comes out as a [`Step`]. The words in which it is asked
//! are those of `dlock-protocol`.
//!
//! - [`fences`]: the numbers of grants, and how many are reserved ahead
//! - [`mark`]: the bytes by which the reserved ones are kept
//! - [`proof`]: when a server may say that it has forgotten nothing, and the bytes that say it
//! - [`lock`]: one resource, what is stored of it
//! - [`queue`]: everybody who waits, in which order, until when
//! - [`decide`]: the operations, over one lock and its line
//! - [`deadlock`]: would this wait close a cycle?
//! - [`schedule`]: what is due next, among millions
//! - [`codec`]: the bytes of a lock at rest and on the replication link
#![forbid(unsafe_code)]

pub mod codec;
pub mod deadlock;
pub mod decide;
pub mod fences;
pub mod lock;
pub mod mark;
pub mod proof;
pub mod queue;
pub mod schedule;
pub mod step;

pub use decide::{Acquired, Confirmed, Terms, Turn};
pub use dlock_protocol::{
    Bytes, ClientId, Deadline, Delay, Fence, Instant, Label, LabelRef, LockRequest, LockRequestRef, Mode,
    Reentry, ReleaseCount, Token, TokenRef, Ttl, Wait,
};
pub use fences::Fences;
pub use lock::{Ephemeral, Hold, Lock};
pub use queue::{Limits, Name, Newcomer, Rank, Waiter, WaiterId, Waiting, give_back};
pub use step::{Binding, Change, Departed, End, Event, Granted, Outcome, Refusal, Rest, Step};
