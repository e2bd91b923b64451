//! What goes over the replication link, and what replicas make of it.

#[path = "../harness/mod.rs"]
mod harness;

mod handover;
mod replicas;
mod same;
mod stream;
