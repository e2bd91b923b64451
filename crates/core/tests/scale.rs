//! What one step does for many at once is not quadratic in their number.

mod slices;

use std::collections::HashMap;
use std::fs;
use std::time::Duration;

use crate::checked;
use dlock_core::deadlock::{Found, MOST_STEPS, Search};
use dlock_core::{
    Acquired, ClientId, Departed, Fences, Instant, Lock, LockRequest, LockRequestRef, Mode, Name, Newcomer,
    Owner, Queued, Rank, ReleaseCount, Step, Terms, Token, Ttl, Turn, Waiting,
};
use dlock_protocol::command::Whom;
use dlock_protocol::steps;

const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);
const TERMS: Terms =
    Terms { grants_from: NOW, longest_lease: Ttl::MAX, most_holders: u32::MAX, most_served: Departed::SLICE };
const KEY: Name<'static> = Name { db: 0, key: std::borrow::Cow::Borrowed(b"key") };

/// One lock with its queue.
#[derive(Default)]
struct World {
    fences: Fences,
    waiting: Waiting,
    lock: Lock,
    /// Another turn has to serve the queue on.
    unserved: bool,
}

fn request(token: &[u8], mode: Mode) -> LockRequestRef<'_> {
    LockRequest { mode, ..LockRequest::new(checked(token), Ttl::MAX) }
}

fn token(n: usize) -> Vec<u8> {
    format!("a token of twenty {n:08}").into_bytes()
}

impl World {
    fn turn<T>(&mut self, work: impl FnOnce(&mut Turn<'_>) -> T) -> usize {
        let mut step = Step::default();
        let mut turn =
            Turn::new(NOW, TERMS, &KEY, &mut self.fences, &mut self.waiting, &mut self.lock, &mut step);
        work(&mut turn);
        turn.finish();
        self.unserved = step.rest.as_ref().is_some_and(|rest| rest.unserved);
        step.rest.map_or(0, |rest| rest.outcomes.len())
    }

    /// As many turns as it takes to serve the queue on.
    fn serve_on(&mut self) -> usize {
        let mut answers = 0;
        while self.unserved {
            answers += self.turn(|turn| turn.advance());
        }
        answers
    }

    fn held_exclusively() -> World {
        let mut world = World::default();
        world.turn(|turn| turn.acquire(&request(b"first", Mode::Exclusive), ClientId(0)));
        world
    }

    fn wait(&mut self, name: Name<'_>, token: &[u8], mode: Mode) {
        let client = ClientId(self.waiting.len() as u64);
        let request = request(token, mode);
        let owner = Owner::Client(client);
        let newcomer = Newcomer { name, rank: Rank::Newcomer, request, owner, since: NOW, until: None };
        self.waiting.join(newcomer).expect("it can join");
    }

    fn release_first(&mut self, answers: usize) {
        let first = self.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One));
        assert_eq!(first + self.serve_on(), answers);
    }
}

/// So many take a tenth of a second or two of this thread's own processor time, to which other work on the
/// machine adds nothing; each bug below took many seconds.
fn takes_no_second(for_so_many: usize, prepare: impl Fn(usize) -> World, work: impl Fn(&mut World, usize)) {
    let n = if cfg!(miri) { 8 } else { for_so_many };
    let mut world = prepare(n);
    let before = processor_time();
    work(&mut world, n);
    let took = processor_time() - before;
    println!("{took:?}");
    assert!(took < Duration::from_secs(1), "{took:?}");
}

/// What this thread has used: the first number that the kernel keeps of it. Miri has no kernel.
fn processor_time() -> Duration {
    let kept =
        if cfg!(miri) { "0".into() } else { fs::read_to_string("/proc/thread-self/schedstat").unwrap() };
    Duration::from_nanos(kept.split_whitespace().next().expect("a number").parse().expect("nanoseconds"))
}

/// Each of them was looked up among those before it.
#[test]
fn sharers_that_are_let_in_together() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        (0..n).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
        world
    };
    let most = if cfg!(miri) { 40 } else { 10_000 };
    for n in [most / 10, most] {
        let (mut world, before) = (prepare(n), steps::taken());
        world.release_first(n);
        let each = (steps::taken() - before) / n as u64;
        println!("{n}: {each} steps each");
        assert!(!cfg!(debug_assertions) || (1..250).contains(&each), "{each} steps each");
    }
}

/// Where many are let in, the holders are no longer looked up one by one: the last of them are holders as
/// well.
#[test]
fn who_was_let_in_with_many_is_known_as_a_holder() {
    let n = if cfg!(miri) { 34 } else { 100 };
    for late in [0, 31, 32, n - 1].into_iter().skip(if cfg!(miri) { 3 } else { 0 }) {
        let mut world = World::held_exclusively();
        (0..n).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
        world.wait(KEY, &token(late), Mode::Permits(std::num::NonZeroU32::MIN));
        // The last wait is refused at once: a sharer cannot have a permit.
        world.release_first(n + 1);
    }
}

/// Each of them was taken out of a list of all of them.
#[test]
fn many_waits_of_one_token() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        (0..n).for_each(|_| world.wait(KEY, b"same", Mode::Exclusive));
        world
    };
    takes_no_second(100_000, prepare, |world, n| world.release_first(n));
}

/// For each of them the queue was walked from its head.
#[test]
fn a_search_behind_tokens_that_wait_elsewhere_too() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        for n in 0..n {
            world.wait(KEY, &token(n), Mode::Exclusive);
            world.wait(Name::new(0, b"elsewhere"), &token(n), Mode::Exclusive);
        }
        world
    };
    takes_no_second(30_000, prepare, |world, _| {
        let mut search = Search::new(&request(b"newcomer", Mode::Exclusive), &KEY, Rank::Newcomer, NOW);
        loop {
            match search.run(&world.waiting) {
                Found::Ask(name) => {
                    let lock = Some(&world.lock).filter(|_| name == KEY);
                    search.learn(&name, lock, &world.waiting);
                }
                found => return assert_eq!(found, Found::Nothing),
            }
        }
    });
}

/// Locks by name, and who waits for them.
#[derive(Default)]
struct Town {
    fences: Fences,
    waiting: Waiting,
    locks: HashMap<Name<'static>, Lock>,
}

fn key(n: usize) -> Name<'static> {
    Name { db: 0, key: format!("key {n}").into_bytes().into() }
}

impl Town {
    fn holds(&mut self, name: Name<'static>, token: &[u8], mode: Mode) {
        let lock = self.locks.entry(name.clone()).or_default();
        let (waiting, step) = (&mut self.waiting, &mut Step::default());
        Turn::new(NOW, TERMS, &name, &mut self.fences, waiting, lock, step)
            .acquire(&request(token, mode), ClientId(0));
    }

    fn waits(&mut self, name: Name<'static>, token: &[u8], mode: Mode) {
        let client = ClientId(self.waiting.len() as u64);
        let request = request(token, mode);
        let owner = Owner::Client(client);
        let newcomer = Newcomer { name, rank: Rank::Newcomer, request, owner, since: NOW, until: None };
        self.waiting.join(newcomer).expect("it can join");
    }

    /// What the search for one more waiter finds, and in how many steps.
    fn search(&self, name: Name<'static>, token: &[u8]) -> (Found, usize) {
        let mut search = Search::new(&request(token, Mode::Exclusive), &name, Rank::Newcomer, NOW);
        loop {
            match search.run(&self.waiting) {
                Found::Ask(name) => search.learn(&name, self.locks.get(&name), &self.waiting),
                found => return (found, search.steps()),
            }
        }
    }
}

/// One token holds the first key and waits for all the others, each held by somebody who waits as well.
fn a_fan(n: usize) -> Town {
    let mut town = Town::default();
    town.holds(key(0), b"fan", Mode::Exclusive);
    for n in 1..=n {
        town.holds(key(n), &token(n), Mode::Exclusive);
        town.waits(key(n), b"fan", Mode::Exclusive);
        town.waits(Name::new(0, b"elsewhere").to_owned(), &token(n), Mode::Exclusive);
    }
    town
}

/// So many keys, each with so many sharers, who all wait for the next key.
fn a_chain(keys: usize, sharers: usize) -> Town {
    longer_by_a_chain(Town::default(), keys, sharers)
}

fn longer_by_a_chain(mut town: Town, keys: usize, sharers: usize) -> Town {
    let all =
        (0..keys).flat_map(|at| (0..sharers).map(move |n| (at, format!("sharer {n} of {at}").into_bytes())));
    for (at, token) in all.clone() {
        town.holds(key(at), &token, Mode::Shared);
    }
    for (at, token) in all {
        town.waits(key(at + 1), &token, Mode::Exclusive);
    }
    town
}

/// A token that waits for many keys, a chain of keys that are shared by many: each was searched to its end,
/// again and again, for seconds.
#[test]
fn the_work_of_a_search_is_bounded() {
    let scale = if cfg!(miri) { 100 } else { 1 };
    let towns = [
        ("a fan", a_fan(9_000 / scale)),
        ("a chain of sharers", a_chain(100 / scale, 300 / scale)),
        ("a long chain", a_chain(3_000 / scale, 1)),
        ("a crowd", a_chain(1, 30_000 / scale)),
    ];
    for (what, town) in towns {
        let (found, steps) = town.search(key(0), b"newcomer");
        println!("{what}: {steps} steps");
        assert_eq!(found, Found::Nothing);
        assert!(steps <= 3 * MOST_STEPS, "{what}: {steps} steps");
    }
}

/// Twice as much to look at is twice the work, up to the bound.
#[test]
fn a_search_looks_at_nothing_twice() {
    for town in [a_fan, |n| a_chain(n / 4, 4), |n| a_chain(1, n)] {
        let [once, twice] = [50, 100].map(|n| town(n).search(key(0), b"newcomer").1);
        assert!(once > 50 && twice <= 2 * once + 100, "{once} steps, then {twice}");
    }
}

/// What the README says of the bound.
#[test]
fn a_long_cycle_is_found() {
    for (keys, sharers) in if cfg!(miri) { [(5, 3), (8, 1)] } else { [(60, 3), (100, 1)] } {
        let mut town = Town::default();
        town.holds(key(keys), b"newcomer", Mode::Exclusive);
        let (found, steps) = longer_by_a_chain(town, keys, sharers).search(key(0), b"newcomer");
        let Found::Cycle(cycle) = found else { panic!("{keys} keys: {found:?} after {steps} steps") };
        assert_eq!(cycle.len(), keys + 2);
    }
}

/// What lies within the bound is found, whatever lies beyond.
#[test]
fn a_cycle_among_many_is_found() {
    let n = if cfg!(miri) { 30 } else { 70 };
    let mut town = a_fan(n);
    town.holds(Name::new(0, b"mine").to_owned(), b"newcomer", Mode::Exclusive);
    town.waits(Name::new(0, b"mine").to_owned(), &token(n), Mode::Exclusive);
    let (found, steps) = town.search(key(0), b"newcomer");
    let Found::Cycle(cycle) = found else { panic!("{found:?} after {steps} steps") };
    let [newcomer, fan, last] =
        [&b"newcomer"[..], b"fan", &token(n)].map(|token| Token::new(token).expect("a token"));
    assert_eq!(cycle, [newcomer.clone(), fan, last, newcomer]);
}

/// What is done about a position among many.
#[test]
fn a_position_takes_as_many_steps_among_a_hundred_thousand() {
    for many in if cfg!(miri) { vec![40] } else { vec![10, 100_000] } {
        let mut world = World::held_exclusively();
        let until = NOW.after_millis(1000);
        let queued = || Queued::new(ClientId(1), None, None, false);
        for n in 0..many {
            let (owner, token) = (Owner::Token(queued()), token(n));
            let request = request(&token, Mode::Exclusive);
            let newcomer =
                Newcomer { name: KEY, rank: Rank::Newcomer, request, owner, since: NOW, until: Some(until) };
            world.waiting.join(newcomer).expect("it can join");
        }
        let mut took = |what: &str, work: &mut dyn FnMut(&mut Turn<'_>)| {
            let before = steps::taken();
            world.turn(work);
            let steps = steps::taken() - before;
            println!("{what} among {many}: {steps} steps");
            assert!(steps < 400, "{what} among {many}: {steps} steps");
        };
        let (middle, first) = (token(many / 2), token(0));
        took("to keep it", &mut |turn| {
            let kept = turn.queue(&request(&middle, Mode::Exclusive), queued(), until);
            assert!(matches!(kept, Acquired::Queued(_)));
        });
        took("a handoff", &mut |turn| assert_eq!(turn.release(checked(b"first"), ReleaseCount::One), 1));
        took("a claim", &mut |turn| {
            let claimed = turn.queue(&request(&first, Mode::Exclusive), queued(), until);
            assert!(matches!(claimed, Acquired::Held(_)));
        });
        took("a cancel", &mut |turn| assert_eq!(turn.cancel(Whom::Token(checked(&middle))), 1));
    }
}
