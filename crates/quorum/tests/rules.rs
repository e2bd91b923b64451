//! The rules of a quorum, one by one, without I/O: which requests are sent, which answers count, and when
//! the validity of a hold begins.

mod rules {
    pub mod acquiring;
    pub mod adopting;
    pub mod attempts;
    pub mod confirming;
    pub mod extending;
    pub mod helpers;
    pub mod messages;
    pub mod queue_choice;
    pub mod queueing;
    pub mod random;
}
