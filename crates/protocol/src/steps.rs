//! How much work is done, counted for the tests of scale, in debug builds only: comparisons of tokens, and
//! holds that are looked at one after the other. Time says little on a machine that has other work too.

#[cfg(debug_assertions)]
thread_local! {
    static TAKEN: std::cell::Cell<u64> = const { std::cell::Cell::new(0) };
}

#[inline]
pub fn one() {
    #[cfg(debug_assertions)]
    TAKEN.with(|taken| taken.set(taken.get() + 1));
}

/// How many this thread has taken so far; always 0 in a release build.
pub fn taken() -> u64 {
    #[cfg(debug_assertions)]
    return TAKEN.with(std::cell::Cell::get);
    #[cfg(not(debug_assertions))]
    0
}
