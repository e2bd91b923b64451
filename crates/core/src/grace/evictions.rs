//! A server that may evict any key evicts locks too, and so forgets holds whose holders do not know of it.

use crate::queue::Name;

#[derive(Debug, Default)]
pub struct Evictions {
    /// The server may evict any key.
    of_locks: bool,
    /// The lock whose key was taken away last.
    taken_away: Option<Name<'static>>,
}

impl Evictions {
    /// What `maxmemory-policy` says now.
    pub fn configured(&mut self, policy: &str) {
        self.of_locks = policy.starts_with("allkeys-");
    }

    /// Whether locks are evicted when memory is short.
    pub fn take_locks(&self) -> bool {
        self.of_locks
    }

    /// The key of a held lock goes. If that is an eviction, the server says so next.
    pub fn taken_away(&mut self, name: &Name<'_>) {
        self.taken_away = Some(name.to_owned());
    }

    /// A key was evicted, of whatever type. Whether it was that of a held lock.
    pub fn evicted(&mut self, name: &Name<'_>) -> bool {
        self.taken_away.take().is_some_and(|taken| taken == *name)
    }

    /// An eviction is told in the same breath as the key is taken away: what comes later is another's.
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
