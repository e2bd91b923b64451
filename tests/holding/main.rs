//! Holds: dlock's commands, expiry, events, and the effects of the server's own commands on the key of a
//! lock.

mod commands;
mod ephemeral;
mod events;
mod expiry;
mod guarded;
mod keys;
mod listing;
mod log;
mod many_holders;
