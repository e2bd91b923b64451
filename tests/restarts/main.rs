//! Restarts, crashes, lost files and clock changes: holds are kept, fences rise, and no lock has two holders.
//! `mark` is about the fence mark: a file that lets fences rise even if all other data is lost.

mod clock;
mod crash;
mod grace;
mod mark;
mod persistence;
