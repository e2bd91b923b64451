//! Counts units of work: comparisons of byte strings, and holds that are examined one after the other. Tests
//! check by the count that many waiters or holders do not cause quadratic work. Unlike a duration, the count
//! does not depend on the load of the machine. Debug builds only.

#[cfg(debug_assertions)]
thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

/// Counts one unit of work.
#[inline]
pub fn add_one() {
    #[cfg(debug_assertions)]
    TAKEN.with(|taken| taken.set(taken.get() + 1));
}

/// The units of work of this thread so far. Always 0 in a release build.
pub fn taken() -> u64 {
    #[cfg(debug_assertions)]
    return TAKEN.with(std::cell::Cell::get);
    #[cfg(not(debug_assertions))]
    0
}
