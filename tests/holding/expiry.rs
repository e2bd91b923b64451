//! Leases: when they end, and who sees it.

mod unseen;
mod when;
