//! A cluster whose slots move with locks in them, held and waited for. `DLOCK_ROUNDS=50` is the long form.

#![allow(clippy::disallowed_methods, reason = "clients rely on a lease by their clock")]

mod client;
mod demoted;
mod down;
mod guarded;
mod isolated;
mod nodes;
mod one_lock;
mod queued;
mod reshard;
