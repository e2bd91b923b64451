//! Deadlocks: one test for each kind of edge.

use std::collections::HashMap;
use std::num::NonZeroU32;

use dlock_core::deadlock::{Found, Search};
use dlock_core::{
    Acquired, ClientId, Deadline, Fences, Instant, Lock, LockRequest, Mode, Name, Newcomer, Owner,
    OwnerIdRef, Step, Terms, Token, Ttl, Turn, Waiting,
};

mod owners;

#[derive(Default)]
struct World {
    locks: HashMap<Name<'static>, Lock>,
    waiting: Waiting,
    fences: Fences,
    /// The wait timeout of the next waiter.
    until: Option<Deadline>,
}

const NOW: Instant = Instant::from_micros(1_000_000);
const TERMS: Terms =
    Terms { grants_from: NOW, longest_lease: Ttl::MAX, max_holders: u32::MAX, max_grants_per_turn: 9 };

impl World {
    /// Acquires, or joins the queue. Returns the cycle if the wait would close one.
    fn want(&mut self, key: &str, token: &str, mode: Mode) -> Option<Vec<Token>> {
        self.want_for(None, key, token, mode)
    }

    /// As [`World::want`], for an owner.
    fn want_for(&mut self, owner: Option<&str>, key: &str, token: &str, mode: Mode) -> Option<Vec<Token>> {
        let owner = owner.map(|owner| OwnerIdRef::new(owner.as_bytes()).unwrap());
        let name = Name::new(0, key.as_bytes()).to_owned();
        let ttl = Ttl::from_millis(1000).unwrap();
        let request = LockRequest { mode, owner, ..LockRequest::new(crate::checked(token.as_bytes()), ttl) };
        let client = ClientId(self.waiting.len() as u64);
        let lock = self.locks.entry(name.clone()).or_default();
        let rank = match Turn::new(
            NOW,
            TERMS,
            &name,
            &mut self.fences,
            &mut self.waiting,
            lock,
            &mut Step::default(),
        )
        .acquire(&request, client)
        {
            Acquired::NotNow(rank) => rank,
            Acquired::Held(_) => return None,
            other => panic!("{other:?}"),
        };
        let mut search = Search::new(&request, &name, rank, NOW, &self.waiting);
        loop {
            match search.run(&self.waiting) {
                Found::Cycle(cycle) => return Some(cycle),
                Found::Ask(name) => search.learn(&name, self.locks.get(&name), &self.waiting),
                Found::Nothing => break,
            }
        }
        let newcomer =
            Newcomer { name, rank, request, owner: Owner::Client(client), since: NOW, until: self.until };
        self.waiting.join(newcomer).unwrap();
        None
    }
}

fn tokens(names: &str) -> Option<Vec<Token>> {
    Some(names.split(' ').map(|name| Token::new(name.as_bytes()).unwrap()).collect())
}

#[test]
fn a_cycle_of_three_is_found() {
    let mut world = World::default();
    for (key, token) in [("x", "a"), ("y", "b"), ("z", "c"), ("y", "a"), ("z", "b")] {
        assert_eq!(world.want(key, token, Mode::Exclusive), None);
    }
    assert_eq!(world.want("x", "c", Mode::Exclusive), tokens("c a b c"));
    assert_eq!(world.want("x", "d", Mode::Exclusive), None, "a bystander may wait");
}

#[test]
fn a_waiter_waits_for_every_sharer() {
    let mut world = World::default();
    for (key, token, mode) in [
        ("x", "t", Mode::Exclusive),
        ("r", "a", Mode::Shared),
        ("r", "b", Mode::Shared),
        ("x", "b", Mode::Exclusive),
    ] {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(world.want("r", "t", Mode::Exclusive), tokens("t b t"));
}

#[test]
fn a_waiter_waits_for_the_waiters_ahead_of_it() {
    let mut world = World::default();
    for (key, token) in [("x", "t"), ("k", "h"), ("k", "w"), ("x", "w")] {
        assert_eq!(world.want(key, token, Mode::Exclusive), None);
    }
    assert_eq!(world.want("k", "t", Mode::Exclusive), tokens("t w t"));
}

/// A former search found this cycle only if `t` had joined the two queues in the other order.
#[test]
fn a_waiter_behind_the_newcomer_in_another_queue_waits_for_it() {
    let mut world = World::default();
    for (key, token) in [("k", "h"), ("y", "w"), ("k", "t"), ("k", "w")] {
        assert_eq!(world.want(key, token, Mode::Exclusive), None);
    }
    assert_eq!(world.want("y", "t", Mode::Exclusive), tokens("t w t"));
    assert_eq!(world.want("k", "t", Mode::Exclusive), None, "the same wait again, on another connection");
}

#[test]
fn a_first_upgrade_waits() {
    let mut world = World::default();
    assert_eq!(world.want("r", "a", Mode::Shared), None);
    assert_eq!(world.want("r", "b", Mode::Shared), None);
    assert_eq!(world.want("r", "a", Mode::Exclusive), None, "the first upgrade waits");
}

/// A former search took every waiter ahead for one that is waited for.
#[test]
fn sharers_that_wait_do_not_wait_for_each_other() {
    let mode = Mode::Shared;
    let mut world = World::default();
    for (key, token, mode) in
        [("k", "w", Mode::Exclusive), ("k3", "c", Mode::Exclusive), ("k", "b", mode), ("k", "c", mode)]
    {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(
        world.want("k3", "b", Mode::Exclusive),
        None,
        "b and c are granted k together, then c releases k3"
    );
    let mut world = World::default();
    for (key, token, mode) in
        [("k", "w", Mode::Exclusive), ("k3", "c", Mode::Exclusive), ("k", "b", mode), ("k3", "b", mode)]
    {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(world.want("k", "c", mode), None, "the same in the other order");
    let mut world = World::default();
    for (key, token, mode) in [
        ("k", "w", Mode::Exclusive),
        ("k3", "c", Mode::Exclusive),
        ("k", "b", mode),
        ("k3", "b", Mode::Exclusive),
    ] {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(
        world.want("k", "c", Mode::Exclusive),
        tokens("c b c"),
        "but an exclusive wait of c closes the cycle"
    );
}

/// The exclusive waiter waits for the first sharer, and the second sharer waits for the exclusive waiter.
#[test]
fn a_sharer_waits_for_an_exclusive_waiter_ahead() {
    let mut world = World::default();
    for (key, token, mode) in [
        ("k", "w", Mode::Exclusive),
        ("k3", "c", Mode::Exclusive),
        ("k", "b", Mode::Shared),
        ("k", "x", Mode::Exclusive),
        ("k", "c", Mode::Shared),
    ] {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(world.want("k3", "b", Mode::Exclusive), tokens("b c x b"));
}

/// Any of the holders may leave first, so a deadlock of permits is missed.
#[test]
fn permits_add_no_edge() {
    let one = Mode::Permits(NonZeroU32::MIN);
    for (held_as, asked) in [(one, one), (one, Mode::Exclusive), (Mode::Exclusive, one)] {
        let mut world = World::default();
        for (key, token, mode) in
            [("x", "t", Mode::Exclusive), ("s", "a", held_as), ("x", "a", Mode::Exclusive)]
        {
            assert_eq!(world.want(key, token, mode), None);
        }
        assert_eq!(world.want("s", "t", asked), None, "{held_as:?} {asked:?}");
    }
}

/// The grant of the first wait may answer the second one too.
#[test]
fn a_second_wait_of_a_token_for_a_lock_adds_no_edge() {
    let mut world = World::default();
    for (token, mode) in [("h", Mode::Exclusive), ("t", Mode::Exclusive), ("x", Mode::Exclusive)] {
        assert_eq!(world.want("k", token, mode), None);
    }
    for mode in [Mode::Shared, Mode::Exclusive] {
        assert_eq!(world.want("k", "t", mode), None, "{mode:?}");
    }
}

#[test]
fn a_wait_that_has_timed_out_adds_no_edge() {
    for (live, cycle) in [(false, None), (true, tokens("a b a"))] {
        let mut world = World::default();
        let held = ["k1", "k2", "k3", "k4", "k5", "k6"].map(|key| (key, "h"));
        for (key, token) in held.into_iter().chain([("x", "a"), ("y", "b")]) {
            assert_eq!(world.want(key, token, Mode::Exclusive), None);
        }
        world.until = Some(Instant::from_micros(1).after_millis(1));
        for (key, _) in held.into_iter().chain([("x", "b")]) {
            assert_eq!(world.want(key, "b", Mode::Exclusive), None);
        }
        world.until = None;
        if live {
            assert_eq!(world.want("x", "b", Mode::Exclusive), None);
        }
        assert_eq!(world.want("y", "a", Mode::Exclusive), cycle);
    }
}
