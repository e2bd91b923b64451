//! The module API, made safe: the only `unsafe` of the project.
//!
//! It knows no locks. Every way into the module goes through [`guard`], so that no panic reaches the server; nothing
//! that the server may call back from is called while the module's state is borrowed (see [`MainThread`]).

use std::cell::RefCell;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

pub use redis_module::raw as rm;

mod alloc;
pub mod blocked;
mod ctx;
pub mod docs;
mod key;
pub mod notices;
mod rights;
pub mod setup;
pub mod types;
mod user;
pub mod verdict;

pub use blocked::Handle;
pub use ctx::{Ctx, Flags, LogLevel, OwnedString};
pub use key::{Key, WrongType};
pub use rights::Waited;
pub use verdict::Verdict;

/// Calls a function of the module API that every supported server has; [`setup::missing`] has looked.
macro_rules! api {
    ($function:ident ( $($arg:expr),* $(,)? )) => {
        match crate::ffi::rm::$function {
            Some(function) => function($($arg),*),
            None => panic!(concat!("the server has no ", stringify!($function))),
        }
    };
}
pub(crate) use api;

/// Set by a panic. The state may be half changed from then on, so commands are refused.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Runs one entry of the module. A panic ends here: it is logged by the hook, answered by `fallback`, remembered.
fn guard<T>(fallback: T, entry: impl FnOnce() -> T) -> T {
    catch_unwind(AssertUnwindSafe(entry)).unwrap_or_else(|_| {
        BROKEN.store(true, Ordering::Relaxed);
        fallback
    })
}

/// Whether an internal error happened since the start.
pub fn broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Something only the server's main thread touches.
pub struct MainThread<T>(RefCell<Option<T>>);

// SAFETY: every entry of the module that reaches a `MainThread` is called by the server's main thread while it holds
// the server's global lock. The one entry that other threads call (the key type's `free`) reaches none.
unsafe impl<T> Sync for MainThread<T> {}

impl<T> MainThread<T> {
    pub const fn empty() -> Self {
        MainThread(RefCell::new(None))
    }

    pub fn set(&self, value: T) {
        *self.0.borrow_mut() = Some(value);
    }

    pub fn unset(&self) {
        *self.0.borrow_mut() = None;
    }

    /// The closure must not call the server: many calls come back into the module (an expired key, an unlinked key),
    /// and the second borrow would panic.
    #[inline]
    pub fn with<R>(&self, run: impl FnOnce(&mut T) -> R) -> R {
        let mut value = self.0.borrow_mut();
        run(value.as_mut().expect("used before it was set"))
    }
}

/// A C string; bytes behind a NUL are cut off.
fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// A C string that lives as long as the server: for tables the server keeps pointers into.
fn forever(text: &str) -> *const c_char {
    if text.is_empty() { std::ptr::null() } else { c_string(text).into_raw() }
}

/// The bytes of a server string.
///
/// # Safety
/// `string` is valid and not changed for `'a`.
unsafe fn bytes_of<'a>(string: *const rm::RedisModuleString) -> &'a [u8] {
    if string.is_null() {
        return &[];
    }
    let mut len = 0;
    // SAFETY: by contract; the server answers the bytes of the string and their number.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(string, &mut len));
        std::slice::from_raw_parts(start.cast(), len)
    }
}
