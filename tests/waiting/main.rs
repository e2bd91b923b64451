//! Waiting for a lock. Each grant is delivered or passes to the next waiter, and each waiter gets one
//! outcome.

mod order;
mod queued;
mod races;
mod refused;
mod removed_keys;
mod scene;
mod strings;
mod timeouts;
mod undelivered;
