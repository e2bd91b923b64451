//! The base of this folder: the declarations of the module API, the guard that keeps panics from the server,
//! strings of C and of the server, and the allocator.

use std::alloc::{GlobalAlloc, Layout};
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

/// Returns a C string. A NUL ends the text.
pub(super) fn c_string(text: &str) -> CString {
    let text = text.split('\0').next().unwrap_or_default();
    CString::new(text).unwrap_or_default()
}

/// Returns a C string that is never freed, for tables that the server keeps pointers to.
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
    /// `name` is valid for the lifetime of the result. It may be null only if no key is opened with it.
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

// The server's allocator is Rust's global one, so that INFO memory and maxmemory count the memory of locks.

struct ServerAlloc;

#[global_allocator]
static ALLOC: ServerAlloc = ServerAlloc;

/// The alignment that jemalloc and every libc guarantee, in bytes.
const MIN_ALIGN: usize = 16;

/// Returns the size to allocate. jemalloc aligns a size that is a multiple of an alignment to it. With other
/// allocators, nothing in the module asks for more than [`MIN_ALIGN`].
fn padded(layout: Layout) -> usize {
    if layout.align() <= MIN_ALIGN { layout.size() } else { layout.pad_to_align().size() }
}

// Cold, so that the rest of a function's code lies closer together: an ACQUIRE and RELEASE need one
// allocation, and most code that could free memory has none to free.
// SAFETY: forwards to the server's malloc, calloc, realloc and free, which keep the contract of GlobalAlloc.
// Nothing is allocated before the API is loaded. Null means "out of memory" in Rust, too.
unsafe impl GlobalAlloc for ServerAlloc {
    #[cold]
    #[inline(never)]
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        match unsafe { rm::RedisModule_Alloc } {
            Some(alloc) => unsafe { alloc(padded(layout)).cast() },
            None => std::ptr::null_mut(),
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        match unsafe { rm::RedisModule_Calloc } {
            Some(calloc) => unsafe { calloc(1, padded(layout)).cast() },
            None => std::ptr::null_mut(),
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn realloc(&self, old: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        let Ok(new) = Layout::from_size_align(size, layout.align()) else { return std::ptr::null_mut() };
        match unsafe { rm::RedisModule_Realloc } {
            Some(realloc) => unsafe { realloc(old.cast(), padded(new)).cast() },
            None => std::ptr::null_mut(),
        }
    }

    #[cold]
    #[inline(never)]
    unsafe fn dealloc(&self, old: *mut u8, _: Layout) {
        if let Some(free) = unsafe { rm::RedisModule_Free } {
            unsafe { free(old.cast()) }
        }
    }
}
