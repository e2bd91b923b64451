//! What a key holds. How it is read and written is in
//! [`crate::upcalls`].

use dlock_core::background::Background;
use dlock_core::codec::Anchor;
use dlock_core::scheduled::Scheduled;
use dlock_core::{Ephemeral, Lock};

use crate::ffi;

/// A key that is open.
pub type Key<'a> = ffi::Key<'a, Value>;

#[derive(Default)]
pub struct Value {
    pub lock: Lock,
}

/// A size class of every allocator that servers have; the next one is 80.
const _: () = assert!(size_of::<Value>() == 64);

impl Value {
    /// Bytes it takes, its place in a row of the schedule and what binds its holds to connections included.
    pub fn memory(&self, key: usize) -> usize {
        let scheduled = self.lock.slot().map_or(0, |_| Scheduled::ENTRY_SIZE);
        let bindings = self.lock.bound() * Background::binding_size(key);
        self.lock.size() + scheduled + bindings
    }

    /// Feeds what has to be equal on a replica. Deadlines by the boot-time clock, which two servers of a
    /// machine share.
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
