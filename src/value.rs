//! The value of a key. [`crate::upcalls`] reads and writes its bytes.

use dlock_core::background::Background;
use dlock_core::codec::Anchor;
use dlock_core::due_locks::DueLocks;
use dlock_core::{Ephemeral, Lock};

use crate::ffi;

/// An open key of the module.
pub type Key<'a> = ffi::Key<'a, Value>;

#[derive(Default)]
pub struct Value {
    pub lock: Lock,
}

/// 64 is a size class of every allocator that servers use; the next one is 80.
const _: () = assert!(size_of::<Value>() == 64);

impl Value {
    /// Returns the bytes of memory, its entry in the schedule and the bindings of its holds to connections
    /// included.
    pub fn memory(&self, key: usize) -> usize {
        let scheduled = self.lock.slot().map_or(0, |_| DueLocks::ENTRY_SIZE);
        let bindings = self.lock.bound() * Background::binding_size(key);
        self.lock.size() + scheduled + bindings
    }

    /// Feeds everything that must be equal on a replica. Deadlines are given by the boot-time clock, which
    /// two servers on one machine share.
    pub fn digest(&self, anchor: Anchor, add: &mut dyn FnMut(&[u8])) {
        let delay = self.lock.delay_until().map(|until| until.millis() as i64 - anchor.offset);
        add(format!("{:?} {delay:?}", self.lock.mode()).as_bytes());
        let mut holds: Vec<_> = self.lock.stored().collect();
        holds.sort_by_key(|hold| hold.token());
        for hold in holds {
            add(hold.token().as_bytes());
            add(hold.label());
            let deadline = hold.deadline().millis() as i64 - anchor.offset;
            let granted = hold.granted().millis() as i64 - anchor.offset;
            let ephemeral = hold.ephemeral() != Ephemeral::No;
            let numbers = format!(
                "{} {deadline} {granted} {} {} {} {ephemeral}",
                hold.fence().get(),
                hold.ttl().millis(),
                hold.count(),
                hold.delay().millis()
            );
            add(numbers.as_bytes());
        }
    }
}
