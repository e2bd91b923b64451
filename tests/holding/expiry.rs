//! Expiry of leases: deadlines, and hidden expired holds.

mod deadlines;
mod hidden;
