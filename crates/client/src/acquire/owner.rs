//! Whose a lock is, for the search for deadlocks.

use dlock_protocol::OwnerId;

use super::Acquire;

impl<C> Acquire<C> {
    /// Names the owner of the lock, 1 to 255 bytes: a job, a process, a thread. The servers then see
    /// deadlocks between owners, each of which holds one lock and waits for another, and refuse the last wait
    /// with [`AcquireError::Deadlock`](crate::AcquireError::Deadlock). Without it, no cycle is seen, for each
    /// acquisition has a token of its own.
    ///
    /// An owner must release nothing while it waits. What waits side by side needs names of its own:
    /// `job/1` and `job/2` are within `job`, which releases nothing as long as one of them waits.
    pub fn owner(mut self, owner: impl AsRef<[u8]>) -> Self {
        self.options.owner = Some(owner.as_ref().to_vec());
        self
    }
}

pub(super) fn checked(owner: Option<&Vec<u8>>) -> Result<Option<OwnerId>, String> {
    let checked = owner.map(|owner| OwnerId::new(owner));
    checked.map(|owner| owner.ok_or("an owner must have 1 to 255 bytes".into())).transpose()
}
