//! The Rust client of dlock. Its lock service is one server, a cluster, or a quorum of independent servers
//! (Redlock). Each hold on one server has a fencing token, greater than all earlier ones of the lock. In a
//! quorum, a majority must grant each lock, and [`Acquire::fenced`] requests such a fencing token.
//!
//! * [`Client`]: a lock service. [`ClientBuilder`] names its servers, [`blocking::Client`] is for threads.
//! * [`Acquire`]: acquires a lock with the chosen options; [`AcquireAll`] acquires several locks.
//! * [`Leader`]: elects one of many processes.
//! * [`Guard`]: a hold. It is renewed in the background, reports its loss, and releases the lock on drop.
//!   [`Cancellation`] watches for a loss without the guard.
//! * [`Fence`]: the number of a hold, for stores that reject writes of earlier holders.
//! * [`AcquireError`], [`Lost`] and the other errors have a [`Report`]: the state of each server.
//!
//! A server of the client is called a master (as opposed to its replicas), and in a quorum also a member. The
//! one server may also be the master that sentinels name, or the lock service a Redis Cluster: see
//! [`ClientBuilder::server`].
//!
//! This crate is no general Redis client. It does not decide which requests a server grants (`dlock-core`
//! does) or how votes count (`dlock-quorum` does). It cannot stop a holder that continues past its validity:
//! only a store that checks fences can.
//!
//! ```no_run
//! use dlock_client::{Client, Wait};
//! use std::time::Duration;
//!
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = Client::builder()
//!     .servers(["redis://10.0.0.1", "redis://10.0.0.2", "redis://10.0.0.3"])
//!     .build()
//!     .await?;
//! let guard = client
//!     .lock("invoice:42")
//!     .ttl(Duration::from_secs(30)) // renewed in the background when a third of it has passed
//!     .wait(Wait::For(Duration::from_secs(10)))
//!     .fenced()
//!     .await?;
//! tokio::select! {
//!     () = bill(42, guard.fence()) => {}
//!     // `lost` returns only if the hold is lost, and does so before the lease ends.
//!     why = guard.lost() => return Err(why.into()),
//! }
//! guard.release().await?; // a dropped guard is released in the background
//! client.close().await; // before the process exits: waits for releases in the background
//! # Ok(())
//! # }
//! # async fn bill(_invoice: u32, _fence: Option<dlock_client::Fence>) {}
//! ```
//!
//! A server that is down is not an error until a lock needs it. So this example needs no server:
//!
//! ```
//! use dlock_client::{AcquireError, Client, Retry};
//! use std::time::Duration;
//!
//! # tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(async {
//! let client = Client::builder()
//!     .server("redis://127.0.0.1:1")
//!     .retry(Retry::new(0, Duration::ZERO))
//!     .build()
//!     .await
//!     .expect("the address is valid");
//! match client.lock("invoice:42").try_acquire().await {
//!     Ok(Some(guard)) => println!("held, with the fence {:?}", guard.fence()),
//!     Ok(None) => println!("another client holds it"),
//!     // The server did not answer, so another client may hold the lock. The report has the server's state.
//!     Err(AcquireError::QuorumImpossible { report, .. }) => assert!(report.to_string().contains("down")),
//!     Err(why) => panic!("{why}"),
//! }
//! # });
//! ```
//!
//! Without a runtime, use [`blocking`].
//!
//! Renewals and losses are events of `tracing`, in a span `hold` with the resource and the fence.
#![forbid(unsafe_code)]
#![warn(missing_docs)]

#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

mod acquire;
mod background;
pub mod blocking;
mod client;
mod clock;
mod error;
mod hold;
mod holder;
mod inspect;
mod leader;
mod options;
mod queue;
mod reading;
mod request;
mod service;
mod sync;
mod topology;
mod transport;
mod wait;

pub use acquire::all::AcquireAll;
pub use acquire::{Acquire, Async};
pub use client::{Client, Walk};
pub use clock::{now, sleep_until};
pub use dlock_protocol::{Fence, Token};
pub use dlock_quorum::{Denied, Fault, FaultKind, Instant, majority};
pub use error::{
    AcquireError, BuildError, ExtendError, Lost, NoQuorum, NodeReport, NodeState, ReleaseError, Report,
};
pub use hold::guard::{Cancellation, ForgottenHold, Guard, Guards};
pub use holder::Holder;
pub use inspect::{
    Answer, Clock, ClusterState, Inspected, Inspection, Listed, Logged, Needed, Position, Sentinel, Waiting,
};
pub use leader::{Leader, Leaders};
pub use options::{ClientBuilder, Retry};
pub use wait::Wait;
