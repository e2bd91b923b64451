//! The choice of the queue in which a client waits, by the holders of the lock at each member.
//!
//! All clients sort the members by run id, missing ones last, and wait at the first, so that they meet. A
//! client moves to a later queue if the member of that queue refuses it in its turn (clients that cannot
//! reach the first member wait there), or if no holder at its own member can have a majority (its queue does
//! not move). It takes its other waits for the lock along, and starts there until it has met no client there
//! for 2 s. From the last queue it returns to the first if that does not move either and its holds are older
//! than 2 s.
//!
//! Safety does not depend on the choice: a wrong queue costs time.

use crate::{Instant, Member, Quorum, Refusal, Round, Start, Vote};
use smallvec::SmallVec;
use std::sync::Arc;
use std::time::Duration;

/// A client in its turn at one member keeps its hold there for less than this while other members refuse
/// it. An older hold without a majority was left behind.
const PARTIAL_HOLD_MAX_AGE: Duration = Duration::from_secs(2);

/// How long a lock that was found taken counts as contended, and how long until the next look for other
/// clients.
const CONTENDED_FOR: Duration = Duration::from_secs(1);

/// How long a client starts at the queue where it met others.
const QUEUE_KEPT_FOR: Duration = Duration::from_secs(2);

/// A member as a place to wait.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// The member.
    pub member: Member,
    /// Whether it did not answer when it was last asked.
    pub is_missing: bool,
    /// The run id of its server; `None` if it was never reached.
    pub run_id: Option<Arc<str>>,
    /// Its address, which orders members that were never reached.
    pub name: Arc<str>,
}

/// The members in the order in which all clients try their queues.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueOrder {
    members: SmallVec<[Member; 5]>,
    /// The number of members that are not missing; they come first.
    present: usize,
}

impl QueueOrder {
    /// Sorts the members. The order does not depend on the spelling of addresses once the run ids are known.
    pub fn new(places: impl IntoIterator<Item = Place>) -> Self {
        let mut places: SmallVec<[Place; 5]> = places.into_iter().collect();
        let present = places.iter().filter(|place| !place.is_missing).count();
        let key = |place: &Place| (place.is_missing, place.run_id.is_none(), place.run_id.clone());
        places.sort_by(|one, other| key(one).cmp(&key(other)).then_with(|| one.name.cmp(&other.name)));
        QueueOrder { members: places.iter().map(|place| place.member).collect(), present }
    }

    /// The queues from the one where other clients were met, or else all of them.
    pub fn starting_at(&self, met_at: Option<Member>) -> Vec<Member> {
        let first = self.present_place(met_at).unwrap_or(0);
        self.members[first..].to_vec()
    }

    fn present_place(&self, member: Option<Member>) -> Option<usize> {
        self.members[..self.present].iter().position(|present| Some(*present) == member)
    }
}

/// A client's record of one lock that was contended lately.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Contention {
    contended_until: Option<Instant>,
    /// The queue where other clients were met, and until when to start there.
    queue: Option<(Member, Instant)>,
    /// Until then the client does not look again for other clients.
    looked_until: Option<Instant>,
}

impl Contention {
    /// Returns whether the lock was found taken a short while ago. An attempt that may wait then queues at
    /// once: asking all members first would briefly take votes from a waiter that was just granted the lock.
    pub fn is_contended(&self, now: Instant) -> bool {
        self.contended_until.is_some_and(|until| now < until)
    }

    /// Returns whether nothing is remembered any longer.
    pub fn is_over(&self, now: Instant) -> bool {
        !self.is_contended(now) && self.queue(now).is_none()
    }

    /// Returns the queue where other clients were met.
    pub fn queue(&self, now: Instant) -> Option<Member> {
        self.queue.filter(|(_, until)| now < *until).map(|(queue, _)| queue)
    }

    /// Returns the queue where other attempts of this client met others within the last `age`.
    pub(crate) fn queue_met_within(&self, age: Duration, now: Instant) -> Option<Member> {
        self.queue.filter(|(_, until)| now + QUEUE_KEPT_FOR <= *until + age).map(|(queue, _)| queue)
    }

    pub(crate) fn note_taken(&mut self, now: Instant) {
        self.contended_until = Some(now + CONTENDED_FOR);
    }

    /// Records that other clients wait at `queue`. Returns whether this client's other waits must move there:
    /// not from a later queue to an earlier one while both are in use.
    pub fn meet(&mut self, queue: Member, order: &QueueOrder, now: Instant) -> bool {
        let place = |queue| order.members.iter().position(|member| *member == queue);
        let known = order.present_place(self.queue(now));
        if known.is_some() && known > place(queue) {
            return false;
        }
        self.queue = Some((queue, now + QUEUE_KEPT_FOR));
        true
    }

    pub(crate) fn forget_queue(&mut self) {
        self.queue = None;
    }

    /// Returns whether to look for other clients at a later queue now: one attempt at a time does, once a
    /// second.
    pub fn begin_look(&mut self, now: Instant) -> bool {
        let is_due = self.looked_until.is_none_or(|until| until <= now);
        if is_due {
            self.looked_until = Some(now + CONTENDED_FOR);
        }
        is_due
    }

    /// Records that the look found no hold of other clients. The next one may follow at once.
    pub fn end_look(&mut self) {
        self.looked_until = None;
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

/// The holders at each member, by its index. `None` means that they are unknown.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Holders(pub Vec<Option<Vec<Holder>>>);

impl Holders {
    /// Returns whether one holder has a majority.
    pub fn has_majority(&self, quorum: Quorum) -> bool {
        self.known().any(|holder| self.count(&holder.token) >= quorum.majority())
    }

    /// Returns whether the wait queue of `member` can move: one of its holders has, or may have, a majority.
    /// A holder without a majority does not release its hold there.
    pub fn queue_can_move(&self, quorum: Quorum, member: Member) -> bool {
        let unknown = self.0.iter().filter(|there| there.is_none()).count();
        match self.at(member) {
            Some(there) if !there.is_empty() => {
                there.iter().any(|holder| self.count(&holder.token) + unknown >= quorum.majority())
            }
            _ => true,
        }
    }

    /// The holders at `member` other than `own` that have no majority, as far as is known.
    pub fn partial_holders(&self, quorum: Quorum, member: Member, own: &str) -> Vec<Holder> {
        let is_partial =
            |holder: &&Holder| holder.token != own && self.count(&holder.token) < quorum.majority();
        self.at(member).into_iter().flatten().filter(is_partial).cloned().collect()
    }

    /// The holders at `member`; `None` if they are unknown.
    fn at(&self, member: Member) -> Option<&Vec<Holder>> {
        self.0.get(usize::from(member.0))?.as_ref()
    }

    fn known(&self) -> impl Iterator<Item = &Holder> {
        self.0.iter().flatten().flatten()
    }

    /// The number of members where `token` holds the lock.
    fn count(&self, token: &str) -> usize {
        let holds = |there: &&Vec<Holder>| there.iter().any(|holder| holder.token == token);
        self.0.iter().flatten().filter(holds).count()
    }
}

/// The holds of other clients at a member that refused the new holder of the lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Others {
    /// No hold. The release of a predecessor was in flight.
    Gone,
    /// A hold that was left behind. The queue there does not move, so waiters in it need not be joined.
    Leftover,
    /// The hold of a client in its turn there.
    Queue,
}

impl Others {
    /// Judges the partial holders of two looks, one round trip apart: see [`Holders::partial_holders`]. One
    /// young hold among old ones shows that the queue is in use.
    pub fn of(before: &[Holder], after: &[Holder]) -> Others {
        let stays = |holder: &&Holder| before.iter().any(|earlier| earlier.token == holder.token);
        match after.iter().filter(stays).map(|holder| holder.age).min() {
            None => Others::Gone,
            Some(age) if age < PARTIAL_HOLD_MAX_AGE => Others::Queue,
            Some(_) => Others::Leftover,
        }
    }
}

/// How long to stay in a queue.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Stay {
    /// While it moves: there is a later one.
    WhileItMoves,
    /// Until it does not move and its holders are stale: it is the last one.
    UntilHoldersAreStale,
    /// Whether or not it moves.
    Always,
    /// As [`Stay::Always`]. The token holds the lock and waits for another mode, so the caller gives the
    /// position up: a RELEASE would end the hold, too.
    AsHolder,
}

/// Watches whether a queue moves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct QueueWatch {
    quorum: Quorum,
    queue: Member,
    stay: Stay,
    /// The holders there at the last look, if the queue could not move then.
    stuck: Option<Vec<String>>,
}

impl QueueWatch {
    /// Watches the queue of the member `queue`.
    pub fn new(quorum: Quorum, queue: Member, stay: Stay) -> Self {
        QueueWatch { quorum, queue, stay, stuck: None }
    }

    /// Returns whether to leave the queue: two looks in a row found the same holders there without a
    /// majority. One look proves nothing, because a hold begins and ends at one member after the other.
    pub fn must_leave(&mut self, holders: &Holders) -> bool {
        let there = holders.at(self.queue);
        let is_young = |holder: &Holder| holder.age < PARTIAL_HOLD_MAX_AGE;
        let may_stay = match self.stay {
            Stay::WhileItMoves => false,
            Stay::UntilHoldersAreStale => there.is_some_and(|there| there.iter().any(is_young)),
            Stay::Always | Stay::AsHolder => true,
        };
        let is_stuck = !may_stay && !holders.queue_can_move(self.quorum, self.queue);
        let tokens = |there: &Vec<Holder>| there.iter().map(|holder| holder.token.clone()).collect();
        let stuck: Option<Vec<String>> = there.filter(|_| is_stuck).map(tokens);
        let is_still_stuck = stuck.is_some() && stuck == self.stuck;
        self.stuck = stuck;
        is_still_stuck
    }
}

impl Round {
    /// Returns the queue where other clients were met, if that is not the first of all.
    pub fn next_queue(&self) -> Option<Member> {
        let (tried, later) = self.queues()?;
        let queue = *tried.last()?;
        if self.is_refused_by(queue) {
            // Its holder has no majority, or another attempt of this client left it.
            return later.first().copied();
        }
        let refuses = |member: &Member| self.is_refused_by(*member);
        // This client waited in a later queue than the first, like other clients. If it alone returned to the
        // first queue, its hold there would keep the head of the later queue from a majority.
        let stays = self.unnamed().any(|earlier| self.start() == Start::Queued || refuses(&earlier));
        later.iter().copied().find(refuses).or(stays.then_some(queue))
    }

    /// Returns whether there is a later queue.
    pub(crate) fn has_later_queue(&self) -> bool {
        self.queues().is_some_and(|(_, later)| !later.is_empty())
    }

    /// Returns whether the answer of `member` shows that other clients may wait in its queue, a later one.
    pub(crate) fn is_refusal_of_later_queue(&self, member: Member, vote: &Vote) -> bool {
        *vote == Vote::Refused(Refusal::Taken)
            && self.queues().is_some_and(|(_, later)| later.contains(&member))
    }
}
