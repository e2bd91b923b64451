//! A safe wrapper of the module API, and the only unsafe code of the project.
//!
//! This folder knows no locks. The functions that the server calls are generic over [`Upcalls`], which the
//! module implements. They run in `raw::catch_panic`, so that no panic reaches the server. The types that can
//! call the server (a context, an open key, a name) are not `Send`. So a `Send` closure cannot call the
//! server.
#![allow(unsafe_code, reason = "the only folder with unsafe code")]

mod alloc;
mod blocked;
pub mod commands;
mod ctx;
pub mod inner;
mod key;
pub mod notices;
mod raw;
pub mod setup;
pub mod types;
mod upcalls;
pub mod user;
pub mod verdict;

pub use blocked::{block, unblock};
pub use ctx::{Ctx, EventFlags, Flags, LogLevel};
pub use key::{Key, WrongType};
pub use raw::KeyName;
pub(crate) use raw::c_text;
pub use upcalls::{Handle, MainThread, Notice, Section, Upcalls};
pub use user::Waited;
