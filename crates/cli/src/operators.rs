//! The subcommands that read the servers, and `break`. They acquire nothing.

pub mod break_holds;
pub mod doctor;
pub mod exporter;
pub mod inspect;
pub mod list;
pub mod log;
pub mod metrics;
pub mod status;
pub mod top;
