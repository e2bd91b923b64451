//! The module's own files, and those of the server that it looks at. Nothing here knows the module.

pub mod aof;
pub mod files;
pub mod mark;
pub mod proof;
