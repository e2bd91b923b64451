//! How a wait ends.

use dlock_protocol::Fence;
pub use dlock_protocol::error::Refusal;

/// What a grant changed, so that a grant that could not be delivered can be taken back.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Granted {
    /// It began a hold.
    New,
    /// It made a sharer the exclusive holder.
    Upgrade,
    /// The token held the lock already.
    Renewal,
}

/// The one answer that a waiter gets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    Granted(Fence, Granted),
    /// Its wait timed out.
    TimedOut,
    /// CANCEL removed it from the queue, or the connection closed that its position was bound to.
    Cancelled,
    /// Its own token removed it: by RELEASE, or to wait in another mode.
    Left,
    /// Its request had become impossible when its turn came.
    Refused(Refusal),
}
