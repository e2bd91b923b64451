//! A wall clock that is set forth, set back or stands still under the server: leases, waits and fences do not
//! notice, and a plain `SET NX PX` does.

#![allow(clippy::disallowed_methods, reason = "leases and waits as their clients see them")]

mod leases;
mod load;
mod namespaces;
mod steps;
