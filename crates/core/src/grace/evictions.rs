//! Evictions of held locks. Their holders do not know of them, so they begin a grace period.

use crate::queue::Name;

#[derive(Debug, Default)]
pub struct Evictions {
    /// The server may evict any key, not only keys with a TTL.
    of_locks: bool,
    /// The held lock whose key was removed last.
    taken_away: Option<Name<'static>>,
}

impl Evictions {
    /// Sets the `maxmemory-policy`.
    pub fn configured(&mut self, policy: &str) {
        self.of_locks = policy.starts_with("allkeys-");
    }

    /// Whether locks can be evicted.
    pub fn take_locks(&self) -> bool {
        self.of_locks
    }

    /// The key of a held lock is removed. If it is evicted, the server reports that next.
    pub fn taken_away(&mut self, name: &Name<'_>) {
        self.taken_away = Some(name.to_owned());
    }

    /// A key of any type was evicted. Returns whether a held lock was.
    pub fn evicted(&mut self, name: &Name<'_>) -> bool {
        self.taken_away.take().is_some_and(|taken| taken == *name)
    }

    /// The server reports an eviction directly after it removes the key: a later report is about another key.
    pub fn tick(&mut self) {
        self.taken_away = None;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_eviction_told_next_after_a_held_lock_went_is_of_that_lock() {
        let (lock, other) = (Name::new(0, b"lock"), Name::new(1, b"lock"));
        let mut evictions = Evictions::default();
        assert!(!evictions.evicted(&lock));
        evictions.taken_away(&lock);
        assert!(!evictions.evicted(&other) && !evictions.evicted(&lock));
        evictions.taken_away(&lock);
        assert!(evictions.evicted(&lock) && !evictions.evicted(&lock));
        evictions.taken_away(&lock);
        evictions.tick();
        assert!(!evictions.evicted(&lock));
    }
}
