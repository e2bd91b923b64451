//! However many of a queue can be answered, a turn answers a slice of them.

use super::*;

/// A newcomer that would fit stands behind all of them, and so is let in last.
#[test]
fn of_many_that_can_be_let_in_a_turn_lets_in_some_and_nobody_overtakes_them() {
    let many = if cfg!(miri) { 600 } else { 5_000 };
    let mut world = World::held_exclusively();
    (0..many).for_each(|n| world.wait(KEY, &token(n), Mode::Shared));
    let mut answers = world.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One));
    let mut turns = 1;
    while world.unserved {
        assert_eq!(answers, turns * Departed::SLICE);
        let newcomer = request(b"newcomer", Mode::Shared);
        answers += world.turn(|turn| {
            let acquired = turn.acquire(&newcomer, ClientId(0));
            let all = turn.waiting.is_empty();
            assert_eq!(matches!(acquired, Acquired::Held(_)), all, "{acquired:?}");
        });
        turns += 1;
    }
    assert_eq!((answers, turns), (many, many.div_ceil(Departed::SLICE)));
    let view = world.lock.at(NOW);
    assert!(view.hold_of(b"newcomer").is_some() && view.hold_of(&token(many - 1)).is_some());
}

/// A process that cannot reach its server for a while leaves as many positions behind as it has waits: they
/// end in slices, and the next waiter is granted the lock when they have.
#[test]
fn of_many_positions_that_are_over_a_turn_answers_some() {
    let many = if cfg!(miri) { 600 } else { 5_000 };
    let mut world = World::held_exclusively();
    let queue = |world: &mut World, token: &[u8], until| {
        let owner = Owner::Token(Queued::new(ClientId(1), None, None, false));
        let request = request(token, Mode::Exclusive);
        let newcomer =
            Newcomer { name: KEY, rank: Rank::Newcomer, request, owner, since: NOW, until: Some(until) };
        world.waiting.join(newcomer).expect("it can join");
    };
    (0..many).for_each(|n| queue(&mut world, &token(n), NOW.after_millis(0)));
    queue(&mut world, b"alive", NOW.after_millis(1000));
    let mut answers = world.turn(|turn| turn.release(checked(b"first"), ReleaseCount::One));
    assert_eq!(answers, Departed::SLICE);
    while world.unserved {
        let more = world.turn(|turn| turn.advance());
        assert!(more <= Departed::SLICE, "{more}");
        answers += more;
    }
    assert_eq!((answers, world.waiting.len()), (many + 1, 0));
    assert!(world.lock.at(NOW).hold_of(b"alive").is_some());
}
