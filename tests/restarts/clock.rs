//! A wall clock that jumps or stops: leases, waits and fences do not depend on it, but a plain `SET NX PX`
//! does.

#![allow(clippy::disallowed_methods, reason = "leases and waits as their clients see them")]

mod load;
mod namespaces;
mod steps;
