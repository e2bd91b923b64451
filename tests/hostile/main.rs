//! Input that means no good: files that nobody's server wrote, users who try what they may not, requests made
//! to fill the memory, and where a token may be read.

mod background;
mod damage;
mod files;
mod guarded;
mod memory;
mod modules;
mod secrets;
mod threads;
mod tokens;
mod users;
mod withdrawn_rights;
