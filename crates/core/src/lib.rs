//! The lock itself: who holds a resource, who waits for it, and who is next.
//!
//! This crate decides and does nothing else. It knows no server, no clock, no randomness, no I/O and no threads:
//! time comes in as an argument, and what must happen outside comes out as a [`Step`]. The words in which it is asked
//! are those of `dlock-protocol`.
//!
//! - [`bounds`], [`admission`]: how far numbers and bytes from outside are gone along with
//! - [`fences`]: the numbers of grants, and how many are reserved ahead
//! - [`marking`], [`mark`]: when those are written to the disk, and their bytes
//! - [`grace`]: when a server may have forgotten holds, and until when it grants nothing new
//! - [`proof`]: when a server may say that it has forgotten nothing, and the bytes that say it
//! - [`lock`]: one resource, what is stored of it
//! - [`queue`]: everybody who waits, in which order, until when
//! - [`decide`]: the operations, over one lock and its line
//! - [`deadlock`]: would this wait close a cycle?
//! - [`schedule`], [`scheduled`]: what is due next, among millions
//! - [`background`], [`tasks`], [`deliveries`]: what has to be done without anybody asking
//! - [`codec`]: the bytes of a lock at rest and on the replication link
#![forbid(unsafe_code)]

pub mod admission;
pub mod background;
pub mod bounds;
pub mod codec;
pub mod deadlock;
pub mod decide;
pub mod deliveries;
pub mod fences;
pub mod grace;
pub mod lock;
pub mod mark;
pub mod marking;
pub mod proof;
pub mod queue;
pub mod schedule;
pub mod scheduled;
pub mod step;
pub mod tasks;

pub use bounds::{Bounds, Skew};
pub use decide::{Acquired, Confirmed, Terms, Turn};
pub use dlock_protocol::{
    Bytes, ClientId, Deadline, Delay, Fence, Instant, Label, LabelRef, LockRequest, LockRequestRef, Mode,
    Reentry, ReleaseCount, Token, TokenRef, Ttl, Wait,
};
pub use fences::Fences;
pub use lock::{Ephemeral, Hold, Lock};
pub use queue::{Limits, Name, Newcomer, Rank, Waiter, WaiterId, Waiting, give_back};
pub use step::{Binding, Change, Departed, End, Event, Granted, Outcome, Refusal, Rest, Step};
