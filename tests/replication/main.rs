//! What goes over the replication link, and what replicas make of it.

#![allow(clippy::disallowed_methods, reason = "a seed for random work")]

#[path = "../harness/mod.rs"]
mod harness;

mod handover;
mod replicas;
mod same;
mod stream;
