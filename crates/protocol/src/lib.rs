//! The wire protocol of dlock: commands, replies, errors, events and options. Each has its parser beside its
//! writer, so that the module, the clients and the tests share one definition.
//!
//! This crate does no I/O. The decisions about locks are in `dlock-core`.
//!
//! - [`LockRequest`]: the options of an ACQUIRE, in one value that the core, waiters and clients share
//! - [`command`]: each command, parsed and written, with its documentation
//! - [`reply`]: the reply of each command, written and read
//! - [`error::Error`]: each error reply; [`error::Class`]: its meaning for a client
//! - [`units`]: newtypes for times, fences and client ids, with checked constructors
//! - [`names`]: tokens, owners and labels
//! - [`event`]: keyspace events, and messages about the end of a queued wait
//! - [`options`]: the options of a server
//! - [`bytes`]: byte strings that need no allocation if they are short
//! - [`steps`]: a counter of work, for tests
//!
//! ```
//! use dlock_protocol::command::Acquire;
//! use dlock_protocol::error::{Class, Error};
//! use dlock_protocol::{Delay, LockRequest, Token, Ttl};
//!
//! // A client writes a command.
//! let token = Token::new(b"a fresh token").unwrap();
//! let delay = Delay::from_millis(500).unwrap();
//! let request = LockRequest { delay, ..LockRequest::new(token, Ttl::from_millis(30_000).unwrap()) };
//! let (key, request) = (b"invoice:42".as_slice(), request.borrowed());
//! let args = Acquire { key, request, block: None, queue: None }.to_args();
//! assert_eq!(args.join(&b' '), b"DLOCK.ACQUIRE invoice:42 a fresh token 30000 DELAY 500");
//!
//! // The module parses it. The client reads an error reply.
//! let args: Vec<&[u8]> = args[1..].iter().map(Vec::as_slice).collect();
//! assert_eq!(Acquire::parse(&args, Ttl::MAX, Ttl::MAX).unwrap().request, request);
//! assert_eq!(Class::of(&Error::Grace(1500).to_string()), Class::Grace(1500));
//! ```
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
pub use event::{Notify, NotifyRef};
pub use names::{Label, LabelRef, OwnerId, OwnerIdRef, Token, TokenRef};
pub use request::{LockRequest, LockRequestRef, MAX_COUNT, Mode, Reentry, ReleaseCount};
pub use units::{ClientId, Deadline, Delay, Fence, Instant, Ttl, Wait};
