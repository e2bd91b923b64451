//! A lock with hundreds of holders behaves like a plain list of holds. A replica that applies the lock's
//! changes has the same holds. No expired hold is visible.

mod turns;

use std::collections::BTreeMap;

use crate::checked;
use dlock_core::codec::{self, Anchor, Origin, Reader};
use dlock_core::{
    Acquired, Change, ClientId, Confirmed, Delay, EndedHolds, Event, Fence, Fences, Grants, Instant, Lock,
    LockRequest, LockRequestRef, Mode, Name, NewWaiter, Outcome, Rank, RareEffects, ReleaseCount, Skew, Step,
    Terms, Ttl, Turn, WaitKind, Waiting,
};
use dlock_protocol::steps;
use proptest::prelude::*;

use crate::model::content::content;

const KEY: Name<'static> = Name { db: 0, key: std::borrow::Cow::Borrowed(b"key") };
const START: u64 = 1_760_000_000_000;
const ANCHOR: Anchor = Anchor { boot: 1, offset: 0 };

/// The number of holders at the start: more than [`EndedHolds::SLICE`], the maximum number of holds that one
/// operation ends one by one. Under Miri, which is slow, there are fewer holders.
const MANY: usize = if cfg!(miri) { 40 } else { 700 };

struct World {
    /// The time in ms.
    now: u64,
    lock: Lock,
    replica: Lock,
    fences: Fences,
    waiting: Waiting,
    /// The number of holds that ended one by one, each with an event.
    ended: usize,
    /// Holds that ended together, with one event for all of them.
    ended_holds: Vec<EndedHolds>,
    outcomes: Vec<Outcome>,
    /// The events of the last operation.
    events: Vec<Event>,
    /// The units of work of the last operation: see [`steps`].
    steps: u64,
    /// Number of bytes that the last operation replicated.
    written: usize,
}

fn token(n: usize) -> Vec<u8> {
    format!("{n}:a token").into_bytes()
}

fn ttl(ms: u64) -> Ttl {
    Ttl::from_millis(ms).expect("a possible ttl")
}

/// The client of all requests.
const CLIENT: ClientId = ClientId(7);

fn shared(token: &[u8], ms: u64) -> LockRequestRef<'_> {
    LockRequest { mode: Mode::Shared, ..LockRequest::new(checked(token), ttl(ms)) }
}

impl World {
    fn new() -> World {
        World {
            now: START,
            lock: Lock::default(),
            replica: Lock::default(),
            fences: Fences::default(),
            waiting: Waiting::default(),
            ended: 0,
            ended_holds: Vec::new(),
            outcomes: Vec::new(),
            events: Vec::new(),
            steps: 0,
            written: 0,
        }
    }

    /// A lock with `many` sharers. The lease of the nth is `ms(n)` long.
    fn shared(many: usize, ms: impl Fn(usize) -> u64) -> World {
        let mut world = World::new();
        for n in 0..many {
            assert!(matches!(world.acquire(&shared(&token(n), ms(n))), Acquired::Held(_)));
        }
        world
    }

    fn instant(&self) -> Instant {
        Instant::from_micros(self.now * 1000)
    }

    fn turn<T>(&mut self, work: impl FnOnce(&mut Turn<'_>) -> T) -> T {
        let (now, before) = (self.instant(), steps::taken());
        let terms = Terms {
            grants: Grants::From(now),
            longest_lease: Ttl::MAX,
            max_holders: u32::MAX,
            max_grants_per_turn: EndedHolds::SLICE,
        };
        let mut step = Step::default();
        let mut turn =
            Turn::new(now, terms, &KEY, &mut self.fences, &mut self.waiting, &mut self.lock, &mut step);
        let answer = work(&mut turn);
        turn.finish();
        self.written = 0;
        if !step.change.is_none() {
            self.replicate(&step.change);
        }
        self.steps = steps::taken() - before;
        self.ended += step.events.iter().filter(|event| matches!(event, Event::Ended(..))).count();
        self.events = step.events.to_vec();
        let rare = step.rare_effects.map_or_else(RareEffects::default, |rare| *rare);
        self.ended_holds.extend(rare.ended_holds);
        self.outcomes.extend(rare.outcomes.into_iter().map(|(_, outcome)| outcome));
        answer
    }

    fn replicate(&mut self, change: &Change) {
        let mut bytes = Vec::new();
        codec::write(&self.lock, change, self.instant(), ANCHOR, &mut bytes);
        self.written = bytes.len();
        let reader = Reader { now: self.instant(), anchor: ANCHOR, origin: Origin::Live };
        let written = reader.read(&bytes).expect("written bytes are readable");
        assert!(written.apply(&mut self.replica), "the replica applies the change");
    }

    fn acquire(&mut self, request: &LockRequestRef<'_>) -> Acquired {
        self.turn(|turn| turn.acquire(request, CLIENT))
    }

    fn wait(&mut self, request: LockRequestRef<'_>, client: u64) {
        let (name, since) = (KEY, self.instant());
        let newcomer = NewWaiter {
            name,
            rank: Rank::Newcomer,
            request,
            kind: WaitKind::Blocked(ClientId(client)),
            since,
            until: None,
        };
        self.waiting.join(newcomer).expect("room in the queue");
    }

    /// Advances the lock as the background job does, until it is not due any more. Returns the number of
    /// turns.
    fn advance(&mut self) -> usize {
        let mut turns = 0;
        while self.lock.next_due().is_some_and(|due| due.passed(self.instant())) {
            self.turn(|turn| turn.advance());
            turns += 1;
        }
        turns
    }

    /// Counts all holds that have ended, including those in `ended_holds`.
    fn count_ended(&mut self) -> usize {
        for mut ended_holds in std::mem::take(&mut self.ended_holds) {
            while !ended_holds.is_empty() {
                self.ended += ended_holds.next_slice().count();
            }
        }
        self.ended
    }
}

/// An operation on the lock. The first number stands for a token, the second one is a ttl in ms, unless the
/// comment of the variant says otherwise.
#[derive(Clone, Debug)]
enum Operation {
    Acquire(usize, u64),
    /// A holder acquires again with EPHEMERAL, which binds its hold to the connection of a client. The second
    /// number is that client.
    Bind(usize, u64),
    Extend(usize, u64),
    Confirm(usize, u64),
    Release(usize),
    /// Time passes, in ms.
    Advance(u64),
    /// The connection of a client (the number) closes. Those holds of these tokens that are bound to the
    /// connection end.
    Disconnect(Vec<usize>, u64),
    Break,
    /// The background job advances the lock.
    RunJob,
}

fn any_operation() -> impl Strategy<Value = Operation> {
    let n = || 0..MANY + 100;
    let ms = || prop_oneof![3 => 1..2000u64, 1 => 1..60u64, 1 => Just(500)];
    prop_oneof![
        20 => (n(), ms()).prop_map(|(n, ms)| Operation::Acquire(n, ms)),
        5 => (n(), 0..3u64).prop_map(|(n, client)| Operation::Bind(n, client)),
        10 => (n(), ms()).prop_map(|(n, ms)| Operation::Extend(n, ms)),
        3 => (n(), ms()).prop_map(|(n, ms)| Operation::Confirm(n, ms)),
        10 => n().prop_map(Operation::Release),
        3 => prop_oneof![5 => 1..20u64, 1 => Just(400), 1 => Just(3000)].prop_map(Operation::Advance),
        1 => (prop::collection::vec(n(), 0..200), 0..3u64).prop_map(|(all, client)| Operation::Disconnect(all, client)),
        1 => Just(Operation::Break),
        2 => Just(Operation::RunJob),
    ]
}

/// A hold in the plain list, with the connection that it is bound to.
#[derive(Clone, Debug, PartialEq)]
struct ListedHold {
    end: u64,
    fence: u64,
    since: u64,
    client: Option<u64>,
}

fn run(operations: Vec<Operation>) {
    // The leases end one after another, 1 to 1.9 s after the start.
    let mut world = World::shared(MANY, |n| 1000 + (n as u64 * 7) % 900);
    let mut list: BTreeMap<usize, ListedHold> = BTreeMap::new();
    for n in 0..MANY {
        let fence = world.lock.at(world.instant()).hold_of(&token(n)).expect("a hold").fence().get();
        let end = START + 1000 + (n as u64 * 7) % 900;
        list.insert(n, ListedHold { end, fence, since: START, client: None });
    }
    let (mut begun, mut ended) = (MANY, 0);
    for operation in operations {
        let now = world.now;
        let before = list.len();
        list.retain(|_, hold| hold.end > now);
        ended += before - list.len();
        match operation {
            Operation::Acquire(n, ms) => {
                let Acquired::Held(fence) = world.acquire(&shared(&token(n), ms)) else { panic!("refused") };
                match list.get_mut(&n) {
                    Some(hold) => {
                        hold.end = hold.end.max(now + ms);
                        assert_eq!(hold.fence, fence.get());
                    }
                    None => {
                        begun += 1;
                        let hold = ListedHold { end: now + ms, fence: fence.get(), since: now, client: None };
                        list.insert(n, hold);
                    }
                }
            }
            Operation::Bind(n, client) => {
                if let Some(hold) = list.get_mut(&n) {
                    let holder = token(n);
                    let bound = LockRequest { ephemeral: true, ..shared(&holder, 1) };
                    assert_eq!(
                        world.turn(|turn| turn.acquire(&bound, ClientId(client))),
                        Acquired::Held(Fence::from_outside(hold.fence).expect("a fence"))
                    );
                    (hold.client, hold.end) = (Some(client), hold.end.max(now + 1));
                }
            }
            Operation::Extend(n, ms) => {
                let extended = world.turn(|turn| turn.extend(checked(&token(n)), ttl(ms)));
                assert_eq!(extended, list.get_mut(&n).map(|hold| hold.end = now + ms).is_some());
            }
            Operation::Confirm(n, ms) => {
                // Fences are times in µs. This one is 5 ms ahead of the clock: greater than most fences of
                // holds.
                let fence = Fence::from_outside(now * 1000 + 5000).expect("a fence");
                let confirmed =
                    world.turn(|turn| turn.confirm(checked(&token(n)), fence, ttl(ms), Skew::WITHOUT_GRACE));
                match list.get_mut(&n) {
                    None => assert_eq!(confirmed, Confirmed::NotHeld),
                    Some(hold) if hold.fence > fence.get() => {
                        assert_eq!(
                            confirmed,
                            Confirmed::Fence(Fence::from_outside(hold.fence).expect("a fence"))
                        );
                    }
                    Some(hold) => (hold.end, hold.fence) = (now + ms, fence.get()),
                }
            }
            Operation::Release(n) => {
                let released =
                    world.turn(|turn| turn.release(checked(&token(n)), ReleaseCount::One, Delay::NONE));
                let held = list.remove(&n).is_some();
                assert_eq!(released, u32::from(held));
                ended += usize::from(held);
            }
            Operation::Advance(ms) => world.now += ms,
            Operation::Disconnect(mut all, client) => {
                all.sort_unstable();
                all.dedup();
                let tokens: Vec<_> = all.iter().map(|n| token(*n)).collect();
                world.turn(|turn| turn.disconnect(tokens.iter().map(Vec::as_slice), ClientId(client)));
                for n in all {
                    if list.get(&n).is_some_and(|hold| hold.client == Some(client)) {
                        list.remove(&n);
                        ended += 1;
                    }
                }
            }
            Operation::Break => {
                assert_eq!(world.turn(|turn| turn.break_all()), list.len());
                ended += list.len();
                list.clear();
            }
            Operation::RunJob => drop(world.advance()),
        }
        assert_agreement(&world, &list);
    }
    world.now += 1_000_000;
    ended += list.len();
    world.advance();
    assert!(world.lock.is_gone() && world.replica.is_gone());
    assert_eq!((world.count_ended(), ended), (begun, begun), "each hold ended once");
}

/// Checks that the lock and its replica agree with the list.
fn assert_agreement(world: &World, list: &BTreeMap<usize, ListedHold>) {
    let live = || list.values().filter(|hold| hold.end > world.now);
    for lock in [&world.lock, &world.replica] {
        let view = lock.at(world.instant());
        assert_eq!((view.holders(), view.holds().count()), (live().count(), live().count()));
        assert_eq!(view.mode(), live().next().map(|_| Mode::Shared));
        assert_eq!(view.longest_left(), live().map(|hold| hold.end - world.now).max());
        assert_eq!(view.fence().map(Fence::get), live().map(|hold| hold.fence).max());
        for n in (0..MANY + 100).step_by(13) {
            let hold = view
                .hold_of(&token(n))
                .map(|hold| (hold.deadline().millis(), hold.fence().get(), hold.granted().millis()));
            let expected = list.get(&n).filter(|hold| hold.end > world.now);
            assert_eq!(hold, expected.map(|hold| (hold.end, hold.fence, hold.since)), "{n}");
        }
    }
    assert_eq!(content(&world.lock), content(&world.replica));
}

#[test]
fn a_lock_with_many_holders_behaves_like_a_plain_list() {
    let operations = prop::collection::vec(any_operation(), 1..if cfg!(miri) { 20 } else { 300 });
    crate::random(operations, if cfg!(miri) { 2 } else { 60 }, run);
}
