//! The work of one operation (a turn) is bounded for any number of holders, even if all their holds end at
//! once. The tests count the work in steps, because a duration depends on the load of the machine.

use crate::checked;
use dlock_core::{
    Acquired, Delay, End, EndedHolds, Event, Fence, LockRequest, Mode, Outcome, Rank, ReleaseCount, Skew,
};
use dlock_protocol::steps;

use super::{MANY, START, World, shared, token, ttl};
use crate::model::content::content;

/// The maximum number of steps of an operation, for any number of holders.
const MAX_STEPS: u64 = 400;

/// An earlier version visited all holders to find one of them. It also did so to compute the longest lease,
/// the fence and the number of holders.
#[test]
fn the_work_of_an_operation_does_not_grow_with_the_holders() {
    for many in if cfg!(miri) { vec![40] } else { vec![10, 100, 1_000, 100_000] } {
        let mut world = World::shared(many, |n| 1_000_000 + (n as u64 * 7919) % 500_000);
        let mut most = 0;
        let mut check = |world: &World, what: &str| {
            assert!(world.steps <= MAX_STEPS, "{what} with {many} holders: {} steps", world.steps);
            assert!(world.written < 500, "{what} with {many} holders: {} bytes", world.written);
            most = most.max(world.steps);
        };
        for n in (0..many).step_by(many.div_ceil(50)) {
            world.acquire(&shared(&token(many + n), 1_200_000));
            check(&world, "a new hold");
            world.acquire(&shared(&token(n), 1_300_000));
            check(&world, "the same hold again");
            assert!(world.turn(|turn| turn.extend(checked(&token(n)), ttl(1_100_000))));
            check(&world, "a new lease");
            // In µs, 9 s after the start. CONFIRM accepts a fence that is up to 10 s ahead of the clock.
            let fence = Fence::from_outside(START * 1000 + 9_000_000).expect("a fence");
            world.turn(|turn| turn.confirm(checked(&token(n)), fence, ttl(1_100_000), Skew::WITHOUT_GRACE));
            check(&world, "a confirmation");
            assert_eq!(
                world.turn(|turn| turn.release(checked(&token(many + n)), ReleaseCount::One, Delay::NONE)),
                1
            );
            check(&world, "a release");
            let before = steps::taken();
            let view = world.lock.at(world.instant());
            assert_eq!(view.holders(), many);
            assert!(view.mode().is_some() && view.hold_of(&token(n)).is_some());
            assert!(view.longest_left().is_some() && view.fence().is_some());
            assert!(view.holds().take(10).count() > 0 && world.lock.next_due().is_some());
            world.steps = steps::taken() - before;
            check(&world, "reads");
        }
        assert!(!cfg!(debug_assertions) || most > 0, "steps were counted");
        println!("{many}: at most {most} steps");
    }
}

/// Half of the leases end at one moment. Each turn ends a slice of them, and no expired hold is visible.
#[test]
fn a_turn_ends_a_slice_of_the_holds_that_expired_together() {
    let many = if cfg!(miri) { 600 } else { 20_000 };
    let mut world = World::shared(many, |n| if n % 2 == 0 { 500 } else { 100_000 });
    world.now += 500;
    let view = world.lock.at(world.instant());
    assert_eq!((view.holders(), view.hold_of(&token(0)), world.ended), (many / 2, None, 0));
    let mut turns = 0;
    while world.lock.next_due().is_some_and(|due| due.passed(world.instant())) {
        world.turn(|turn| turn.advance());
        assert!(world.events.len() <= EndedHolds::SLICE && world.steps < 200 * EndedHolds::SLICE as u64);
        assert!(world.written < 40 * EndedHolds::SLICE, "{} bytes", world.written);
        assert_eq!(world.lock.at(world.instant()).holders(), many / 2);
        turns += 1;
    }
    assert_eq!((world.ended, turns), (many / 2, (many / 2).div_ceil(EndedHolds::SLICE)));
    assert_eq!((world.lock.stored_len(), world.replica.stored_len()), (many / 2, many / 2));
}

/// If all holds of a lock end at once, they leave in one turn, and not in slices. The next waiter is granted
/// the lock in that turn, and one event stands for all the holds.
#[test]
fn all_holders_that_end_together_leave_in_one_turn() {
    type Ends = fn(&mut World) -> End;
    let ends: [Ends; 2] = [
        |world| {
            assert_eq!(world.turn(|turn| turn.break_all()), MANY.max(300));
            End::Broken
        },
        |world| {
            world.now += 500;
            world.turn(|turn| turn.advance());
            End::Expired
        },
    ];
    // 300 holders are more than a slice.
    for end_all in ends {
        let mut world = World::shared(MANY.max(300), |_| 500);
        let writer = LockRequest { mode: Mode::Exclusive, ..shared(b"writer", 9000) };
        world.wait(writer, 1);
        let why = end_all(&mut world);
        assert!(matches!(world.outcomes[..], [Outcome::Granted(..)]));
        assert_eq!(world.events, [Event::AllEnded(why), Event::Acquired]);
        assert!(world.steps < MAX_STEPS && world.written < 200, "{} {}", world.steps, world.written);
        assert_eq!(content(&world.lock), content(&world.replica));
        for ended_holds in &mut world.ended_holds {
            assert!(
                ended_holds.next_slice().all(|(ended, ..)| ended.is_some_and(|(reason, _)| reason == why))
            );
        }
        assert_eq!(world.lock.at(world.instant()).mode(), Some(Mode::Exclusive));
    }
}

/// One of many expired sharers had a DELAY (the pause before the next grant). If other sharers have not
/// expired, an operation ends only some of the expired holds, and the hold with the DELAY is still stored.
#[test]
fn the_delay_of_an_expired_sharer_keeps_newcomers_out() {
    for (rest, label) in [(500, "all expire"), (100_000, "some stay")] {
        let mut world = World::shared(MANY, |n| if n < MANY - 5 { 500 } else { rest });
        let dead = LockRequest { delay: Delay::from_millis(3000).expect("in range"), ..shared(b"zz", 500) };
        assert!(matches!(world.acquire(&dead), Acquired::Held(_)));
        world.now += 500;
        assert_eq!(world.acquire(&shared(b"newcomer", 1000)), Acquired::NotNow(Rank::Newcomer), "{label}");
        world.advance();
        assert_eq!(world.lock.at(world.instant()).delay_left(), 3000, "{label}");
        world.now += 3000;
        assert!(matches!(world.acquire(&shared(b"newcomer", 1000)), Acquired::Held(_)), "{label}");
    }
}

/// The other sharers have expired, but most of their holds are still stored.
#[test]
fn the_last_live_sharer_is_upgraded_in_place() {
    let mut world = World::shared(MANY, |n| if n == 3 { 100_000 } else { 500 });
    world.now += 500;
    let sharer = token(3);
    let alone = LockRequest { mode: Mode::Exclusive, ..shared(&sharer, 1000) };
    assert!(matches!(world.acquire(&alone), Acquired::Held(_)));
    assert_eq!(world.lock.at(world.instant()).mode(), Some(Mode::Exclusive));
    assert_eq!(content(&world.lock), content(&world.replica));
    assert_eq!(world.count_ended(), MANY - 1);
}
