//! Leases: when they end, and who sees it.

#[path = "../harness/mod.rs"]
mod harness;

mod unseen;
mod when;
