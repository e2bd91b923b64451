//! The words that the module, its clients and its tests share: every command, written and read side by side, the numbers
//! that mean something, and the texts of errors.
//!
//! It decides nothing about locks (`dlock-core` does) and knows no connection: bytes in, values out, and back.
//!
//! - [`units`]: the numbers that mean something, each with its checked constructors
//! - [`names`]: tokens and labels
//! - [`bytes`]: short strings of bytes without an allocation
//! - [`request`]: what may be asked of a lock, in one [`LockRequest`]
//! - [`command`]: every command, parsed and written, with its documentation
//! - [`reply`]: what every command answers, written and read
//! - [`error`]: every error reply, and how a client tells them apart
//! - [`event`]: what keyspace channels announce
//! - [`options`]: the options of a server
//! - [`steps`]: how much work was done, for tests
#![forbid(unsafe_code)]

pub mod bytes;
pub mod command;
pub mod error;
pub mod event;
pub mod names;
pub mod options;
pub mod reply;
pub mod request;
pub mod steps;
pub mod units;

pub use bytes::Bytes;
pub use names::{Label, LabelRef, Token, TokenRef};
pub use request::{LockRequest, LockRequestRef, MAX_COUNT, Mode, Reentry, ReleaseCount};
pub use units::{ClientId, Deadline, Delay, Fence, Instant, Ttl, Wait};
