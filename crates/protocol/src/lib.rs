//! What the module, its clients and its tests say to each other: every command and its reply, each written
//! and read side by side, the error words, the events and the options.
//!
//! It decides nothing about locks (`dlock-core` does) and knows no connection: bytes in, values out, and
//! back.
//!
//! - [`units`]: the numbers that mean something, each with its checked constructors
//! - [`names`]: tokens and labels
//! - [`owner`]: whose tokens are
//! - [`bytes`]: short strings of bytes without an allocation
//! - [`request`]: what may be asked of a lock, in one [`LockRequest`]
//! - [`notify`]: how the end of a queued wait is published
//! - [`command`]: every command, parsed and written, with its documentation
//! - [`reply`]: what every command answers, written and read
//! - [`error`]: every error reply, and how a client tells them apart
//! - [`event`]: what keyspace channels announce
//! - [`options`]: the options of a server
//! - [`steps`]: how much work was done, for tests
//!
//! ```
//! use dlock_protocol::command::Acquire;
//! use dlock_protocol::error::{Class, Error};
//! use dlock_protocol::{Delay, LockRequest, Token, Ttl};
//!
//! // A client asks.
//! let token = Token::new(b"a fresh token").unwrap();
//! let delay = Delay::from_millis(500).unwrap();
//! let request = LockRequest { delay, ..LockRequest::new(token, Ttl::from_millis(30_000).unwrap()) };
//! let (key, request) = (b"invoice:42".as_slice(), request.borrowed());
//! let args = Acquire { key, request, block: None, queue: None }.to_args();
//! assert_eq!(args.join(&b' '), b"DLOCK.ACQUIRE invoice:42 a fresh token 30000 DELAY 500");
//!
//! // The module reads it, and may refuse.
//! let args: Vec<&[u8]> = args[1..].iter().map(Vec::as_slice).collect();
//! assert_eq!(Acquire::parse(&args, Ttl::MAX).unwrap().request, request);
//! assert_eq!(Class::of(&Error::Grace(1500).to_string()), Class::Grace(1500));
//! ```
#![forbid(unsafe_code)]

pub mod bytes;
pub mod command;
pub mod error;
pub mod event;
pub mod names;
pub mod notify;
pub mod options;
pub mod owner;
pub mod reply;
pub mod request;
pub mod steps;
pub mod units;

pub use bytes::Bytes;
pub use names::{Label, LabelRef, Token, TokenRef};
pub use notify::{Notify, NotifyRef};
pub use owner::{OwnerId, OwnerIdRef};
pub use request::{LockRequest, LockRequestRef, MAX_COUNT, Mode, Reentry, ReleaseCount};
pub use units::{ClientId, Deadline, Delay, Fence, Instant, Ttl, Wait};
