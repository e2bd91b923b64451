//! The base of this folder: the declarations of the module API, and the guard that keeps panics from the
//! server.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use redis_module::raw as rm;

/// Calls a function of the module API that every supported server has: [`super::setup::missing`] has checked
/// that.
macro_rules! api {
    ($function:ident ( $($arg:expr),* $(,)? )) => {
        match $crate::ffi::raw::rm::$function {
            Some(function) => function($($arg),*),
            None => $crate::ffi::raw::absent(stringify!($function)),
        }
    };
}
pub(super) use api;

/// Not inlined: a command makes a dozen calls, and none should carry this code.
#[cold]
#[inline(never)]
pub(super) fn absent(function: &str) -> ! {
    panic!("the server has no {function}");
}

/// Set after a panic. The state may be half changed from then on, so commands are refused.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Runs one entry of the module. After a panic, which the hook logs, it returns `fallback`, and [`broken`]
/// returns true.
pub(super) fn guard<T>(fallback: T, entry: impl FnOnce() -> T) -> T {
    match catch_unwind(AssertUnwindSafe(entry)) {
        Ok(done) => done,
        Err(payload) => {
            panicked(payload);
            fallback
        }
    }
}

#[cold]
fn panicked(payload: Box<dyn Any + Send>) {
    BROKEN.store(true, Ordering::Relaxed);
    drop(payload);
}

/// Returns whether a panic has happened since the start.
pub(super) fn broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// Returns a C string. A NUL ends the text.
pub(super) fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// Returns a C string that is never freed, for tables that the server keeps pointers to.
pub(super) fn never_freed(text: &str) -> *const c_char {
    if text.is_empty() { std::ptr::null() } else { c_string(text).into_raw() }
}

/// Returns the bytes of a server string.
///
/// # Safety
/// `string` is valid and not changed for `'a`.
pub(super) unsafe fn bytes_of<'a>(string: *const rm::RedisModuleString) -> &'a [u8] {
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
