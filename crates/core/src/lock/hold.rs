//! The hold of one token, as it is kept in memory.

use std::collections::BTreeSet;
use std::num::NonZeroU32;

use dlock_protocol::{ClientId, Deadline, Delay, Fence, Instant, Label, OwnerId, Token, Ttl};

use crate::schedule::Slot;

/// Whether a hold ends when its connection closes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ephemeral {
    No,
    Bound(ClientId),
    /// The hold was bound to a connection before this server was restarted or promoted. The server does not
    /// know that connection, so no closed connection ends the hold.
    Orphan,
}

/// The hold of one token. Each of its numbers takes fewer than 8 bytes, so that a lock with one hold (the
/// value of a key) fits into one allocation of 64 bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    identity: Identity,
    fence: Number<7>,
    deadline: Number<6>,
    /// Time of the grant, in ms.
    granted: Number<6>,
    ttl: Ttl,
    /// The id of the connection that got the grant, for display only. 0 if unknown.
    client: NotCompared<Number<5>>,
    /// The slot of the lock in the schedule, if this hold is exclusive: see [`super::Lock::slot`].
    pub(super) slot: NotCompared<Option<Slot>>,
}

/// The token, with the attributes that few holds have.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Identity {
    Bare(Token),
    WithExtras(Box<(Token, Extras)>),
}

/// A field that is in memory only: neither persisted nor replicated. Comparisons ignore it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NotCompared<T>(pub T);

impl<T> PartialEq for NotCompared<T> {
    fn eq(&self, _: &NotCompared<T>) -> bool {
        true
    }
}

impl<T> Eq for NotCompared<T> {}

/// A number in N bytes. A greater number becomes the greatest one that fits. Six bytes are enough for
/// nine thousand years in ms, seven for every fence.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Number<const N: usize>([u8; N]);

impl<const N: usize> Number<N> {
    const MAX: u64 = u64::MAX >> (64 - 8 * N);

    fn new(number: u64) -> Self {
        let mut bytes = [0; N];
        bytes.copy_from_slice(&number.min(Self::MAX).to_le_bytes()[..N]);
        Number(bytes)
    }

    fn get(self) -> u64 {
        let mut bytes = [0; 8];
        bytes[..N].copy_from_slice(&self.0);
        u64::from_le_bytes(bytes)
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extras {
    pub ephemeral: Ephemeral,
    /// The lock-delay: the pause before the next grant if this hold expires or loses its connection.
    pub delay: Delay,
    pub label: Label,
    /// The hold count.
    pub count: NonZeroU32,
    /// The option OWNER of ACQUIRE, for the search for deadlocks. Neither persisted nor replicated.
    pub owner: Option<Box<OwnerId>>,
}

impl Extras {
    pub const NONE: Extras = Extras {
        ephemeral: Ephemeral::No,
        delay: Delay::NONE,
        label: Label::NONE,
        count: NonZeroU32::MIN,
        owner: None,
    };
}

impl Hold {
    /// A hold without extras.
    pub(crate) fn new(token: Token, fence: Fence, granted: Instant, deadline: Deadline, ttl: Ttl) -> Hold {
        Hold {
            identity: Identity::Bare(token),
            fence: Number::new(fence.get()),
            deadline: Number::new(deadline.millis()),
            granted: Number::new(granted.millis()),
            ttl,
            client: NotCompared(Number::new(0)),
            slot: NotCompared(None),
        }
    }

    #[inline]
    pub fn token(&self) -> &Token {
        match &self.identity {
            Identity::Bare(token) => token,
            Identity::WithExtras(boxed) => &boxed.0,
        }
    }
    pub(crate) fn into_token(self) -> Token {
        match self.identity {
            Identity::Bare(token) => token,
            Identity::WithExtras(boxed) => boxed.0,
        }
    }
    fn extras(&self) -> Option<&Extras> {
        match &self.identity {
            Identity::Bare(_) => None,
            Identity::WithExtras(boxed) => Some(&boxed.1),
        }
    }
    pub fn fence(&self) -> Fence {
        Fence::from_outside(self.fence.get()).unwrap_or(Fence::MIN)
    }
    pub fn deadline(&self) -> Deadline {
        Deadline::at_millis(self.deadline.get())
    }
    pub fn granted(&self) -> Instant {
        Instant::from_millis(self.granted.get())
    }
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }
    pub fn count(&self) -> u32 {
        self.nonzero_count().get()
    }
    pub(crate) fn nonzero_count(&self) -> NonZeroU32 {
        self.extras().map_or(NonZeroU32::MIN, |x| x.count)
    }
    pub fn ephemeral(&self) -> Ephemeral {
        self.extras().map_or(Ephemeral::No, |x| x.ephemeral)
    }
    /// Whether the hold has extras that are persisted.
    pub(crate) fn has_extras(&self) -> bool {
        self.extras().is_some_and(|Extras { ephemeral, delay, label, count, owner: _ }| {
            *ephemeral != Ephemeral::No
                || !delay.is_none()
                || *label != Label::NONE
                || *count > NonZeroU32::MIN
        })
    }
    /// The connection that the hold is bound to, or was granted to. It can have closed since.
    pub fn client(&self) -> Option<ClientId> {
        match self.ephemeral() {
            Ephemeral::Bound(client) => Some(client),
            // No connection has the id 0.
            Ephemeral::No => Some(ClientId(self.client.0.get())).filter(|client| client.0 > 0),
            Ephemeral::Orphan => None,
        }
    }
    pub fn delay(&self) -> Delay {
        self.extras().map_or(Delay::NONE, |x| x.delay)
    }
    pub fn label(&self) -> &[u8] {
        self.extras().map_or(&[], |x| x.label.as_bytes())
    }
    pub fn owner(&self) -> Option<&OwnerId> {
        self.extras()?.owner.as_deref()
    }

    /// Age of the hold in ms.
    pub fn held_millis(&self, now: Instant) -> u64 {
        now.millis_since(self.granted())
    }

    /// End of the lock-delay that follows if this hold expires. `None` for no delay.
    pub(crate) fn delay_until(&self) -> Option<Deadline> {
        let delay = self.delay();
        (!delay.is_none()).then(|| self.deadline().plus_millis(delay.millis()))
    }

    pub(crate) fn is_bound(&self) -> bool {
        matches!(self.ephemeral(), Ephemeral::Bound(_))
    }

    /// An id beyond the range of the field becomes 0 (unknown).
    pub(crate) fn set_client(&mut self, client: ClientId) {
        self.client.0 = Number::new(if client.0 < Number::<5>::MAX { client.0 } else { 0 });
    }

    pub(crate) fn set_fence(&mut self, fence: Fence) {
        self.fence = Number::new(fence.get());
    }

    pub(crate) fn set_granted(&mut self, granted: Instant) {
        self.granted = Number::new(granted.millis());
    }

    pub(crate) fn set_lease(&mut self, deadline: Deadline, ttl: Ttl) {
        (self.deadline, self.ttl) = (Number::new(deadline.millis()), ttl);
    }

    pub(crate) fn set_delay(&mut self, delay: Delay) {
        let extras = Extras { delay, ..self.take_extras() };
        self.set_extras(extras);
    }

    pub(crate) fn set_count(&mut self, count: NonZeroU32) {
        if count != self.nonzero_count() {
            let extras = Extras { count, ..self.take_extras() };
            self.set_extras(extras);
        }
    }

    /// Marks the hold as no longer bound to a connection.
    pub(crate) fn orphan(&mut self) {
        if let Identity::WithExtras(boxed) = &mut self.identity
            && let Ephemeral::Bound(_) = boxed.1.ephemeral
        {
            boxed.1.ephemeral = Ephemeral::Orphan;
        }
    }

    pub(crate) fn take_extras(&mut self) -> Extras {
        match &mut self.identity {
            Identity::Bare(_) => Extras::NONE,
            Identity::WithExtras(boxed) => std::mem::replace(&mut boxed.1, Extras::NONE),
        }
    }

    /// Allocates only if there are extras.
    pub(crate) fn set_extras(&mut self, extras: Extras) {
        match &mut self.identity {
            Identity::Bare(_) if extras == Extras::NONE => {}
            Identity::Bare(token) => self.identity = Identity::WithExtras(Box::new((token.clone(), extras))),
            Identity::WithExtras(boxed) if extras == Extras::NONE => {
                self.identity = Identity::Bare(boxed.0.clone())
            }
            Identity::WithExtras(boxed) => boxed.1 = extras,
        }
    }

    /// Bytes on the heap. Those of a bound hold include its entry in [`crate::tasks::Bindings`].
    pub(super) fn heap_size(&self) -> usize {
        let owner = |owner: &OwnerId| size_of::<OwnerId>() + owner.heap_size();
        let owner = |x: &Extras| x.owner.as_deref().map_or(0, owner);
        let boxed = |x: &Extras| size_of::<(Token, Extras)>() + x.label.heap_size() + owner(x);
        let binding = if self.is_bound() { BINDING_SIZE } else { 0 };
        self.token().heap_size() + self.extras().map_or(0, boxed) + binding
    }
}

/// Estimated size, in bytes, of the [`crate::tasks::Bindings`] of a connection with one bound hold, which is
/// the usual number. The estimate is two entries of a hash table, because half of its entries can be unused,
/// and a tree leaf with room for eleven keys and tokens.
const BINDING_SIZE: usize = 2 * size_of::<(ClientId, BTreeSet<()>)>() + 11 * size_of::<(Box<[u8]>, Token)>();

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_that_does_not_fit_becomes_the_greatest_that_fits() {
        let max = (1 << 48) - 1;
        for (number, kept) in [(0, 0), (1_790_000_000_123, 1_790_000_000_123), (max, max), (max + 1, max)] {
            assert_eq!(Number::<6>::new(number).get(), kept);
        }
        assert_eq!(Number::<7>::new(Fence::MAX).get(), Fence::MAX);
    }

    #[test]
    fn a_hold_keeps_its_client_unless_the_id_is_0_or_too_large() {
        let token = Token::new(b"t").unwrap();
        let (granted, deadline) = (Instant::from_millis(1), Deadline::at_millis(2));
        let mut hold = Hold::new(token, Fence::MIN, granted, deadline, Ttl::MAX);
        for (client, stored) in [(0, None), (7, Some(ClientId(7))), (1 << 40, None)] {
            hold.set_client(ClientId(client));
            assert_eq!(hold.client(), stored);
        }
    }
}
