//! Restarts, crashes, lost files and clock changes: holds are kept, fences rise, and no lock has two holders.

mod clock;
mod crash;
mod grace;
mod mark;
mod persistence;
