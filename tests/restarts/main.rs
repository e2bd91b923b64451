//! State that survives restarts, crashes, lost files and clock changes: holds and fences, and never a second
//! holder.

mod clock;
mod crash;
mod grace;
mod mark;
mod persistence;
