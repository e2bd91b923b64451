//! What every file of this room stands on: the declarations of the module API, and the way in that no panic
//! leaves.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, Ordering};

pub(super) use redis_module::raw as rm;

/// Calls a function of the module API that every supported server has; [`super::setup::missing`] has looked.
macro_rules! api {
    ($function:ident ( $($arg:expr),* $(,)? )) => {
        match $crate::ffi::raw::rm::$function {
            Some(function) => function($($arg),*),
            None => $crate::ffi::raw::absent(stringify!($function)),
        }
    };
}
pub(super) use api;

/// Out of the way of the calls, of which a command makes a dozen.
#[cold]
#[inline(never)]
pub(super) fn absent(function: &str) -> ! {
    panic!("the server has no {function}");
}

/// Set by a panic. The state may be half changed from then on, so commands are refused.
static BROKEN: AtomicBool = AtomicBool::new(false);

/// Runs one entry of the module. A panic ends here: it is logged by the hook, answered by `fallback`,
/// remembered.
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

/// Whether an internal error happened since the start.
pub(super) fn broken() -> bool {
    BROKEN.load(Ordering::Relaxed)
}

/// A C string; bytes behind a NUL are cut off.
pub(super) fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// A C string that lives as long as the server: for tables the server keeps pointers into.
pub(super) fn forever(text: &str) -> *const c_char {
    if text.is_empty() { std::ptr::null() } else { c_string(text).into_raw() }
}

/// The bytes of a server string.
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
