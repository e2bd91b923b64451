//! One token's tenure of a resource, as it is stored.

use std::num::NonZeroU32;

use dlock_protocol::{ClientId, Deadline, Delay, Fence, Instant, Label, OwnerId, Token, Ttl};

/// Whether a hold ends with a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ephemeral {
    No,
    Bound(ClientId),
    /// The connection is unknown here (a restart, a promotion): only the lease ends it.
    Orphan,
}

/// One token's tenure of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hold {
    pub(crate) token: Token,
    pub(crate) fence: Fence,
    pub(crate) deadline: Deadline,
    /// The millisecond in which it began.
    pub(crate) granted: Six,
    pub(crate) ttl: Ttl,
    pub(crate) client: GrantedTo,
    /// What few holds have, out of the way of the many.
    pub(crate) extras: Option<Box<Extras>>,
}

/// The connection that a hold was granted to, where it is known, for people to see. Neither stored nor sent,
/// so a hold that was read is the same without it.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct GrantedTo(Six);

impl GrantedTo {
    pub fn of(client: ClientId) -> GrantedTo {
        GrantedTo(Six::new(client.0))
    }

    /// No connection has the id 0.
    fn client(self) -> Option<ClientId> {
        Some(ClientId(self.0.get())).filter(|client| client.0 > 0)
    }
}

/// A number below 2^48 in six bytes; what is greater becomes the greatest. Enough for the milliseconds of
/// nine thousand years and for connections by the million a second, and a hold is so much smaller that a
/// key's value fits into 80 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Six([u8; 6]);

impl Six {
    pub const fn new(number: u64) -> Six {
        let number = if number >> 48 == 0 { number } else { u64::MAX };
        let [a, b, c, d, e, f, _, _] = number.to_le_bytes();
        Six([a, b, c, d, e, f])
    }

    pub const fn get(self) -> u64 {
        let Six([a, b, c, d, e, f]) = self;
        u64::from_le_bytes([a, b, c, d, e, f, 0, 0])
    }
}

impl PartialEq for GrantedTo {
    fn eq(&self, _: &GrantedTo) -> bool {
        true
    }
}

impl Eq for GrantedTo {}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Extras {
    pub ephemeral: Ephemeral,
    pub delay: Delay,
    pub label: Label,
    /// How often it was entered.
    pub count: NonZeroU32,
    /// Neither stored nor sent: it serves to see a deadlock while the owner is there to close it.
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

    /// Boxed only where there is anything to keep.
    pub fn boxed(self) -> Option<Box<Extras>> {
        (self != Extras::NONE).then(|| Box::new(self))
    }
}

impl Hold {
    pub fn token(&self) -> &Token {
        &self.token
    }
    pub fn fence(&self) -> Fence {
        self.fence
    }
    pub fn deadline(&self) -> Deadline {
        self.deadline
    }
    pub fn granted(&self) -> Instant {
        Instant::from_millis(self.granted.get())
    }
    pub fn ttl(&self) -> Ttl {
        self.ttl
    }
    pub fn count(&self) -> u32 {
        self.times().get()
    }
    pub(crate) fn times(&self) -> NonZeroU32 {
        self.extras.as_ref().map_or(NonZeroU32::MIN, |x| x.count)
    }
    pub fn ephemeral(&self) -> Ephemeral {
        self.extras.as_ref().map_or(Ephemeral::No, |x| x.ephemeral)
    }
    /// The connection that it is bound to, or else was granted to; it may be closed by now.
    pub fn client(&self) -> Option<ClientId> {
        match self.ephemeral() {
            Ephemeral::Bound(client) => Some(client),
            Ephemeral::No => self.client.client(),
            Ephemeral::Orphan => None,
        }
    }
    pub fn delay(&self) -> Delay {
        self.extras.as_ref().map_or(Delay::NONE, |x| x.delay)
    }
    pub fn label(&self) -> &[u8] {
        self.extras.as_ref().map_or(&[], |x| x.label.as_bytes())
    }
    pub fn owner(&self) -> Option<&OwnerId> {
        self.extras.as_ref()?.owner.as_deref()
    }

    /// How long it has lasted.
    pub fn held_millis(&self, now: Instant) -> u64 {
        now.millis_since(self.granted())
    }

    /// Until when nobody is granted the lock after it, if it expires.
    pub(crate) fn delay_until(&self) -> Option<Deadline> {
        let delay = self.delay();
        (!delay.is_none()).then(|| self.deadline.plus_millis(delay.millis()))
    }

    pub(crate) fn is_bound(&self) -> bool {
        matches!(self.ephemeral(), Ephemeral::Bound(_))
    }

    pub(crate) fn set_delay(&mut self, delay: Delay) {
        self.extras = Extras { delay, ..self.take_extras() }.boxed();
    }

    pub(crate) fn set_count(&mut self, count: NonZeroU32) {
        if count != self.times() {
            self.extras = Extras { count, ..self.take_extras() }.boxed();
        }
    }

    pub(crate) fn take_extras(&mut self) -> Extras {
        self.extras.take().map_or(Extras::NONE, |extras| *extras)
    }

    pub(super) fn heap_size(&self) -> usize {
        let owner = |owner: &OwnerId| size_of::<OwnerId>() + owner.heap_size();
        let owner = |x: &Extras| x.owner.as_deref().map_or(0, owner);
        let extras = |x: &Extras| size_of::<Extras>() + x.label.heap_size() + owner(x);
        self.token.heap_size() + self.extras.as_deref().map_or(0, extras)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn six_bytes_keep_what_fits_and_the_greatest_of_what_does_not() {
        let most = (1 << 48) - 1;
        for (number, kept) in [(0, 0), (1_790_000_000_123, 1_790_000_000_123), (most, most), (most + 1, most)]
        {
            assert_eq!(Six::new(number).get(), kept);
        }
        assert_eq!(Six::new(u64::MAX).get(), most);
        assert_eq!(GrantedTo::default().client(), None);
        assert_eq!(GrantedTo::of(ClientId(7)).client(), Some(ClientId(7)));
    }
}
