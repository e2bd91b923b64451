//! Clusters whose slots move with their locks, holders and waiters. `DLOCK_ROUNDS=50` makes the tests longer.

#![allow(clippy::disallowed_methods, reason = "these clients check their leases by their clock")]

mod client;
mod one_lock;
mod reshard;
