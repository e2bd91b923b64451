//! Cycles of tokens that wait for each other, one kind a test.

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
    /// The wait timeout of whoever joins.
    until: Option<Deadline>,
}

const NOW: Instant = Instant::from_micros(1_000_000);
const TERMS: Terms =
    Terms { grants_from: NOW, longest_lease: Ttl::MAX, most_holders: u32::MAX, most_served: 9 };

impl World {
    /// Acquires or joins the queue; the cycle where that would close one.
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
        let mut search = Search::new(&request, &name, rank, NOW);
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
fn three_in_a_cycle() {
    let mut world = World::default();
    for (key, token) in [("x", "a"), ("y", "b"), ("z", "c"), ("y", "a"), ("z", "b")] {
        assert_eq!(world.want(key, token, Mode::Exclusive), None);
    }
    assert_eq!(world.want("x", "c", Mode::Exclusive), tokens("c a b c"));
    assert_eq!(world.want("x", "d", Mode::Exclusive), None, "a bystander may wait");
}

#[test]
fn every_sharer_counts_but_a_permit_only_when_all_are_stuck() {
    let mut world = World::default();
    let two = Mode::Permits(NonZeroU32::new(2).unwrap());
    for (key, token, mode) in
        [("x", "t", Mode::Exclusive), ("s", "a", two), ("s", "b", two), ("x", "a", Mode::Exclusive)]
    {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(world.want("s", "t", two), None, "b may still leave");
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
fn whoever_stands_ahead_is_waited_for() {
    let mut world = World::default();
    for (key, token) in [("x", "t"), ("k", "h"), ("k", "w"), ("x", "w")] {
        assert_eq!(world.want(key, token, Mode::Exclusive), None);
    }
    assert_eq!(world.want("k", "t", Mode::Exclusive), tokens("t w t"));
}

/// The first version looked at the mode of the holders only.
#[test]
fn who_wants_a_semaphore_alone_waits_for_every_permit() {
    let two = Mode::Permits(NonZeroU32::new(2).unwrap());
    let mut world = World::default();
    for (key, token, mode) in
        [("x", "t", Mode::Exclusive), ("s", "a", two), ("s", "b", two), ("x", "a", Mode::Exclusive)]
    {
        assert_eq!(world.want(key, token, mode), None);
    }
    assert_eq!(world.want("s", "t", Mode::Exclusive), tokens("t a t"));
    assert_eq!(world.want("s", "v", Mode::Exclusive), None);
    assert_eq!(world.want("s", "t", two), tokens("t a t"), "v stands ahead and waits for a");
}

/// The first version walked from token to token and forgot what it had learned of those it came by twice.
#[test]
fn who_is_met_twice_is_as_stuck_as_the_first_time() {
    let two = Mode::Permits(NonZeroU32::new(2).unwrap());
    let mut world = World::default();
    for (key, token, mode) in [
        ("x", "t", Mode::Exclusive),
        ("z", "b", Mode::Exclusive),
        ("s", "a", two),
        ("s", "b", two),
        ("x", "b", Mode::Exclusive),
        ("z", "a", Mode::Exclusive),
    ] {
        assert_eq!(world.want(key, token, mode), None);
    }
    let cycle = world.want("s", "t", two);
    assert!(cycle == tokens("t b t") || cycle == tokens("t a b t"), "{cycle:?}");
}

/// The first version saw this cycle only where `t` had joined the two queues in the other order.
#[test]
fn who_is_behind_the_start_in_another_queue_waits_for_it() {
    let mut world = World::default();
    for (key, token) in [("k", "h"), ("y", "w"), ("k", "t"), ("k", "w")] {
        assert_eq!(world.want(key, token, Mode::Exclusive), None);
    }
    assert_eq!(world.want("y", "t", Mode::Exclusive), tokens("t w t"));
    assert_eq!(world.want("k", "t", Mode::Exclusive), None, "the same wait again, on another connection");
}

#[test]
fn two_upgraders() {
    let mut world = World::default();
    assert_eq!(world.want("r", "a", Mode::Shared), None);
    assert_eq!(world.want("r", "b", Mode::Shared), None);
    assert_eq!(world.want("r", "a", Mode::Exclusive), None, "the first one waits");
}

/// The first version took everybody ahead in the queue for somebody to be waited for.
#[test]
fn who_can_be_let_in_together_do_not_wait_for_each_other() {
    let two = Mode::Permits(NonZeroU32::new(2).unwrap());
    for mode in [Mode::Shared, two] {
        let mut world = World::default();
        for (key, token, mode) in
            [("k", "w", Mode::Exclusive), ("k3", "c", Mode::Exclusive), ("k", "b", mode), ("k", "c", mode)]
        {
            assert_eq!(world.want(key, token, mode), None);
        }
        assert_eq!(
            world.want("k3", "b", Mode::Exclusive),
            None,
            "b and c get k together, and c gives k3 back"
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
        assert_eq!(world.want("k", "c", Mode::Exclusive), tokens("c b c"), "but not where c wants it alone");
    }
}

/// Somebody between two sharers that wants it alone waits for the one and keeps the other waiting.
#[test]
fn a_writer_between_two_sharers_is_waited_for() {
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
    assert_eq!(world.want("k3", "b", Mode::Exclusive), tokens("b c b"));
}

/// Where there is room for it beside those ahead, a permit is not waited for; the one that takes the last is.
#[test]
fn permits_are_waited_for_where_they_are_used_up() {
    let permits = |n| Mode::Permits(NonZeroU32::new(n).unwrap());
    for (n, expected) in [(3, None), (2, tokens("a c a"))] {
        let mut world = World::default();
        for (key, token, mode) in [
            ("k", "w", Mode::Exclusive),
            ("k3", "c", Mode::Exclusive),
            ("k4", "a", Mode::Exclusive),
            ("k", "a", permits(n)),
            ("k", "b", permits(n)),
            ("k4", "b", Mode::Exclusive),
            ("k", "c", permits(n)),
        ] {
            assert_eq!(world.want(key, token, mode), None);
        }
        assert_eq!(world.want("k3", "a", Mode::Exclusive), expected, "{n} permits");
    }
}

/// A token that waits twice for the same key, the second time for more: somebody who stands in between waits
/// for it.
#[test]
fn who_stands_between_two_waits_of_the_start_closes_a_cycle() {
    let mut world = World::default();
    for (token, mode) in [("h", Mode::Exclusive), ("t", Mode::Shared), ("x", Mode::Exclusive)] {
        assert_eq!(world.want("k", token, mode), None);
    }
    assert_eq!(world.want("k", "t", Mode::Shared), None, "the first wait answers this one too");
    assert_eq!(world.want("k", "t", Mode::Exclusive), tokens("t x t"));
}

/// However many of them there are: whoever has waited long enough is not granted any more.
#[test]
fn a_wait_that_has_timed_out_is_no_wait() {
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
