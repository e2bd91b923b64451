//! Deadlocks: the edges of the wait-for graph, and the maximum work of a search for a cycle. `model.rs`
//! checks random waits against a second implementation of the graph.

mod search;

use std::collections::HashMap;
use std::num::NonZeroU32;

use crate::checked;
use dlock_core::deadlock::{Found, Search};
use dlock_core::{
    Acquired, ClientId, Deadline, Fences, Grants, Instant, Lock, LockRequest, LockRequestRef, Mode, Name,
    NewWaiter, OwnerIdRef, Rank, Step, Terms, Token, Ttl, Turn, WaitKind, Waiting,
};

const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);
const TERMS: Terms = Terms {
    grants: Grants::From(NOW),
    longest_lease: Ttl::MAX,
    max_holders: u32::MAX,
    max_grants_per_turn: 9,
};

/// Locks by name, and their waiters.
#[derive(Default)]
struct World {
    locks: HashMap<Name<'static>, Lock>,
    waiting: Waiting,
    fences: Fences,
    /// When the waits of the next waiters time out.
    until: Option<Deadline>,
}

fn request(token: &[u8], mode: Mode) -> LockRequestRef<'_> {
    LockRequest { mode, ..LockRequest::new(checked(token), Ttl::MAX) }
}

impl World {
    fn acquire(&mut self, name: &Name<'static>, request: &LockRequestRef<'_>) -> Acquired {
        let (lock, mut step) = (self.locks.entry(name.clone()).or_default(), Step::default());
        Turn::new(NOW, TERMS, name, &mut self.fences, &mut self.waiting, lock, &mut step)
            .acquire(request, ClientId(0))
    }

    fn join(&mut self, name: Name<'static>, request: LockRequestRef<'_>, rank: Rank) {
        let kind = WaitKind::Blocked(ClientId(self.waiting.len() as u64));
        let newcomer = NewWaiter { name, rank, request, kind, since: NOW, until: self.until };
        self.waiting.join(newcomer).expect("room in the queue");
    }

    /// Searches for a cycle that this wait would close. Returns the result and the number of steps.
    fn search(&self, name: &Name<'static>, request: &LockRequestRef<'_>, rank: Rank) -> (Found, usize) {
        let mut search = Search::new(request, name, rank, NOW, &self.waiting);
        loop {
            match search.run(&self.waiting) {
                Found::Ask(name) => search.learn(&name, self.locks.get(&name), &self.waiting),
                found => return (found, search.steps()),
            }
        }
    }

    /// Makes a request: `a wants r`, `a shares r`, `a permit r`, or, for the owner `o`, `a@o wants r`.
    /// The request is granted or joins the queue. If its wait would close a cycle, returns the cycle instead.
    fn make_request(&mut self, text: &str) -> Option<String> {
        let [requester, mode, key] = *text.split(' ').collect::<Vec<_>>() else { panic!("{text}") };
        let mode = match mode {
            "wants" => Mode::Exclusive,
            "shares" => Mode::Shared,
            "permit" => Mode::Permits(NonZeroU32::MIN),
            _ => panic!("{text}"),
        };
        let (token, owner) =
            requester.split_once('@').map_or((requester, None), |(token, owner)| (token, Some(owner)));
        let owner = owner.map(|owner| OwnerIdRef::new(owner.as_bytes()).expect("an owner"));
        let name = Name::new(0, key.as_bytes()).to_owned();
        let request = LockRequest { owner, ..request(token.as_bytes(), mode) };
        let rank = match self.acquire(&name, &request) {
            Acquired::NotNow(rank) => rank,
            Acquired::Held(_) => return None,
            other => panic!("{other:?}"),
        };
        if let Found::Cycle(cycle) = self.search(&name, &request, rank).0 {
            let shown = cycle.iter().map(|token| String::from_utf8_lossy(token.as_bytes()));
            return Some(shown.collect::<Vec<_>>().join(" "));
        }
        self.join(name, request, rank);
        None
    }

    /// Makes requests, separated by commas. All but the last must be granted or wait. Returns the cycle that
    /// the last one closes.
    #[track_caller]
    fn run(&mut self, texts: &str) -> Option<String> {
        let (first, last) = texts.rsplit_once(", ").expect("at least two requests");
        for text in first.split(", ") {
            assert_eq!(self.make_request(text), None, "{text:?} of {texts:?}");
        }
        self.make_request(last)
    }
}

#[test]
fn each_kind_of_edge_closes_a_cycle_and_other_waits_close_none() {
    for (what, wants, cycle) in [
        ("three tokens", "a wants x, b wants y, c wants z, a wants y, b wants z, c wants x", Some("c a b c")),
        ("a bystander", "a wants x, b wants y, a wants y, d wants x", None),
        ("every sharer", "t wants x, a shares r, b shares r, b wants x, t wants r", Some("t b t")),
        ("a waiter ahead", "t wants x, h wants k, w wants k, w wants x, t wants k", Some("t w t")),
        // An earlier version of the search found this cycle only if `t` had joined the two queues in the
        // other order.
        (
            "a waiter behind the newcomer in another queue",
            "h wants k, w wants y, t wants k, w wants k, t wants y",
            Some("t w t"),
        ),
        ("a first upgrade", "a shares r, b shares r, a wants r", None),
        // An earlier version of the search counted every waiter ahead as a blocker. Here b and c are granted
        // k together, and then c releases z.
        ("sharers that wait", "w wants k, c wants z, b shares k, c shares k, b wants z", None),
        (
            "sharers that wait, in the other order",
            "w wants k, c wants z, b shares k, b shares z, c shares k",
            None,
        ),
        ("an exclusive waiter", "w wants k, c wants z, b shares k, b wants z, c wants k", Some("c b c")),
        // The exclusive waiter waits for the first sharer, and the second sharer for the exclusive waiter.
        (
            "a sharer behind an exclusive waiter",
            "w wants k, c wants z, b shares k, x wants k, c shares k, b wants z",
            Some("b c x b"),
        ),
        // Held permits and waits for permits add no edge, so the search misses these deadlocks.
        ("permits", "t wants x, a permit s, a wants x, t permit s", None),
        ("permits and an exclusive wait", "t wants x, a permit s, a wants x, t wants s", None),
        ("an exclusive hold and permits", "t wants x, a wants s, a wants x, t permit s", None),
        // A second wait of a token for a lock adds no edge, because one grant may answer both waits.
        ("a second wait of a token", "h wants k, t wants k, x wants k, t wants k", None),
        ("a second wait of a token, shared", "h wants k, t wants k, x wants k, t shares k", None),
    ] {
        assert_eq!(World::default().run(wants).as_deref(), cycle, "{what}: {wants}");
    }
}

#[test]
fn the_tokens_of_one_owner_count_as_one_node_of_the_graph() {
    for (what, wants, cycle) in [
        ("two owners", "1@o wants x, 2@p wants y, 3@o wants y, 4@p wants x", Some("p o p")),
        ("the same without owners", "1 wants x, 2 wants y, 3 wants y, 4 wants x", None),
        ("its own hold", "1@o wants x, 2@o wants x", Some("o o")),
        ("the same token", "1@o wants x, 1@o wants x", None),
        ("its own shared hold", "1@o shares x, 2@o shares x", None),
        (
            "a sharer behind a writer that waits for the sharer's owner",
            "1@o shares x, 2@o shares x, w wants x, 3@o shares x",
            Some("o w o"),
        ),
        ("an owner that begins like another", "1@o wants x, 2@o/p wants x", None),
        ("two owners, but a third waits for y", "1@o wants x, 2@p wants y, 3@o/1 wants y, 4@p wants x", None),
        // After a restart, holds have no owner. An ACQUIRE by the holder sets it.
        ("an owner set later", "1 wants x, 1@o wants x, 1 wants x, 2@o wants x", Some("o o")),
        ("another owner", "1@o wants x, 1@p wants x, 3@p wants x", Some("p p")),
        ("an earlier owner", "1@o wants x, 1@p wants x, 4@o wants x", None),
    ] {
        assert_eq!(World::default().run(wants).as_deref(), cycle, "{what}: {wants}");
    }
}

#[test]
fn a_wait_that_has_timed_out_adds_no_edge() {
    for (live, cycle) in [(false, None), (true, Some("a b a"))] {
        let mut world = World::default();
        let held = "h wants 1, h wants 2, h wants 3, h wants 4, h wants 5, h wants 6, a wants x, b wants y";
        assert_eq!(world.run(held), None);
        // These waits of b have timed out, so they add no edge. If `live`, b waits for x again, without a
        // timeout.
        world.until = Some(Instant::from_micros(1).after_millis(1));
        let waits = "b wants 1, b wants 2, b wants 3, b wants 4, b wants 5, b wants 6, b wants x";
        assert_eq!(world.run(waits), None);
        world.until = None;
        if live {
            assert_eq!(world.make_request("b wants x"), None);
        }
        assert_eq!(world.make_request("a wants y").as_deref(), cycle);
    }
}
