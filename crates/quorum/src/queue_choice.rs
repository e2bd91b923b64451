//! The choice of the queue in which a client waits, by the holders of the lock at each member.
//!
//! Each member has a wait queue of its own, and all clients should wait in the same one. So they sort the
//! members in the same way, by run id, and wait at the first member. Missing members (those that do not
//! answer) come last. A client moves to the queue of a later member in two cases:
//! * The current queue has granted the client the lock, but the later member refuses. Clients that cannot
//!   reach the first member may wait at the later one.
//! * The current queue does not move: no holder at its member can have a majority. The client of a hold
//!   without a majority may be gone, and the hold then lasts until its lease ends.
//!
//! All waits of the client for this lock move together, and its next waits start in the new queue: the start
//! queue. A start queue lasts until the client has noticed no other client there for 2 s. If even the last
//! queue does not move, and all holds at its member are older than 2 s, the client starts over with the first
//! queue.
//!
//! Safety does not depend on the choice: a wrong queue costs time.

use crate::{Instant, Member, Quorum, Refusal, Round, Start, Vote};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A hold on fewer than a majority of the members is a partial hold. A waiting client can get one from the
/// member of its queue while other members refuse the lock. The client then gives up the partial hold within
/// this time. So an older partial hold is stale: its client is gone.
const PARTIAL_HOLD_MAX_AGE: Duration = Duration::from_secs(2);

/// How long a lock that was found taken counts as contended.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

/// Minimum interval at which a client looks for other clients in a later queue.
const LOOK_INTERVAL: Duration = Duration::from_secs(1);

/// How long a start queue lasts after the client has last noticed other clients there.
const START_QUEUE_KEPT_FOR: Duration = Duration::from_secs(2);

/// A member, with what decides its position in the [`QueueOrder`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The member.
    pub member: Member,
    /// Whether it did not answer when it was last asked.
    pub is_missing: bool,
    /// The run id of its server; `None` if it was never reached.
    pub run_id: Option<Arc<str>>,
    /// Its address, which decides between members that were never reached.
    pub address: Arc<str>,
}

/// The members in the order in which all clients try their queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOrder {
    members: SmallVec<[Member; 5]>,
    /// The number of members that are not missing. They are the first in `members`.
    present: usize,
}

impl QueueOrder {
    /// Sorts the members. The order does not depend on the spelling of addresses once the run ids are known.
    pub fn new(places: impl IntoIterator<Item = Place>) -> Self {
        let mut places: SmallVec<[Place; 5]> = places.into_iter().collect();
        let present = places.iter().filter(|place| !place.is_missing).count();
        let key = |place: &Place| (place.is_missing, place.run_id.is_none(), place.run_id.clone());
        places.sort_by(|one, other| key(one).cmp(&key(other)).then_with(|| one.address.cmp(&other.address)));
        QueueOrder { members: places.iter().map(|place| place.member).collect(), present }
    }

    /// Returns the members from the start queue on. Returns all members if there is no start queue, or its
    /// member is missing.
    pub fn starting_at(&self, start_queue: Option<Member>) -> Vec<Member> {
        let first = self.position_if_present(start_queue).unwrap_or(0);
        self.members[first..].to_vec()
    }

    /// Returns the members before `member` that are not missing.
    pub fn before(&self, member: Member) -> &[Member] {
        let position = self.position_if_present(Some(member)).unwrap_or(self.present);
        &self.members[..position]
    }

    fn position_if_present(&self, member: Option<Member>) -> Option<usize> {
        self.members[..self.present].iter().position(|present| Some(*present) == member)
    }
}

/// A client's record of the contention for one lock. All attempts of the client for this lock share it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contention {
    contended_until: Option<Instant>,
    /// The start queue, and the instant at which it expires.
    start_queue: Option<(Member, Instant)>,
    /// The client does not look for other clients before this instant.
    next_look: Option<Instant>,
}

impl Contention {
    /// Returns whether the lock was found taken within the last second. An attempt that may wait then joins
    /// the queue at once: a request to all members could take votes from a waiter that was just granted the
    /// lock.
    pub fn is_contended(&self, now: Instant) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    /// Returns whether nothing in the record applies any longer.
    pub fn is_expired(&self, now: Instant) -> bool {
        !self.is_contended(now) && self.start_queue(now).is_none()
    }

    /// Returns the member where the next wait starts. `None` means the first queue of the
    /// [`QueueOrder`].
    pub fn start_queue(&self, now: Instant) -> Option<Member> {
        self.start_queue.filter(|(_, until)| now < *until).map(|(queue, _)| queue)
    }

    /// Returns the start queue if an attempt of this client has set it within the last `age`.
    pub(crate) fn start_queue_set_within(&self, age: Duration, now: Instant) -> Option<Member> {
        self.start_queue
            .filter(|(_, until)| now + START_QUEUE_KEPT_FOR <= *until + age)
            .map(|(queue, _)| queue)
    }

    pub(crate) fn note_taken(&mut self, now: Instant) {
        self.contended_until = Some(now + CONTENDED_FOR);
    }

    /// Makes `queue` the start queue, and returns whether the client's other waits for the lock must move
    /// there. Does nothing and returns false if the start queue is a later one whose member is present.
    pub fn move_to(&mut self, queue: Member, order: &QueueOrder, now: Instant) -> bool {
        let position = order.members.iter().position(|member| *member == queue);
        let current = order.position_if_present(self.start_queue(now));
        if current.is_some() && current > position {
            return false;
        }
        self.start_queue = Some((queue, now + START_QUEUE_KEPT_FOR));
        true
    }

    pub(crate) fn forget_start_queue(&mut self) {
        self.start_queue = None;
    }

    /// Returns whether the caller must look for other clients in a later queue now. True at most once a
    /// second for all attempts of the client, unless [`Contention::allow_looking_again`] is called.
    pub fn begin_looking_for_others(&mut self, now: Instant) -> bool {
        let is_due = self.next_look.is_none_or(|next| next <= now);
        if is_due {
            self.next_look = Some(now + LOOK_INTERVAL);
        }
        is_due
    }

    /// Lets the client look for other clients again at once. Call this if it found none
    /// ([`OtherHolds::None`]).
    pub fn allow_looking_again(&mut self) {
        self.next_look = None;
    }
}

/// A holder of the lock at one member.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holder {
    /// Its token, as text.
    pub token: String,
    /// The age of its hold.
    pub age: Duration,
}

/// The holders of the lock over all members.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders {
    /// The holders at each member, by its index. `None` means that they are unknown.
    pub by_member: Vec<Option<Vec<Holder>>>,
    /// The number of members that are known to be closed by a delay, with or without a holder.
    pub closed: usize,
}

impl Holders {
    /// Returns whether a holder has a majority, or a delay keeps a majority closed, as far as is known.
    pub fn is_taken(&self, quorum: Quorum) -> bool {
        let counts = self.known().map(|holder| self.count(&holder.token));
        counts.chain([self.closed]).any(|count| count >= quorum.majority())
    }

    /// Returns whether the wait queue of `member` can move. It can if there is no hold at the member, or if
    /// one of its holders may have a majority: such a holder will release the lock. Where the holders of a
    /// member are unknown, they may include such a holder.
    pub fn queue_can_move(&self, quorum: Quorum, member: Member) -> bool {
        let unknown = self.by_member.iter().filter(|holders| holders.is_none()).count();
        match self.at(member) {
            Some(holders) if !holders.is_empty() => {
                holders.iter().any(|holder| self.count(&holder.token) + unknown >= quorum.majority())
            }
            _ => true,
        }
    }

    /// Returns the holders at `member` that have no majority, as far as is known. Omits the token `own`.
    pub fn partial_holders(&self, quorum: Quorum, member: Member, own: &str) -> Vec<Holder> {
        let is_partial =
            |holder: &&Holder| holder.token != own && self.count(&holder.token) < quorum.majority();
        self.at(member).into_iter().flatten().filter(is_partial).cloned().collect()
    }

    /// The holders at `member`; `None` if they are unknown.
    fn at(&self, member: Member) -> Option<&Vec<Holder>> {
        self.by_member.get(usize::from(member.0))?.as_ref()
    }

    fn known(&self) -> impl Iterator<Item = &Holder> {
        self.by_member.iter().flatten().flatten()
    }

    /// The number of members where `token` holds the lock.
    fn count(&self, token: &str) -> usize {
        let holds = |holders: &&Vec<Holder>| holders.iter().any(|holder| holder.token == token);
        self.by_member.iter().flatten().filter(holds).count()
    }
}

/// The partial holds of other clients at one member. This member refused a client to which a majority granted
/// the lock. The partial holds show whether other clients wait in the queue of the member.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OtherHolds {
    /// There is none: the member refused because the RELEASE of the previous holder had not arrived yet.
    None,
    /// Only holds of clients that are gone. The queue behind them does not move, so the client must not join
    /// it.
    Stale,
    /// A hold that is not stale: other clients use the queue, and this client must move there.
    Young,
}

impl OtherHolds {
    /// Compares two lists of [`Holders::partial_holders`], read one round trip apart. Only holders in both
    /// lists count: a RELEASE that was in flight has arrived in between. Returns [`OtherHolds::Young`] if at
    /// least one of their holds is not stale.
    pub fn compare(before: &[Holder], after: &[Holder]) -> OtherHolds {
        let stays = |holder: &&Holder| before.iter().any(|earlier| earlier.token == holder.token);
        match after.iter().filter(stays).map(|holder| holder.age).min() {
            None => OtherHolds::None,
            Some(age) if age < PARTIAL_HOLD_MAX_AGE => OtherHolds::Young,
            Some(_) => OtherHolds::Stale,
        }
    }
}

/// The rule by which a waiter leaves its queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// Stay while the queue moves. There is a later queue.
    WhileQueueMoves,
    /// Stay while the queue moves or a hold at its member is not stale yet. It is the last queue.
    UntilHoldersAreStale,
    /// Stay until the wait ends, even if the queue does not move.
    Always,
    /// Like [`Stay::Always`], for a holder that waits for another mode. The waiter must not give its position
    /// up by a RELEASE, which would also end the hold: the caller sends CANCEL.
    AsHolder,
}

/// Watches whether a queue moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueWatch {
    quorum: Quorum,
    queue: Member,
    stay: Stay,
    /// The holders at the last check, if the queue could not move then.
    stuck_holders: Option<Vec<String>>,
}

impl QueueWatch {
    /// Watches the queue of the member `queue`.
    pub fn new(quorum: Quorum, queue: Member, stay: Stay) -> Self {
        QueueWatch { quorum, queue, stay, stuck_holders: None }
    }

    /// Checks the queue. Returns whether to leave it: two checks in a row found that it cannot move, with the
    /// same holders. One check is not enough, because a hold begins and ends at one member after the other.
    pub fn must_leave(&mut self, holders: &Holders) -> bool {
        let holders_here = holders.at(self.queue);
        let is_young = |holder: &Holder| holder.age < PARTIAL_HOLD_MAX_AGE;
        let may_stay = match self.stay {
            Stay::WhileQueueMoves => false,
            Stay::UntilHoldersAreStale => holders_here.is_some_and(|here| here.iter().any(is_young)),
            Stay::Always | Stay::AsHolder => true,
        };
        let is_stuck = !may_stay && !holders.queue_can_move(self.quorum, self.queue);
        let tokens = |holders: &Vec<Holder>| holders.iter().map(|holder| holder.token.clone()).collect();
        let stuck_holders: Option<Vec<String>> = holders_here.filter(|_| is_stuck).map(tokens);
        let is_still_stuck = stuck_holders.is_some() && stuck_holders == self.stuck_holders;
        self.stuck_holders = stuck_holders;
        is_still_stuck
    }
}

impl Round {
    /// Returns the member in whose queue the next wait of this client starts. `None` means the first queue of
    /// the [`QueueOrder`].
    pub fn next_queue(&self) -> Option<Member> {
        let (tried, later) = self.tried_and_later_queues()?;
        let queue = *tried.last()?;
        if self.is_refused_by(queue) {
            // The client has not waited in this queue, or its wait ended without a grant, for example because
            // the queue does not move.
            return later.first().copied();
        }
        let refuses = |member: &Member| self.is_refused_by(*member);
        // If no later member refuses, the client may stay with `queue`. It does so if the round omitted
        // members (those with earlier queues), and either the client waited in `queue` or an omitted member
        // refuses it. Other clients may then wait in `queue`. If this client alone returned to an earlier
        // queue, it could take a vote that the head of `queue` needs for its majority.
        let stays = self.omitted_members().any(|earlier| self.start() == Start::Queued || refuses(&earlier));
        later.iter().copied().find(refuses).or(stays.then_some(queue))
    }

    /// Returns whether the order has a later queue than the current one.
    pub(crate) fn has_later_queue(&self) -> bool {
        self.tried_and_later_queues().is_some_and(|(_, later)| !later.is_empty())
    }

    /// Returns whether `member` has a later queue and refused: other clients may wait there.
    pub(crate) fn is_refusal_of_later_queue(&self, member: Member, vote: &Vote) -> bool {
        *vote == Vote::Refused(Refusal::Taken)
            && self.tried_and_later_queues().is_some_and(|(_, later)| later.contains(&member))
    }
}
