//! Leases, waits and fences do not depend on a wall clock that jumps or stops. A `SET NX PX` lock does.

#![allow(clippy::disallowed_methods, reason = "measures leases and waits as their clients do")]

mod load;
mod namespaces;
mod steps;
