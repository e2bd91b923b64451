//! Leases: when they end, who sees it, and which clock says so.

#[path = "../harness/mod.rs"]
mod harness;

mod unseen;
mod wall_clock;
mod when;
