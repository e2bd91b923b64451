//! The decisions of a client that locks over a quorum of independent servers: events in, requests and a
//! verdict out.
//!
//! It does no I/O, reads no clock and draws no random number: the driver (`dlock-client`, the model checker
//! in `tests/model`) sends the requests, passes each answer back together with the request it answers and the
//! time it arrived, and may do so late, twice, or not at all.
//!
//! * [`Quorum`]: the number of members, and the size of a majority.
//! * [`Member`]: one server of the quorum, by its index.
//! * [`Vote`]: the answer of one member to one request.
//! * [`Acquisition`]: one round of an acquisition, with one token.
//! * [`Extension`]: a new lease for a hold.
//! * [`Lease`], [`Instant`]: how long a hold is valid.
//!
//! A release needs no machine: it goes to every member, and no answer changes what the client may believe.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acquisition;
mod backoff;
mod extension;
mod lease;
mod member_state;
mod quorum;
mod request;
mod vote;

pub use acquisition::{Acquired, Acquisition, FailureReason, Plan, Progress, Verdict};
pub use backoff::Backoff;
pub use dlock_protocol::Fence;
pub use extension::{Extended, Extension};
pub use lease::{Instant, Lease};
pub use quorum::{Member, Quorum};
pub use request::{Outgoing, Request, Sends};
pub use vote::{Failure, Refusal, Vote};

use request::to_all;
