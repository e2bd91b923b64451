//! Unconfirmed grants, and the replies that announce them.
//!
//! A grant to a waiter is unconfirmed until the client has received the reply, or has sent a command with its
//! token. If the reply does not reach the client, the grant is taken back.
//!
//! Unconfirmed grants belong to holds, not to the queue of their lock: SWAPDB moves them and FLUSHDB ends
//! them with the holds, and the queue stays.
//!
//! The server writes replies to the sockets at the end of an event-loop turn. It writes none to a connection
//! that it is about to close (a deleted user, an exceeded output limit, a peer that closed). So the reply
//! of a turn is lost if its connection closes before the next turn begins, and counts as sent otherwise.

use std::collections::{BTreeMap, HashMap};
use std::hash::Hash;

use dlock_protocol::{ClientId, Deadline, Delay, Fence, Token};
use smallvec::SmallVec;

use crate::queue::waiter::{Granted, Name, WaiterId, swap_db};

#[derive(Clone, Debug, Default)]
pub struct Deliveries {
    /// By database and key. No inner map is empty.
    unconfirmed: HashMap<i32, HashMap<Box<[u8]>, UnconfirmedGrants>>,
    /// The replies that no connection has in its output buffer yet.
    on_their_way: HashMap<WaiterId, Delivery>,
    /// The replies in output buffers, which the server writes at the end of this event-loop turn.
    this_turn: HashMap<ClientId, (WaiterId, Delivery)>,
}

/// The unconfirmed grants of one lock.
pub type UnconfirmedGrants = BTreeMap<Token, UnconfirmedGrant>;

/// A grant with a reply that may not have reached its client.
#[derive(Clone, Debug)]
pub struct UnconfirmedGrant {
    /// The fence of the hold. The loss of a reply about another fence has no effect.
    fence: Fence,
    granted: Granted,
    /// The waiters with a connection that may not have received the reply yet.
    recipients: SmallVec<[WaiterId; 1]>,
    unclaimed: Option<Unclaimed>,
}

/// The grant of a queued waiter (ACQUIRE with QUEUE) whose token has sent no command since. The next command
/// of the token claims the grant.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Unclaimed {
    pub id: WaiterId,
    /// End of the queue position.
    pub until: Deadline,
    /// The lock-delay (option DELAY of ACQUIRE) that the hold gets when it is claimed.
    pub delay_after_claim: Delay,
}

/// The consequence of a reply that was not delivered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Lost {
    /// No client knows of this grant: take it back.
    Grant(Granted),
    /// The token can still claim the grant, until this deadline.
    Unclaimed(Deadline),
}

/// The reply to a waiter that was granted a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Delivery {
    pub name: Name<'static>,
    pub token: Token,
    pub client: ClientId,
}

/// A map with at most this capacity, in entries, is not shrunk.
const KEPT_CAPACITY: usize = 1_000;

impl Deliveries {
    /// Records a grant to a waiter that will receive a reply, or that has to claim the grant. If the token
    /// held the lock already ([`Granted::Renewal`]), adds the waiter to the unconfirmed grant of the token,
    /// if there is one.
    pub(crate) fn granted(
        &mut self,
        name: &Name<'static>,
        token: &Token,
        fence: Fence,
        granted: Granted,
        waiter: WaiterId,
        unclaimed: Option<Unclaimed>,
    ) {
        if granted != Granted::Renewal {
            let grants = self.unconfirmed.entry(name.db).or_default().entry((*name.key).into()).or_default();
            grants.insert(
                token.clone(),
                UnconfirmedGrant { fence, granted, recipients: SmallVec::new(), unclaimed: None },
            );
        }
        let Some(grant) = self.grants_of(name).and_then(|grants| grants.get_mut(token)) else { return };
        match unclaimed {
            Some(_) => grant.unclaimed = unclaimed,
            None => grant.recipients.push(waiter),
        }
    }

    /// Records that the reply to a waiter is on its way.
    pub(crate) fn await_delivery(&mut self, waiter: WaiterId, delivery: Delivery) {
        self.on_their_way.insert(waiter, delivery);
    }

    /// Confirms the grant of a token, after a command of the token or the end of the hold. Returns an
    /// [`Unclaimed`] if the grant was still unclaimed.
    #[inline]
    pub(crate) fn confirm_grant(&mut self, name: &Name<'_>, token: &[u8]) -> Option<Unclaimed> {
        if self.unconfirmed.is_empty() { None } else { self.remove_unconfirmed(name, token) }
    }

    fn remove_unconfirmed(&mut self, name: &Name<'_>, token: &[u8]) -> Option<Unclaimed> {
        let grants = self.grants_of(name)?;
        let grant = grants.remove(token)?;
        if grants.is_empty() {
            self.forget(name);
        }
        grant.unclaimed
    }

    fn grants_of(&mut self, name: &Name<'_>) -> Option<&mut UnconfirmedGrants> {
        self.unconfirmed.get_mut(&name.db)?.get_mut(&*name.key)
    }

    /// Removes the unconfirmed grants of a lock that was removed or replaced. Returns them, so that the
    /// caller can free them later: freeing many takes long.
    pub fn forget(&mut self, name: &Name<'_>) -> UnconfirmedGrants {
        let Some(grants) = self.unconfirmed.get_mut(&name.db) else { return UnconfirmedGrants::new() };
        let forgotten = grants.remove(&*name.key).unwrap_or_default();
        shrink_if_sparse(grants);
        if grants.is_empty() {
            self.unconfirmed.remove(&name.db);
        }
        forgotten
    }

    /// Removes the unconfirmed grants of one database or all, and returns them, as [`Deliveries::forget`]
    /// does.
    pub fn flushed(&mut self, db: Option<i32>) -> impl Send + use<> {
        match db {
            Some(db) => self.unconfirmed.remove_entry(&db).into_iter().collect(),
            None => std::mem::take(&mut self.unconfirmed),
        }
    }

    /// Records that the reply to a waiter was not delivered. Returns the consequence. `None` means that the
    /// grant stays, for example because another connection of the token receives a reply.
    ///
    /// `delay` is the lock-delay of the hold. On [`Lost::Unclaimed`], the caller removes the delay from the
    /// hold, because the client may be dead. A claim restores the delay from
    /// [`Unclaimed::delay_after_claim`].
    pub(crate) fn lost(
        &mut self,
        name: &Name<'_>,
        token: &[u8],
        fence: Fence,
        waiter: WaiterId,
        delay: Delay,
    ) -> Option<Lost> {
        let grant = self.grants_of(name)?.get_mut(token)?;
        if grant.fence != fence {
            return None;
        }
        grant.recipients.retain(|recipient| *recipient != waiter);
        grant.unclaimed = grant.unclaimed.filter(|unclaimed| unclaimed.id != waiter);
        if !grant.recipients.is_empty() {
            return None;
        }
        if let Some(unclaimed) = &mut grant.unclaimed
            && grant.granted == Granted::New
        {
            unclaimed.delay_after_claim = unclaimed.delay_after_claim.max(delay);
            return Some(Lost::Unclaimed(unclaimed.until));
        }
        let granted = grant.unclaimed.is_none().then_some(grant.granted)?;
        self.remove_unconfirmed(name, token);
        Some(Lost::Grant(granted))
    }

    /// Records that the server has the reply in its output buffer, to be written before the turn ends.
    pub fn handed_over(&mut self, waiter: WaiterId) {
        if let Some(delivery) = self.on_their_way.remove(&waiter) {
            self.this_turn.insert(delivery.client, (waiter, delivery));
        }
    }

    /// Removes and returns a reply that the server gave back, because the connection of the waiter had
    /// closed.
    pub fn reply_reclaimed(&mut self, waiter: WaiterId) -> Option<Delivery> {
        self.on_their_way.remove(&waiter)
    }

    /// Removes and returns the reply that a closed connection would have received in this turn.
    pub fn client_gone(&mut self, client: ClientId) -> Option<(WaiterId, Delivery)> {
        if self.this_turn.is_empty() { None } else { self.this_turn.remove(&client) }
    }

    /// The reply has been sent: the grant is confirmed.
    pub fn delivered(&mut self, waiter: WaiterId, Delivery { name, token, .. }: &Delivery) {
        let grant = self.grants_of(name).and_then(|grants| grants.get(token));
        if grant.is_some_and(|grant| grant.recipients.contains(&waiter)) {
            self.remove_unconfirmed(name, token.as_bytes());
        }
    }

    /// A turn of the event loop has ended, so its replies have been sent.
    pub fn next_turn(&mut self) {
        for (waiter, delivery) in std::mem::take(&mut self.this_turn).into_values() {
            self.delivered(waiter, &delivery);
        }
        if self.on_their_way.is_empty() && self.on_their_way.capacity() > KEPT_CAPACITY {
            self.on_their_way = HashMap::new();
        }
    }

    /// True if no reply is on its way or in an output buffer.
    pub fn is_empty(&self) -> bool {
        self.on_their_way.is_empty() && self.this_turn.is_empty()
    }

    /// Follows a SWAPDB: the holds move with their databases.
    pub fn swapped(&mut self, first: i32, second: i32) {
        let handed_over = self.this_turn.values_mut().map(|(_, delivery)| delivery);
        for Delivery { name, .. } in self.on_their_way.values_mut().chain(handed_over) {
            swap_db(&mut name.db, first, second);
        }
        let one = self.unconfirmed.remove(&first);
        let other = self.unconfirmed.remove(&second);
        self.unconfirmed.extend(one.map(|grants| (second, grants)));
        self.unconfirmed.extend(other.map(|grants| (first, grants)));
    }
}

/// Shrinks a map that was large and is almost empty now.
pub fn shrink_if_sparse<K: Eq + Hash, V>(map: &mut HashMap<K, V>) {
    if map.capacity() > KEPT_CAPACITY && map.len() < map.capacity() / 8 {
        map.shrink_to(map.len() * 2);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WAITER: WaiterId = WaiterId(3);
    const FENCE: u64 = 7;

    fn fence() -> Fence {
        Fence::from_outside(FENCE).unwrap()
    }

    fn delivery(client: u64) -> Delivery {
        let name = Name::new(0, b"k").to_owned();
        Delivery { name, token: Token::new(b"t").unwrap(), client: ClientId(client) }
    }

    /// Deliveries with a reply on its way to each of these waiters. The number is the id of the connection.
    fn sent(to: &[(WaiterId, u64, Granted)]) -> Deliveries {
        let mut deliveries = Deliveries::default();
        for (waiter, client, granted) in to {
            let Delivery { name, token, .. } = delivery(*client);
            deliveries.granted(&name, &token, fence(), *granted, *waiter, None);
            deliveries.await_delivery(*waiter, delivery(*client));
        }
        deliveries
    }

    fn lost(deliveries: &mut Deliveries, waiter: WaiterId) -> Option<Granted> {
        match deliveries.lost(&Name::new(0, b"k"), b"t", fence(), waiter, Delay::NONE)? {
            Lost::Grant(granted) => Some(granted),
            Lost::Unclaimed(_) => panic!("no waiter had a queue position"),
        }
    }

    #[test]
    fn a_reply_that_reaches_no_connection_is_reclaimed_once() {
        let mut deliveries = sent(&[(WAITER, 1, Granted::New)]);
        assert!(!deliveries.is_empty());
        assert_eq!(deliveries.client_gone(ClientId(1)), None, "no connection has the reply yet");
        assert_eq!(deliveries.reply_reclaimed(WAITER), Some(delivery(1)));
        assert_eq!(deliveries.reply_reclaimed(WAITER), None);
        assert!(deliveries.is_empty());
        assert_eq!(
            (lost(&mut deliveries, WAITER), lost(&mut deliveries, WAITER)),
            (Some(Granted::New), None)
        );
        assert!(deliveries.unconfirmed.is_empty());
    }

    #[test]
    fn a_connection_that_closes_within_the_turn_has_received_no_reply() {
        let mut deliveries = sent(&[(WAITER, 1, Granted::New)]);
        deliveries.handed_over(WAITER);
        assert_eq!(deliveries.reply_reclaimed(WAITER), None, "the reply is in the output buffer");
        assert_eq!(deliveries.client_gone(ClientId(2)), None);
        assert_eq!(deliveries.client_gone(ClientId(1)), Some((WAITER, delivery(1))));
        assert_eq!(deliveries.client_gone(ClientId(1)), None);
        deliveries.next_turn();
        assert_eq!(lost(&mut deliveries, WAITER), Some(Granted::New));
    }

    #[test]
    fn a_reply_counts_as_sent_when_the_next_turn_begins() {
        let mut deliveries = sent(&[(WAITER, 1, Granted::New), (WaiterId(4), 2, Granted::Renewal)]);
        deliveries.handed_over(WAITER);
        deliveries.next_turn();
        assert_eq!(deliveries.client_gone(ClientId(1)), None);
        assert!(!deliveries.is_empty(), "the second reply is still on its way");
        assert_eq!(deliveries.reply_reclaimed(WaiterId(4)), Some(delivery(2)));
        assert_eq!(lost(&mut deliveries, WaiterId(4)), None, "the first reply has confirmed the grant");
    }

    #[test]
    fn swapdb_moves_unconfirmed_grants_and_their_replies() {
        let mut deliveries = sent(&[(WAITER, 1, Granted::New), (WaiterId(4), 2, Granted::Renewal)]);
        deliveries.handed_over(WAITER);
        deliveries.swapped(0, 7);
        assert_eq!(deliveries.reply_reclaimed(WaiterId(4)).unwrap().name.db, 7);
        assert_eq!(deliveries.client_gone(ClientId(1)).unwrap().1.name.db, 7);
        let has_grants = [0, 7].map(|db| deliveries.grants_of(&Name::new(db, b"k")).is_some());
        assert_eq!(has_grants, [false, true]);
        drop(deliveries.flushed(Some(7)));
        assert!(deliveries.unconfirmed.is_empty());
    }
}
