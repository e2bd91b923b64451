//! Hostile input: damaged files, users without rights, requests that fill the memory, and places that show
//! tokens.

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
