//! One operation (a turn) grants the lock to a slice of the queue (`EndedHolds::SLICE` waiters), even if more
//! waiters could be granted. `World::unserved` then asks for another turn.

use super::*;

/// A newcomer that asks for a shared lock, too, joins the tail, so it is granted last.
#[test]
fn a_turn_grants_a_slice_of_many_sharers_and_no_newcomer_overtakes_the_rest() {
    let many = if cfg!(miri) { 600 } else { 5_000 };
    let mut world = World::held_exclusively();
    (0..many).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
    let mut answers = world.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One, Delay::NONE));
    let mut turns = 1;
    while world.unserved {
        assert_eq!(answers, turns * EndedHolds::SLICE);
        let newcomer = request(b"newcomer", Mode::Shared);
        answers += world.turn(|turn| {
            let acquired = turn.acquire(&newcomer, ClientId(0));
            let queue_is_empty = turn.waiting.is_empty();
            assert_eq!(matches!(acquired, Acquired::Held(_)), queue_is_empty, "{acquired:?}");
        });
        turns += 1;
    }
    assert_eq!((answers, turns), (many, many.div_ceil(EndedHolds::SLICE)));
    let view = world.lock.at(NOW);
    assert!(view.hold_of(b"newcomer").is_some() && view.hold_of(&token(many - 1)).is_some());
}

/// If a process cannot reach its server, its positions in the queue expire. One turn removes any number of
/// expired positions, and grants the lock to the first live waiter behind them. If the lock were left free, a
/// newcomer could overtake that waiter.
#[test]
fn a_waiter_behind_many_expired_positions_gets_the_lock() {
    let many = if cfg!(miri) { 600 } else { 5_000 };
    let mut world = World::held_exclusively();
    let queue = |world: &mut World, token: &[u8], until| {
        let kind = WaitKind::Queued(Queued::new(ClientId(1), None, None));
        let request = request(token, Mode::Exclusive);
        let newcomer =
            NewWaiter { name: KEY, rank: Rank::Newcomer, request, kind, since: NOW, until: Some(until) };
        world.waiting.join(newcomer).expect("room in the queue");
    };
    (0..many).for_each(|n| queue(&mut world, &token(n), NOW.after_millis(0)));
    queue(&mut world, b"alive", NOW.after_millis(1000));
    let answers = world.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One, Delay::NONE));
    assert_eq!((answers, world.unserved), (many + 1, false));
    assert!(world.lock.at(NOW).hold_of(b"alive").is_some());
}

/// The turn of `break_all` first serves a slice of the queue, and breaks these new holds, too. Then it grants
/// the free lock to one more waiter, although the slice is used up.
#[test]
fn a_turn_that_has_served_its_slice_leaves_no_lock_free() {
    let many = 3 * EndedHolds::SLICE;
    let mut world = World::held_exclusively();
    (0..many).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
    world.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One, Delay::NONE));
    let mut broken = 0;
    world.turn(|turn| broken = turn.break_all());
    assert_eq!((broken, world.unserved), (2 * EndedHolds::SLICE, true));
    assert_eq!(world.lock.at(NOW).holders(), 1);
    while world.unserved {
        world.turn(|turn| turn.advance());
    }
    assert_eq!((world.waiting.len(), world.lock.at(NOW).holders()), (0, EndedHolds::SLICE));
}
