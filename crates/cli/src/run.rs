//! The subcommands that acquire, keep or release locks.

pub mod command;
pub mod elect;
pub mod hold;
pub mod parent_run;
pub mod position;
pub mod program;
pub mod session;
pub mod steps;
pub mod supervise;

mod descendants;
