//! Holding a lock: every command and mode by cases worked out by hand, when a hold ends, and who is told.

mod commands;
mod ephemeral;
mod events;
mod expiry;
mod guarded;
mod keys;
mod listing;
mod log;
mod many_holders;
mod modes;
