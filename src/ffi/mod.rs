//! The module API, made safe: the only `unsafe` of the project.
//!
//! It knows no locks: whoever uses it implements [`Upcalls`], and what the server calls is generic over that.
//! Every way into the module goes through `raw::guard`, so that no panic reaches the server. Whatever leads
//! to the server (a context, an open key, a name) is not `Send`, so a closure that has to be cannot call it.
#![allow(unsafe_code, reason = "the one room for it")]

mod alloc;
mod blocked;
mod client;
mod ctx;
pub mod docs;
pub mod inner;
mod key;
pub mod load;
mod name;
pub mod notices;
mod outgoing;
mod raw;
mod rights;
mod section;
pub mod setup;
pub mod types;
mod upcalls;
pub mod user;
pub mod verdict;

pub use blocked::{block, unblock};
pub use ctx::{Announced, Ctx, Flags, LogLevel};
pub use key::{Key, WrongType};
pub use name::KeyName;
pub use rights::Waited;
pub use section::Section;
pub use upcalls::{Handle, MainThread, Notice, Upcalls};

/// A text that is known when this is compiled, as the server wants it.
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
