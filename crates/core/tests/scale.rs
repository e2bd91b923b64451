//! What one step does for many at once is not quadratic in their number.

use std::time::{Duration, Instant as Stopwatch};

use dlock_core::deadlock::{Found, Search};
use dlock_core::{
    ClientId, Count, Counts, Fences, Instant, Lock, Mode, Name, Newcomer, Rank, Request, Step, Terms, Token,
    Ttl, Turn, Waiting,
};

const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);
const TERMS: Terms = Terms { grants_from: NOW, longest_lease: Ttl::MAX };
const KEY: Name<'static> = Name { db: 0, key: std::borrow::Cow::Borrowed(b"key") };

/// One lock with its line.
#[derive(Default)]
struct World {
    fences: Fences,
    waiting: Waiting,
    lock: Lock,
}

fn request(token: &[u8], mode: Mode) -> Request<'_> {
    let (count, bound_to, delay) = (Count::Keep, None, 0);
    Request { token, ttl: Ttl::MAX, mode, count, bound_to, delay, label: b"" }
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
        step.rest.map_or(0, |rest| rest.outcomes.len())
    }

    fn held_exclusively() -> World {
        let mut world = World::default();
        world.turn(|turn| turn.acquire(&request(b"first", Mode::Exclusive)));
        world
    }

    fn wait(&mut self, name: Name<'_>, token: &[u8], mode: Mode) {
        let client = ClientId(self.waiting.len() as u64);
        let request = request(token, mode);
        let newcomer = Newcomer { name, rank: Rank::Newcomer, request, client, since: NOW, until: None };
        self.waiting.join(newcomer).expect("it can join");
    }

    fn release_first(&mut self, answers: usize) {
        assert_eq!(self.turn(|turn| turn.release(b"first", Counts::One)), answers);
    }
}

/// So many take a tenth of a second or two, on a machine that has other work too; each bug below took seconds for them.
/// The best of some runs: other work only adds to them.
fn takes_no_second(for_so_many: usize, prepare: impl Fn(usize) -> World, work: impl Fn(&mut World, usize)) {
    let n = if cfg!(miri) { 8 } else { for_so_many };
    let run = |_| {
        let mut world = prepare(n);
        #[expect(clippy::disallowed_methods, reason = "it is the test that takes time here, not the core")]
        let watch = Stopwatch::now();
        work(&mut world, n);
        watch.elapsed()
    };
    let best = (0..3).map(run).find(|took| *took < Duration::from_secs(1));
    assert!(cfg!(miri) || best.is_some());
    println!("{best:?}");
}

/// Each of them was looked up among those before it.
#[test]
fn sharers_that_are_let_in_together() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        (0..n).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
        world
    };
    takes_no_second(30_000, prepare, |world, n| world.release_first(n));
}

/// Where many are let in, the holders are no longer looked up one by one: the last of them are holders as well.
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

/// For each of them the line was walked from its head.
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
        let newcomer = Token::new(b"newcomer").expect("a token");
        let mut search = Search::new(newcomer, &KEY, Rank::Newcomer, Mode::Exclusive);
        loop {
            match search.run(&world.waiting) {
                Found::Ask(name) => {
                    let lock = Some(&world.lock).filter(|_| name == KEY);
                    search.learn(name, lock, NOW);
                }
                found => return assert_eq!(found, Found::Nothing),
            }
        }
    });
}
