use dlock_protocol::{Instant, LockRequestRef, TokenRef, Ttl};

use super::*;
use crate::{Fences, Limits, Lock, Name, Newcomer, Rank, Step, Terms, Waiting};

const NOW: Instant = Instant::from_millis(1_000_000);

fn join(waiting: &mut Waiting, key: &[u8], token: &[u8], client: u64) {
    let request = LockRequestRef::new(TokenRef::new(token).unwrap(), Ttl::MAX);
    let (name, client) = (Name::new(0, key), ClientId(client));
    let owner = Owner::Client(client);
    let newcomer = Newcomer { name, rank: Rank::Newcomer, request, owner, since: NOW, until: None };
    waiting.join(newcomer).unwrap();
}

fn token(bytes: &[u8]) -> CancelTarget<'_> {
    CancelTarget::Token(TokenRef::new(bytes).unwrap())
}

/// Cancels on the key `k`; answers the number, and the clients that were told of it.
fn cancel(waiting: &mut Waiting, whom: CancelTarget<'_>) -> (usize, Vec<u64>) {
    let (mut lock, mut fences, mut step) = (Lock::default(), Fences::default(), Step::default());
    // In grace, so that nobody is granted the free lock meanwhile.
    let grants_from = Instant::from_micros(u64::MAX);
    let terms = Terms { grants_from, longest_lease: Ttl::MAX, max_holders: 9, max_grants_per_turn: 9 };
    let name = Name::new(0, b"k");
    let mut turn = Turn::new(NOW, terms, &name, &mut fences, waiting, &mut lock, &mut step);
    let cancelled = turn.cancel(whom);
    let outcomes = step.queue_effects.map(|rest| rest.outcomes).unwrap_or_default();
    assert!(outcomes.iter().all(|(_, outcome)| *outcome == Outcome::Cancelled));
    (cancelled, outcomes.iter().map(|(waiter, _)| waiter.client().unwrap().0).collect())
}

#[test]
fn those_are_dismissed_who_wait_here_and_nobody_else() {
    let mut waiting = Waiting::default();
    for (key, token, client) in
        [(b"k", b"one", 1), (b"k", b"one", 2), (b"k", b"two", 3), (b"x", b"one", 4), (b"x", b"two", 5)]
    {
        join(&mut waiting, key, token, client);
    }
    assert_eq!(cancel(&mut waiting, CancelTarget::Client(4)), (0, vec![]));
    assert_eq!(cancel(&mut waiting, CancelTarget::Client(99)), (0, vec![]));
    assert_eq!(cancel(&mut waiting, token(b"three")), (0, vec![]));
    assert_eq!(cancel(&mut waiting, token(b"one")), (2, vec![1, 2]));
    assert_eq!(cancel(&mut waiting, token(b"one")), (0, vec![]));
    assert_eq!(cancel(&mut waiting, CancelTarget::Client(3)), (1, vec![3]));
    assert_eq!(waiting.len(), 2);
    assert_eq!(waiting.len_of(&Name::new(0, b"x")), 2);
    let limits = Limits { on_the_server: 9, on_a_key: 1, queued: 0 };
    assert!(waiting.has_room(&Name::new(0, b"k"), &Owner::Client(ClientId(9)), limits));
}
