//! The base of this folder: the declarations of the module API, the function that keeps panics from the
//! server, and strings of C and of the server.

use std::any::Any;
use std::ffi::{CString, c_char};
use std::marker::PhantomData;
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

/// Runs `entry`: the code of one call from the server. After a panic, which the panic hook logs, returns
/// `fallback`. From then on, [`broken`] returns true.
pub(super) fn catch_panic<T>(fallback: T, entry: impl FnOnce() -> T) -> T {
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

// Strings of C.

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

/// Returns `text` as a C string, cut at its first NUL.
pub(super) fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// Returns a C string that is never freed, for tables that the server keeps pointers to. Null if `text` is
/// empty.
pub(super) fn never_freed(text: &str) -> *const c_char {
    if text.is_empty() { std::ptr::null() } else { c_string(text).into_raw() }
}

// Strings of the server.

/// Returns the bytes of a server string.
///
/// # Safety
/// `string` is valid and not changed for `'a`.
pub(super) unsafe fn bytes_of<'a>(string: *const rm::RedisModuleString) -> &'a [u8] {
    if string.is_null() {
        return &[];
    }
    let mut len = 0;
    // SAFETY: by contract; the server returns the bytes of the string and their number.
    unsafe {
        let start = api!(RedisModule_StringPtrLen(string, &mut len));
        std::slice::from_raw_parts(start.cast(), len)
    }
}

/// A borrowed name of a key.
#[derive(Clone, Copy)]
pub struct KeyName<'a>(pub(super) *mut rm::RedisModuleString, PhantomData<&'a ()>);

impl KeyName<'_> {
    /// # Safety
    /// `name` is valid for the lifetime of the result. If `name` is null, no key may be opened with the
    /// result.
    pub(super) unsafe fn new(name: *mut rm::RedisModuleString) -> Self {
        KeyName(name, PhantomData)
    }
}

/// A string that belongs to the module. Freed on drop.
pub struct OwnedString(*mut rm::RedisModuleString);

impl OwnedString {
    pub(super) fn new(bytes: &[u8]) -> OwnedString {
        // With a context, the server's automatic memory management would free the string, too.
        let ctx = std::ptr::null_mut();
        // SAFETY: the server copies the bytes.
        OwnedString(unsafe { api!(RedisModule_CreateString(ctx, bytes.as_ptr().cast(), bytes.len())) })
    }

    /// # Safety
    /// The string is valid, and this value becomes its owner.
    pub(super) unsafe fn from_raw(string: *mut rm::RedisModuleString) -> OwnedString {
        OwnedString(string)
    }

    pub fn name(&self) -> KeyName<'_> {
        KeyName(self.0, PhantomData)
    }

    pub fn bytes(&self) -> &[u8] {
        // SAFETY: the string is valid until it is dropped.
        unsafe { bytes_of(self.0) }
    }
}

impl Drop for OwnedString {
    fn drop(&mut self) {
        // SAFETY: the string was created without a context, and is freed once.
        unsafe { api!(RedisModule_FreeString(std::ptr::null_mut(), self.0)) };
    }
}
