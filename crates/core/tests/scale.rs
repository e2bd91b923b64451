//! The work of an operation on many waiters or holders is not quadratic in their number.

mod slices;

use std::fs;
use std::time::Duration;

use crate::checked;
use dlock_core::deadlock::{Found, Search};
use dlock_core::{
    Acquired, ClientId, Delay, EndedHolds, Fences, Grants, Instant, Lock, LockRequest, LockRequestRef, Mode,
    Name, NewPosition, NewWaiter, Queued, Rank, ReleaseCount, Step, Terms, Ttl, Turn, WaitKind, Waiting,
};
use dlock_protocol::command::CancelTarget;
use dlock_protocol::steps;

const NOW: Instant = Instant::from_micros(1_760_000_000_000_000);
const TERMS: Terms = Terms {
    grants: Grants::From(NOW),
    longest_lease: Ttl::MAX,
    max_holders: u32::MAX,
    max_grants_per_turn: EndedHolds::SLICE,
};
const KEY: Name<'static> = Name { db: 0, key: std::borrow::Cow::Borrowed(b"key") };

/// A lock with its queue.
#[derive(Default)]
struct World {
    fences: Fences,
    waiting: Waiting,
    lock: Lock,
    /// Whether another turn must continue to serve the queue.
    unserved: bool,
}

fn request(token: &[u8], mode: Mode) -> LockRequestRef<'_> {
    LockRequest { mode, ..LockRequest::new(checked(token), Ttl::MAX) }
}

fn token(n: usize) -> Vec<u8> {
    format!("a token of twenty {n:08}").into_bytes()
}

impl World {
    /// Runs an operation. Returns the number of waiters that it has answered.
    fn turn<T>(&mut self, work: impl FnOnce(&mut Turn<'_>) -> T) -> usize {
        let mut step = Step::default();
        let mut turn =
            Turn::new(NOW, TERMS, &KEY, &mut self.fences, &mut self.waiting, &mut self.lock, &mut step);
        work(&mut turn);
        turn.finish();
        self.unserved = step.rare_effects.as_ref().is_some_and(|rare| rare.unserved);
        step.rare_effects.map_or(0, |rare| rare.outcomes.len())
    }

    /// Runs turns until the queue is served. Returns the number of answered waiters.
    fn serve_the_rest(&mut self) -> usize {
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
        let kind = WaitKind::Blocked(client);
        let newcomer = NewWaiter { name, rank: Rank::Newcomer, request, kind, since: NOW, until: None };
        self.waiting.join(newcomer).expect("room in the queue");
    }

    /// Releases the lock, and serves the queue. Checks the number of waiters that are answered.
    fn release_and_serve(&mut self, answers: usize) {
        let answered = self.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One, Delay::NONE));
        assert_eq!(answered + self.serve_the_rest(), answers);
    }
}

/// Checks that the work on `count` waiters takes less than a second of this thread's processor time, which
/// other processes do not affect. The work takes 0.1 to 0.2 s. It took many seconds with the bugs that the
/// comments on the tests describe.
fn assert_fast(count: usize, prepare: impl Fn(usize) -> World, work: impl Fn(&mut World, usize)) {
    let n = if cfg!(miri) { 8 } else { count };
    let mut world = prepare(n);
    let before = processor_time();
    work(&mut world, n);
    let duration = processor_time() - before;
    println!("{duration:?}");
    assert!(duration < Duration::from_secs(1), "{duration:?}");
}

/// The processor time of this thread, from /proc. Zero under Miri, which has no /proc.
fn processor_time() -> Duration {
    let schedstat =
        if cfg!(miri) { "0".into() } else { fs::read_to_string("/proc/thread-self/schedstat").unwrap() };
    Duration::from_nanos(schedstat.split_whitespace().next().expect("a number").parse().expect("nanoseconds"))
}

/// For each sharer that it granted, an earlier version searched all holders. Only debug builds count steps
/// (units of work: see [`steps`]).
#[test]
fn many_sharers_are_granted_without_quadratic_work() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        (0..n).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
        world
    };
    let most = if cfg!(miri) { 40 } else { 10_000 };
    for n in [most / 10, most] {
        let (mut world, before) = (prepare(n), steps::taken());
        world.release_and_serve(n);
        let per_waiter = (steps::taken() - before) / n as u64;
        println!("{n}: {per_waiter} steps per waiter");
        assert!(!cfg!(debug_assertions) || (1..250).contains(&per_waiter), "{per_waiter} steps per waiter");
    }
}

/// A lock stores up to 32 holders in a list. More holders are moved to rows sorted by deadline. A sharer must
/// be found among the holders whether it was granted before the move or after it.
#[test]
fn each_sharer_is_found_among_many_holders() {
    let n = if cfg!(miri) { 34 } else { 100 };
    for again in [0, 31, 32, n - 1].into_iter().skip(if cfg!(miri) { 3 } else { 0 }) {
        let mut world = World::held_exclusively();
        (0..n).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
        world.wait(KEY, &token(again), Mode::Permits(std::num::NonZeroU32::MIN));
        // The last wait is refused: its token is a sharer by then, and cannot get a permit.
        world.release_and_serve(n + 1);
    }
}

/// A grant to a token answers all waits of this token. In an earlier version, the end of each of these waits
/// searched the list of all waits of the token.
#[test]
fn many_waits_of_one_token_end_without_quadratic_work() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        (0..n).for_each(|_| world.wait(KEY, b"same", Mode::Exclusive));
        world
    };
    assert_fast(100_000, prepare, |world, n| world.release_and_serve(n));
}

/// For each waiter, an earlier version searched the queue from its head.
#[test]
fn a_deadlock_search_among_tokens_with_several_waits_is_not_quadratic() {
    let prepare = |n| {
        let mut world = World::held_exclusively();
        for n in 0..n {
            world.wait(KEY, &token(n), Mode::Exclusive);
            world.wait(Name::new(0, b"elsewhere"), &token(n), Mode::Exclusive);
        }
        world
    };
    assert_fast(30_000, prepare, |world, _| {
        let request = request(b"newcomer", Mode::Exclusive);
        let mut search = Search::new(&request, &KEY, Rank::Newcomer, NOW, &world.waiting);
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

/// An operation on one waiter of the queue takes fewer than 400 steps, among 10 waiters and among 100,000.
#[test]
fn an_operation_on_one_waiter_takes_no_more_work_in_a_long_queue() {
    for many in if cfg!(miri) { vec![40] } else { vec![10, 100_000] } {
        let mut world = World::held_exclusively();
        let until = NOW.after_millis(1000);
        let queued = || Queued::new(ClientId(1), None, None);
        let position = NewPosition { queued: queued(), ms: Ttl::from_millis(1000).expect("a ttl") };
        for n in 0..many {
            let (kind, token) = (WaitKind::Queued(queued()), token(n));
            let request = request(&token, Mode::Exclusive);
            let newcomer =
                NewWaiter { name: KEY, rank: Rank::Newcomer, request, kind, since: NOW, until: Some(until) };
            world.waiting.join(newcomer).expect("room in the queue");
        }
        let mut measure = |what: &str, work: &mut dyn FnMut(&mut Turn<'_>)| {
            let before = steps::taken();
            world.turn(work);
            let steps = steps::taken() - before;
            println!("{what} among {many}: {steps} steps");
            assert!(steps < 400, "{what} among {many}: {steps} steps");
        };
        let (middle, first) = (token(many / 2), token(0));
        measure("a repeated request", &mut |turn| {
            let kept = turn.queue(&request(&middle, Mode::Exclusive), &position);
            assert!(matches!(kept, Acquired::Kept(_)));
        });
        measure("a handoff", &mut |turn| {
            assert_eq!(turn.release(checked(b"first"), ReleaseCount::One, Delay::NONE), 1)
        });
        measure("a claim", &mut |turn| {
            let claimed = turn.queue(&request(&first, Mode::Exclusive), &position);
            assert!(matches!(claimed, Acquired::Held(_)));
        });
        measure("a cancel", &mut |turn| assert_eq!(turn.cancel(CancelTarget::Token(checked(&middle))), 1));
    }
}
