//! The decisions of a client that locks over a quorum of independent servers: answers in, requests and a
//! verdict out.
//!
//! The crate does no I/O and reads no clock; random pauses come from a seed. The driver (`dlock-client`, or
//! the model checker in `tests/model`) sends the requests. It passes each answer that arrives to this crate,
//! with its request and the time. An answer may arrive late, twice, or never. `dlock-core` decides which
//! requests a server grants.
//!
//! * [`Attempt`]: acquires a lock, from the first request to a hold or an error, in one or more rounds.
//! * [`Round`]: asks the members for the lock under one token. Public for tests and the model checker, which
//!   drive rounds without an `Attempt`.
//! * [`WaitCalls`], [`Claimed`]: the calls of a wait in a queue, which message about them is a grant, and the
//!   claim of this grant.
//! * [`Extension`]: sets a new lease for a hold.
//! * [`Quorum`], [`Member`], [`Vote`]: the servers, and one server's answer to a request.
//! * [`QueueOrder`], [`Contention`], [`QueueWatch`]: the choice of the member where a client waits.
//! * [`Lease`], [`Instant`]: the validity of a hold.
//!
//! A release needs no type here: the driver sends it to every member, and no request depends on the answers.
//!
//! `docs/internals/quorum-rules.md` lists the rules, each with its test in every client. `tests/model.rs`
//! model-checks the rules, and refutes wrong variants of them. `tests/progress.rs` simulates clients that
//! compete for a lock, some of them with faults.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attempt;
mod backoff;
mod extension;
mod options;
mod queue_choice;
mod quorum;
mod retry_state;
mod round;
mod wait_calls;

pub use attempt::{Attempt, Next, NextQueue, Step};
pub use backoff::Backoff;
pub use dlock_protocol::Fence;
pub use dlock_protocol::error::Denied;
pub use extension::{Extended, Extension};
pub use options::{AttemptOptions, Deadline, Instant, Lease, Plan};
pub use queue_choice::{Contention, Holder, Holders, OtherHolds, Place, QueueOrder, QueueWatch, Stay};
pub use quorum::{
    Failure, Fault, FaultKind, Member, Outgoing, Quorum, Refusal, Request, Sends, Vote, majority,
};
pub use round::{Acquired, FailureReason, Progress, Round, Start, Verdict};
pub use wait_calls::{Claimed, WaitCalls};

use quorum::to_all;
