//! Checks after every move: invariants of the core, and its agreement with the model.

use std::collections::BTreeSet;

use dlock_core::{Ephemeral, Mode, Rank, WaitKind};

use super::content::content;
use super::moves::Move;
use super::reference::{Answer, Bond, KEYS, MAX_HOLDERS, Model, OWNERS, TOKENS};
use super::storage::FAR_AHEAD;
use super::system::{self, System, name, token, token_of};

/// Situations that must occur in every full run of the random test, so that the test proves something about
/// them. A position is a place in the wait queue that belongs to a token (QUEUE), not to a connection
/// (BLOCK). Replicas get a few commands verbatim, and all other changes as effects, which contain the
/// changed holds. A log position is the time and the fence from which a replica derives the hold of a
/// verbatim ACQUIRE.
pub const SOMETIMES: &[&str] = &[
    "a break",
    "a connection waits with a position",
    "a user loses the right to a granted lock",
    "a handoff to a queued waiter",
    "a position ends with its connection",
    "a position is given up for another mode",
    "a position has no room for a connection",
    "a position is kept",
    "a position is kept, and has no room for a connection",
    "a position times out",
    "a queued waiter claims its grant",
    "an undelivered grant can still be claimed",
    "a grant expires unclaimed",
    "a cancel",
    "a clock set back",
    "a confirm",
    "a confirm comes too late",
    "the count of a hold is full",
    "a RELEASE lowers the count of a hold",
    "a deadlock",
    "a deadlock of a waiter with an owner",
    "an owner waits for itself",
    "a delay keeps a waiter out",
    "a release with a delay",
    "a delay keeps an upgrade waiting",
    "a demotion with waiters",
    "an ACQUIRE that does not wait is denied",
    "a downgrade",
    "a downgrade of a hold with a count above 1",
    "a downgrade lets sharers in",
    "a fence too far ahead",
    "a grant",
    "an ACQUIRE is logged verbatim",
    "a handoff",
    "a holder asks again",
    "a holder asks again in grace",
    "a holder asks for an impossible mode",
    "a holder's connection closes",
    "a key with waiters is removed",
    "a lease ends",
    "a full lock refuses a newcomer",
    "a newcomer does not overtake the queue",
    "a part of a lock is replicated",
    "an exclusive holder asks for a shared lock",
    "a release",
    "a RELEASE is logged verbatim",
    "a snapshot by a child process",
    "a snapshot with the log position",
    "a wait",
    "a wait times out",
    "a wait has timed out at the head of the queue",
    "a waiter for a full lock keeps waiting",
    "a waiter is refused at the head of the queue",
    "a waiter's connection closes",
    "an ACQUIRE lets waiters in",
    "an extension",
    "an undelivered grant",
    "a grant lost on one connection was received on another",
    "an undelivered renewal",
    "an undelivered upgrade",
    "an upgrade in grace",
    "an upgrade in place",
    "an upgrade that waited",
    "an upgrade waits",
    "a newcomer waits behind the queue of a full lock",
    "grace",
    "grace keeps a waiter out",
    "no fence is left",
    "one grant answers two waits of a token",
    "one of two answers is lost",
    "a grant changes the number of permits",
    "the queue is full",
    "two sharers ask for an upgrade",
    "a waiter that could be granted waits for the next turn",
];

/// Checks that the core agrees with the model.
pub fn assert_agreement(system: &System, model: &Model, step: &Move, answer: &Answer, expected: &Answer) {
    assert_eq!(answer, expected, "the answer to {step:?}");
    assert_eq!(system.outcomes, model.outcomes, "the waiters answered by {step:?}");
    assert_eq!(system.events, model.events, "the events of {step:?}");
    assert_eq!(system.limit_changes, model.limit_changes, "the changes of a limit by {step:?}");
    assert_eq!(system.sent_grants, model.sent_grants);
    assert_eq!(system.now, model.now);
    assert_eq!(system.fences.last(), model.last_fence);
    for key in 0..KEYS {
        assert_same_holds(system, model, key);
        let queue: Vec<_> = model.queue(key).iter().map(|w| (w.request, w.upgrades, w.until)).collect();
        let core = system.waiting.queue(&name(key)).map(|w| {
            let request = w.request.borrowed();
            let client = match &w.kind {
                WaitKind::Blocked(client) | WaitKind::Beside(client, _) => client.0,
                WaitKind::Queued(queued) => queued.client.0,
            };
            let identity = (client, token_of(request.token.as_bytes()), request.mode, request.ttl.millis());
            let (delay, label) = (request.delay.millis(), request.label.as_bytes().to_vec());
            let rest = (request.reentry, request.ephemeral, delay, label);
            let rest = (rest, request.owner.map_or(&b""[..], |owner| owner.as_bytes()).to_vec());
            (identity, rest, w.rank == Rank::Upgrade, w.until.map(|until| until.millis()))
        });
        let model = queue.iter().map(|(w, upgrades, until)| {
            let identity = (w.client, w.token, w.mode, w.ttl);
            let rest = (w.reentry, w.ephemeral, w.delay, system::label(w.label));
            (identity, (rest, OWNERS[usize::from(w.owner)].as_bytes().to_vec()), *upgrades, *until)
        });
        assert!(core.eq(model), "the queue of {key}");
        assert_eq!(system.waiting.len_of(&name(key)), queue.len());
    }
    // The model's wait-for graph must have an edge from each node of the cycle to the next one. The model
    // builds no graph if it refuses the second of two sharers that ask for an upgrade.
    for pair in system.cycle.windows(2) {
        let upgraders = model.marks.contains(&"two sharers ask for an upgrade");
        assert!(upgraders || model.edges.contains(&(pair[0], pair[1])), "no cycle: {:?}", system.cycle);
    }
    if let [first, .., last] = system.cycle[..] {
        assert_eq!(first, last);
    }
}

fn assert_same_holds(system: &System, model: &Model, key: u8) {
    let lock = system.locks.get(&key).cloned().unwrap_or_default();
    let view = lock.at(system.instant());
    for who in 0..TOKENS {
        let core = view.hold_of(&token(who)).map(|hold| {
            let bond = match hold.ephemeral() {
                Ephemeral::No => Bond::None,
                Ephemeral::Bound(client) => Bond::To(client.0),
                Ephemeral::Orphan => Bond::Orphan,
            };
            let lease = (hold.deadline().millis(), hold.ttl().millis());
            let since = hold.granted().millis();
            let rest = (hold.delay().millis(), hold.label().to_vec(), since);
            let owner = hold.owner().map_or(&b""[..], |owner| owner.as_bytes());
            (hold.fence().get(), lease, hold.count(), bond, rest, owner)
        });
        let model = model.hold(key, who).map(|hold| {
            let rest = (hold.delay, system::label(hold.label), hold.since);
            let owner = OWNERS[usize::from(hold.owner)].as_bytes();
            (hold.fence, (hold.end, hold.ttl), hold.count, hold.bond, rest, owner)
        });
        assert_eq!(core, model, "the hold of {who} on {key}");
    }
    let modes: BTreeSet<_> = model.holds_of(key).map(|hold| format!("{:?}", hold.mode)).collect();
    assert_eq!(view.mode().map(|mode| format!("{mode:?}")).into_iter().collect::<BTreeSet<_>>(), modes);
    let left = |end: u64| (end * 1000).saturating_sub(model.now) / 1000;
    assert_eq!(view.longest_left(), model.holds_of(key).map(|hold| left(hold.end)).max());
    assert_eq!(view.fence().map(|fence| fence.get()), model.holds_of(key).map(|hold| hold.fence).max());
    let holds = || model.holds.iter().filter(|hold| hold.key == key);
    let delays = || model.delays.iter().filter(|(of, _)| *of == key).map(|(_, until)| *until);
    let expired = holds().filter(|hold| hold.delay > 0 && model.has_passed(hold.end));
    let delay = delays().chain(expired.map(|hold| hold.end + hold.delay)).map(left).max();
    assert_eq!(view.delay_left(), delay.unwrap_or(0));
    let due = holds().map(|hold| hold.end).chain(delays().max()).min();
    assert_eq!(lock.next_due().map(|due| due.millis()), due, "the next due time of {key}");
}

/// Checks the invariants of the core, which do not depend on the model.
pub fn assert_invariants(system: &System, step: &Move) {
    let ids: BTreeSet<_> = (0..KEYS)
        .flat_map(|key| system.waiting.queue(&name(key)).cloned().collect::<Vec<_>>())
        .flat_map(|w| [w.id].into_iter().chain(w.beside().to_vec()))
        .collect();
    assert_eq!(ids, system.unanswered, "all waiters, and no others, are without an outcome");
    assert_eq!(system.waiting.len(), ids.len());
    let now = system.instant();
    let until = |id| system.waiting.get(id).and_then(|waiter| waiter.until);
    let first_until = ids.iter().copied().filter_map(until).min();
    // The next check is due when the first wait times out, or earlier, after a wait was extended.
    assert!(
        first_until.is_none_or(|until| system.waiting.next_timeout().is_some_and(|check| check <= until))
    );
    let timed_out = system.waiting.clone().timed_out(now);
    assert!(timed_out.is_none_or(|id| until(id).is_some_and(|until| until.passed(now))));
    assert_eq!(timed_out.is_some(), first_until.is_some_and(|until| until.passed(now)));
    assert_eq!(system.bound_holds(), system.bonds, "the holds that end with a connection");
    for key in 0..KEYS {
        let lock = system.locks.get(&key).cloned().unwrap_or_default();
        let view = lock.at(system.instant());
        let holders = view.holds().count();
        assert_eq!(view.holders(), holders);
        match view.mode() {
            None => assert_eq!(holders, 0),
            Some(Mode::Exclusive) => assert_eq!(holders, 1, "an exclusive holder is alone"),
            Some(Mode::Shared) => assert!(holders > 0),
            Some(Mode::Permits(n)) => assert!((1..=n.get() as usize).contains(&holders), "at most n permits"),
        }
        let tokens: BTreeSet<_> = lock.stored().map(|hold| hold.token()).collect();
        assert_eq!(tokens.len(), lock.stored_len(), "a token has one hold");
        assert!(view.holds().all(|hold| has_time_left(system, hold)));
        // The near replica is on the same machine, the far one on another machine with a clock that is ahead.
        let near = system.near.get(&key).cloned().unwrap_or_default();
        assert_eq!(content(&near), content(&lock), "the replica after {step:?}");
        let far = system.far.get(&key).cloned().unwrap_or_default();
        assert!(content(&lock).is_nearly(&content(&far), FAR_AHEAD), "the far replica: {lock:?} {far:?}");
    }
    if let Some(key) = served_key(step) {
        assert_no_lost_wake_up(system, key);
    }
}

/// Returns whether time is left of the hold, even if it is less than a millisecond.
fn has_time_left(system: &System, hold: &dlock_core::Hold) -> bool {
    hold.deadline().left(system.instant()) > 0 || hold.deadline().millis() * 1000 > system.now
}

/// Checks that the head of the queue has to wait: it can be neither granted the lock nor refused now. Omits a
/// key whose last operation stopped at the maximum number of grants.
fn assert_no_lost_wake_up(system: &System, key: u8) {
    let Some(head) = system.waiting.head(&name(key)).filter(|_| !system.unserved.contains(&key)) else {
        return;
    };
    let lock = system.locks.get(&key).cloned().unwrap_or_default();
    let view = lock.at(system.instant());
    assert!(head.until.is_none_or(|until| !until.passed(system.instant())), "the head has timed out");
    if system.now < system.grants_from && view.hold_of(head.request.token.as_bytes()).is_none() {
        return;
    }
    let could_be_answered = match (view.mode(), head.request.mode) {
        (Some(Mode::Shared), Mode::Exclusive) if system.now < system.grants_from => false,
        (None, _) => true,
        (Some(Mode::Shared), Mode::Shared) => view.holders() < MAX_HOLDERS,
        (Some(Mode::Permits(_)), Mode::Permits(n)) => view.holders() < MAX_HOLDERS.min(n.get() as usize),
        (Some(Mode::Shared), Mode::Exclusive) => view.holds().all(|hold| *hold.token() == head.request.token),
        _ => view.hold_of(head.request.token.as_bytes()).is_some(),
    };
    // The second condition is true even if less than a millisecond of the delay is left.
    let delayed = view.delay_left() > 0 || content(&lock).delay_until * 1000 > system.now;
    assert!(!could_be_answered || delayed, "{head:?} of {key} could be answered");
}

/// Returns the key of the wait queue that the move serves. `None` for a move that may serve no queue or
/// several.
fn served_key(step: &Move) -> Option<u8> {
    match step {
        Move::Acquire(request, _) | Move::Queue(request, ..) => Some(request.key),
        Move::Release(key, ..) | Move::Extend(key, ..) | Move::Confirm(key, ..) | Move::Break(key) => {
            Some(*key)
        }
        Move::CancelToken(key, _) | Move::CancelClient(key, _) => Some(*key),
        Move::Delete(key) | Move::RunJob(key) => Some(*key),
        _ => None,
    }
}
