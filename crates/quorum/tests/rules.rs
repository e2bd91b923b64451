//! The rules of a quorum, one by one, on the state machines without I/O: the requests that are sent, the
//! answers that count, and the beginning of validity.
mod rules {
    pub mod acquiring;
    pub mod adopting;
    pub mod attempts;
    pub mod confirming;
    pub mod extending;
    pub mod helpers;
    pub mod queue_choice;
    pub mod queueing;
    pub mod random;
}
