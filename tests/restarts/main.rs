//! What outlasts the end of a server, a crash, a lost file and a changed clock: holds, fences, and that
//! nobody is granted what somebody else still relies on.

mod clock;
mod crash;
mod grace;
mod mark;
mod persistence;
