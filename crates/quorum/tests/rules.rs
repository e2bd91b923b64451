//! The rules of a quorum, one by one, on its own machines: who is asked what, what counts, and from when.
mod rules {
    pub mod acquiring;
    pub mod adopting;
    pub mod confirming;
    pub mod extending;
    pub mod queueing;
    pub mod random;
    pub mod words;
}
