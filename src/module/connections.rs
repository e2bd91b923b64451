//! The connections of those who wait: who is told when a waiter is answered, and who leaves when a connection
//! closes.

use std::collections::HashMap;

use dlock_core::{WaiterId, give_back};

use crate::ffi::Handle;

#[derive(Default)]
pub struct Connections {
    of_waiters: HashMap<WaiterId, Handle>,
    waiters: HashMap<Handle, WaiterId>,
}

impl Connections {
    pub fn block(&mut self, waiter: WaiterId, handle: Handle) {
        self.of_waiters.insert(waiter, handle);
        self.waiters.insert(handle, waiter);
    }

    /// Who waits on this one.
    pub fn waiter(&self, handle: Handle) -> Option<WaiterId> {
        self.waiters.get(&handle).copied()
    }

    /// The connection of a waiter, which is answered now or gone.
    pub fn unblock(&mut self, waiter: WaiterId) -> Option<Handle> {
        let handle = self.of_waiters.remove(&waiter)?;
        self.waiters.remove(&handle);
        give_back(&mut self.of_waiters);
        give_back(&mut self.waiters);
        Some(handle)
    }
}
