//! A safe wrapper of the module API, and the only unsafe code of the project.
//!
//! It knows no locks: the module implements [`Upcalls`], and the server's callbacks here are generic over it.
//! Every entry runs in `raw::guard`, so that no panic reaches the server. Everything that can call the server
//! (a context, an open key, a name) is not `Send`, so a `Send` closure cannot call it.
#![allow(unsafe_code, reason = "the one folder for it")]

mod alloc;
mod blocked;
mod ctx;
pub mod docs;
pub mod inner;
mod key;
mod name;
pub mod notices;
mod raw;
pub mod setup;
pub mod types;
mod upcalls;
pub mod user;
pub mod verdict;

pub use blocked::{block, unblock};
pub use ctx::{Announced, Ctx, Flags, LogLevel};
pub use key::{Key, WrongType};
pub use name::KeyName;
pub use upcalls::{Handle, MainThread, Notice, Section, Upcalls};
pub use user::Waited;

/// Makes a C string of a constant text at compile time.
macro_rules! c_text {
    ($text:expr) => {{
        const TEXT: &str = $text;
        const BYTES: [u8; TEXT.len() + 1] = {
            let mut bytes = [0; TEXT.len() + 1];
            let mut at = 0;
            while at < TEXT.len() {
                bytes[at] = TEXT.as_bytes()[at];
                at += 1;
            }
            bytes
        };
        const C: &::std::ffi::CStr = match ::std::ffi::CStr::from_bytes_with_nul(&BYTES) {
            Ok(text) => text,
            Err(_) => panic!("there is a NUL in it"),
        };
        C
    }};
}
pub(crate) use c_text;
