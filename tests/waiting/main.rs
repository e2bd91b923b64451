//! Waiting: in which order, for how long, and how it ends. Each grant is delivered or rolls on; each waiter
//! gets one outcome.

mod native_ttl;
mod order;
mod queued;
mod races;
mod refused;
mod removed_keys;
mod scene;
mod strings;
mod timeouts;
mod undelivered;
