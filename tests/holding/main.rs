//! Holds: commands and modes, expiry, events, and keys under other commands.

mod commands;
mod ephemeral;
mod events;
mod expiry;
mod guarded;
mod keys;
mod listing;
mod log;
mod many_holders;
