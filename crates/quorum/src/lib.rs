//! The decisions of a client that locks over a quorum of independent servers: answers in, requests and a
//! verdict out.
//!
//! The crate does no I/O, reads no clock and draws no random number. The driver (`dlock-client`, or the model
//! checker in `tests/model`) sends the requests, passes each answer back together with the request that it
//! answers and the time of its arrival, and may do so late, twice, or not at all. Which
//! requests a server grants is decided in `dlock-core`, not here.
//!
//! * [`Attempt`]: acquires a lock, from the first request to a hold or an error, over all its rounds.
//! * [`Round`]: one round of it, with one token. The model checker drives rounds.
//! * [`Extension`]: sets a new lease for a hold.
//! * [`Quorum`], [`Member`], [`Vote`]: the servers, and one server's answer to a request.
//! * [`Contention`], [`QueueWatch`]: the choice of the queue in which a client waits.
//! * [`Lease`], [`Instant`]: the validity of a hold.
//!
//! A release needs no type here: the driver sends it to every member, and no answer changes the end of
//! validity.
//!
//! `docs/internals/quorum-rules.md` lists the rules, each with its test in every client. `tests/model.rs`
//! lists the variants of the rules that the model checker refuted. `tests/progress.rs` simulates clients that
//! compete for a lock, some of them with faults.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod attempt;
mod backoff;
mod extension;
mod queue_choice;
mod quorum;
mod retry_state;
mod round;
mod terms;

pub use attempt::{Attempt, Meeting, Next, Step};
pub use backoff::Backoff;
pub use dlock_protocol::Fence;
pub use extension::{Extended, Extension};
pub use queue_choice::{Contention, Holder, Holders, Others, Place, QueueOrder, QueueWatch, Stay};
pub use quorum::{Failure, Member, Outgoing, Quorum, Refusal, Request, Sends, Vote, majority};
pub use round::{Acquired, FailureReason, Progress, Round, Start, Verdict};
pub use terms::{Deadline, Instant, Lease, Plan, Terms};

use quorum::to_all;
