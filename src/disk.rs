//! The module's own files. Nothing here knows the module.

pub mod files;
pub mod mark;
