//! The server's allocator as Rust's global one, so that INFO memory and maxmemory count the memory of locks.

use std::alloc::{GlobalAlloc, Layout};

use super::raw::rm;

struct ServerAlloc;

#[global_allocator]
static ALLOC: ServerAlloc = ServerAlloc;

/// The alignment that jemalloc and every libc guarantee, in bytes.
const MIN_ALIGN: usize = 16;

/// Returns the size to allocate. If the size is a multiple of the alignment, jemalloc returns memory with
/// this alignment. Other allocators need not, but nothing in the module asks for more than [`MIN_ALIGN`].
fn padded(layout: Layout) -> usize {
    if layout.align() <= MIN_ALIGN { layout.size() } else { layout.pad_to_align().size() }
}

// Marked `cold`, so that the compiler places the calls of these functions apart from the other code of a
// command. Calls are rare: an ACQUIRE with its RELEASE allocates only once.
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
