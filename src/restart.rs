//! What survives a restart besides the keys: the grace period after a loss of holds, and the fence mark on
//! the disk.

mod file;
pub mod grace;
pub mod mark;
