//! Leases: when they end, and who sees it.

mod deadlines;
mod hidden;
