//! Exhaustive exploration of small worlds: two or three tokens, one lock and a few moves, in every order. The
//! random tests in `model` make long sequences; the tests here miss no short one. States that differ only in
//! the time and the exact fences count as one. So each world is finite, with some hundred thousand states.
//! The two largest worlds are explored only up to a depth. `DLOCK_DEPTH` sets the depth for all worlds.
//!
//! Each move is made in the reference model and in the core (the system), which must agree.

use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::num::NonZeroU32;

use dlock_core::{Mode, ReleaseCount};

use crate::model::check;
use crate::model::moves::Move;
use crate::model::reference::{Client, Model, Request, Token, WaitsBy};
use crate::model::system::System;

const KEY: u8 = 0;
const START: u64 = 1_760_000_000_000_000;

fn acquire(client: Client, token: Token, mode: Mode, block: Option<u64>) -> Move {
    // The holds of token 1 end with its connection, followed by a delay.
    let (ephemeral, delay) = (token == 1, u64::from(token == 1));
    Move::Acquire(Request { ttl: 2, ephemeral, delay, ..Request::new(client, KEY, token, mode) }, block)
}

/// The moves of every world except ACQUIRE: time passes, and holds and waits end in every way.
fn common_moves(tokens: Token) -> Vec<Move> {
    let mut moves = vec![
        Move::Advance(1000),
        Move::RunJob(KEY),
        Move::Break(KEY),
        Move::Delete(KEY),
        Move::Delivered(0),
        Move::Undelivered(0),
    ];
    for token in 0..tokens {
        moves.push(Move::Release(KEY, token, ReleaseCount::One, 0));
        moves.push(Move::TimeOut(token.into()));
        moves.push(Move::ClientGone(token.into()));
    }
    moves
}

/// ACQUIRE by each token, on its own connection, in each of the modes.
fn acquire_in(modes: &[Mode], tokens: Token) -> Vec<Move> {
    let pairs = modes.iter().flat_map(|mode| (0..tokens).map(move |token| (token, *mode)));
    pairs.map(|(token, mode)| acquire(token.into(), token, mode, Some(3))).collect()
}

fn permits(n: u32) -> Mode {
    Mode::Permits(NonZeroU32::new(n).expect("above 0"))
}

/// Returns a hash of the state without the parts that do not affect later moves: the time and the exact
/// fences.
fn fingerprint(model: &Model) -> u64 {
    let mut fences: Vec<u64> = model.holds.iter().map(|hold| hold.fence).collect();
    fences.extend(model.sent_grants.iter().map(|grant| grant.fence));
    fences.sort_unstable();
    fences.dedup();
    let rank = |fence: u64| fences.binary_search(&fence).expect("a fence of a hold") as u64;
    // The ms until a deadline, plus 4. All deadlines that passed at least 4 ms ago become 0. They affect no
    // later move, because the delay of an expired hold counts from its deadline, and is 1 ms here.
    let now = model.now / 1000;
    let from_now = |ms: u64| (ms + 4).saturating_sub(now);
    let mut model = model.clone();
    let grant_numbers: Vec<u64> = model.sent_grants.iter().map(|grant| grant.number).collect();
    for hold in &mut model.holds {
        // Each number in `sent_to` becomes the index of its grant in `model.sent_grants`, or u64::MAX if the
        // grant is not there.
        if let Some(unconfirmed) = &mut hold.unconfirmed {
            for number in &mut unconfirmed.sent_to {
                let grant = grant_numbers.iter().position(|other| other == number);
                *number = grant.map_or(u64::MAX, |index| index as u64);
            }
            unconfirmed.unclaimed =
                unconfirmed.unclaimed.map(|(_, until, delay)| (0, from_now(until), delay));
        }
        // The age of a hold affects no decision.
        (hold.fence, hold.end, hold.since) = (rank(hold.fence), from_now(hold.end), 0);
    }
    for grant in &mut model.sent_grants {
        (grant.fence, grant.number) = (rank(grant.fence), 0);
    }
    let numbers: Vec<u64> = model.waiters.iter().map(|waiter| waiter.number).collect();
    for waiter in &mut model.waiters {
        (waiter.until, waiter.number) = (waiter.until.map(from_now), 0);
        // `BlockAndQueue` contains the number of the waiter that has the QUEUE position. Replaces this number
        // by the index of that waiter in `model.waiters`.
        if let WaitsBy::BlockAndQueue(position) = &mut waiter.by {
            *position =
                numbers.iter().position(|number| number == position).expect("the position waits") as u64;
        }
    }
    for (_, until) in &mut model.delays {
        *until = from_now(*until);
    }
    let mut hasher = DefaultHasher::new();
    let grace = from_now(model.grants_from / 1000);
    (&model.holds, &model.sent_grants, &model.waiters, &model.delays, grace).hash(&mut hasher);
    hasher.finish()
}

/// The depth of an exploration without a limit.
const UNLIMITED: usize = usize::MAX;

/// Makes every move in every reachable state, breadth first, up to `depth`.
fn explore(world: &str, moves: &[Move], depth: usize) {
    let depth = match std::env::var("DLOCK_DEPTH").map(|depth| depth.parse()) {
        Ok(Ok(depth)) => depth,
        _ if cfg!(miri) => 1,
        _ => depth,
    };
    let model = Model { now: START, max_grants_per_turn: usize::MAX, ..Model::default() };
    let mut seen = HashSet::from([fingerprint(&model)]);
    let mut frontier = vec![(model, System::new(START, 0))];
    let mut steps = 0u64;
    let mut reached = 0;
    while reached < depth && !frontier.is_empty() {
        reached += 1;
        let mut next = Vec::new();
        for (model, system) in &frontier {
            for step in moves.iter().filter(|step| model.can_make(step)) {
                let (mut model, mut system) = (model.clone(), system.clone());
                let expected = model.make(step);
                let answer = system.make(step.clone());
                check::assert_agreement(&system, &model, step, &answer, &expected);
                check::assert_invariants(&system, step);
                steps += 1;
                if seen.insert(fingerprint(&model)) {
                    next.push((model, system));
                }
            }
        }
        frontier = next;
    }
    println!("{world}: {} states, {steps} steps, depth {reached}, {} unexplored", seen.len(), frontier.len());
}

#[test]
fn three_exclusive_tokens_agree_with_the_model() {
    let mut moves = common_moves(3);
    moves.extend(acquire_in(&[Mode::Exclusive], 3));
    // A second connection of token 0, which waits or only tries.
    moves.push(acquire(3, 0, Mode::Exclusive, Some(0)));
    moves.push(acquire(3, 0, Mode::Exclusive, None));
    explore("exclusive", &moves, UNLIMITED);
}

#[test]
fn three_tokens_that_share_and_upgrade_agree_with_the_model() {
    let mut moves = common_moves(3);
    moves.extend(acquire_in(&[Mode::Shared, Mode::Exclusive], 3));
    explore("shared and exclusive", &moves, UNLIMITED);
}

#[test]
fn three_tokens_with_permits_agree_with_the_model() {
    let mut moves = common_moves(3);
    moves.extend(acquire_in(&[permits(1), permits(2)], 3));
    moves.push(acquire(2, 2, Mode::Exclusive, Some(3)));
    explore("permits", &moves, UNLIMITED);
}

#[test]
fn two_tokens_in_a_grace_period_agree_with_the_model() {
    let mut moves = common_moves(2);
    moves.extend(acquire_in(&[Mode::Shared, Mode::Exclusive], 2));
    moves.push(Move::Grace(2));
    explore("grace", &moves, UNLIMITED);
}

/// Token 0 waits with BLOCK, token 1 with QUEUE, and token 2 with QUEUE, alone or together with BLOCK.
#[test]
fn three_tokens_in_a_mixed_queue_agree_with_the_model() {
    let mut moves = common_moves(3);
    let queue = |client: Client, token, block| match acquire(client, token, Mode::Exclusive, None) {
        Move::Acquire(request, _) => Move::Queue(request, 3, block),
        other => other,
    };
    for token in 0..3 {
        moves.push(Move::TimeOutToken(KEY, token));
        // The user that queued the token has lost the right to the key, so the grant is revoked.
        moves.push(Move::RightsLost(KEY, token));
    }
    moves.push(acquire(0, 0, Mode::Exclusive, Some(3)));
    moves.push(acquire(0, 0, Mode::Exclusive, None));
    moves.push(queue(1, 1, None));
    moves.push(queue(2, 2, None));
    moves.push(queue(2, 2, Some(1)));
    explore("a mixed queue", &moves, 8);
}

/// Token 0 has three connections. Token 1, its competitor, has one.
#[test]
fn one_token_on_many_connections_agrees_with_the_model() {
    let mut moves = common_moves(2);
    for client in [0, 2, 3] {
        moves.push(acquire(client, 0, Mode::Exclusive, Some(0)));
        moves.push(acquire(client, 0, Mode::Shared, Some(0)));
    }
    moves.push(acquire(1, 1, Mode::Shared, Some(0)));
    moves.push(acquire(1, 1, Mode::Exclusive, Some(0)));
    explore("one token, three connections", &moves, 9);
}
