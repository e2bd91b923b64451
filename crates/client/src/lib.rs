//! The client of dlock: one lock service made of one server, or of a majority of independent ones (a Redlock
//! quorum) with fences that rise over all of them.
//!
//! What it does not do: it is no general Redis client, it never decides what a server may grant (`dlock-core` does),
//! and it cannot stop a holder that runs on past its validity: only a store that checks fences can.
//!
//! The protocol is in [`quorum`], without sockets, clock or randomness, so that the async client and the model
//! checker (`tests/model.rs`) drive the very same code.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

mod acquire;
mod backoff;
mod client;
mod clock;
mod error;
mod guard;
mod inspect;
pub mod lease;
mod node;
mod options;
pub mod quorum;
mod reading;
mod request;
mod service;

pub use acquire::all::AcquireAll;
pub use acquire::{Acquire, Wait};
pub use client::Client;
pub use clock::{now, sleep_until};
pub use dlock_protocol::{Fence, Token};
pub use error::{
    AcquireError, BuildError, ExtendError, Lost, NoQuorum, NodeReport, NodeState, ReleaseError, Report,
};
pub use guard::{ForgottenHold, Guard, Guards};
pub use inspect::{Answer, Holder, Inspected, Inspection, Position, Waiting};
pub use options::{ClientBuilder, Retry};
