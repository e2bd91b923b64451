//! Model-checks a quorum: drives the code of `dlock-quorum` through every order of events in small worlds. A
//! world has three masters (the servers of the members) and up to three clients. Messages are lost, delayed,
//! reordered and duplicated; masters crash; holds end. `model/properties.rs` lists what must be true.
//!
//! The worlds do not cover whole attempts (see `rules/attempts.rs`), more than three masters, clocks with
//! different rates, or shared holds.
//!
//! In the worlds `refuted_..`, clients or masters break a rule, and the checker must find a violation:
//! otherwise the searches would prove nothing. Worlds with more than 1.5 million steps are ignored: `make
//! check` searches those of the module `larger`, and `make model` all. `check_part` may end before it has
//! searched all states.
#![allow(clippy::disallowed_methods, reason = "prints how long each world took")]

mod model {
    pub mod client;
    pub mod holding;
    pub mod master;
    pub mod properties;
    pub mod run;
    pub mod symmetry;
    pub mod system;
    pub mod world;
}

use model::properties::{
    AT_LEAST, EXCLUSION, NO_OVERTAKING, NO_PARTIAL_HOLD, NO_REVIVAL, ONE_ACQUIRES, ORDER, UNIQUE,
};
use model::run::*;
use model::symmetry::client_permutations;
use model::world::{Behaviour, Mutation, Time, World};

const ONCE: Behaviour = Behaviour {
    acquisitions: 1,
    waits: false,
    respects_queue: false,
    in_order: false,
    extensions: 0,
    retries: 0,
    timeouts: false,
    releases: false,
    at_least: 0,
};
const WAITS: Behaviour = Behaviour { waits: true, ..ONCE };
/// Waits, and moves to the queue of the next master when one is silent.
const WAITS_WITH_TIMEOUTS: Behaviour = Behaviour { timeouts: true, ..WAITS };
/// If a majority grants but the first master refuses, acquires only if no client waits at the first master:
/// the client would overtake such a waiter.
const RESPECTS_QUEUE: Behaviour = Behaviour { respects_queue: true, ..ONCE };
/// Asks the first master before the others.
const IN_ORDER: Behaviour = Behaviour { in_order: true, ..ONCE };
const EXTENDS: Behaviour = Behaviour { extensions: 1, ..ONCE };
const RETRIES: Behaviour = Behaviour { retries: 1, timeouts: true, ..ONCE };
const RELEASES: Behaviour = Behaviour { releases: true, ..ONCE };
/// Its hold and the delay after it last longer together than a lease.
const AT_LEAST_THREE: Behaviour = Behaviour { at_least: 3, ..RELEASES };
const RELEASES_TWICE: Behaviour = Behaviour { acquisitions: 2, ..RELEASES };

/// Fences that the masters have issued for other resources. The last master is one fence ahead, so a broken
/// rule leads to two acquisitions with equal fences after fewer steps.
const HEAD_START: [u8; 3] = [0, 0, 1];

/// A fenced quorum without a clock. At most `expiries` holds expire, each at any moment.
fn fences(clients: &[Behaviour], expiries: u8) -> World {
    World {
        clients: clients.to_vec(),
        client_permutations: client_permutations(clients),
        without_symmetry: false,
        fences_before: [0; 3],
        time: Time::None { expiries },
        fenced: true,
        rising_fences: true,
        duplicates: 0,
        crashes: 0,
        grace: 0,
        first_client_holds: false,
        breaks: 0,
        ahead_refusals: 0,
        false_messages: 0,
        mutation: None,
    }
}

/// A fenced quorum with a clock.
fn timed_fences(clients: &[Behaviour], ttl: u8) -> World {
    World { time: Time::Ticks { ttl }, ..fences(clients, 0) }
}

/// A quorum without `fenced` (plain Redlock), with a clock.
fn plain(clients: &[Behaviour], ttl: u8) -> World {
    World { fenced: false, rising_fences: false, ..timed_fences(clients, ttl) }
}

/// A world in which masters crash. Each grants nothing for `grace` ticks after its crash.
fn crashing(crashes: u8, grace: u8) -> World {
    World { crashes, grace, ..plain(&[ONCE; 2], 2) }
}

/// A world in which the first client holds the lock on all masters, and restores its hold on a master that
/// loses it.
fn restoring(extensions: u8, others: &[Behaviour], crashes: u8) -> World {
    let clients = [&[Behaviour { extensions, ..ONCE }], others].concat();
    World { first_client_holds: true, crashes, grace: 2, ..plain(&clients, 2) }
}

/// Turns symmetry reduction off, to check it: with ten times the states, the outcome must be the same.
fn without_symmetry(world: World) -> World {
    World { without_symmetry: true, client_permutations: vec![(0..world.clients.len()).collect()], ..world }
}

fn mutated(mutation: Mutation, world: World) -> World {
    World { mutation: Some(mutation), ..world }
}

macro_rules! worlds {
    ($($(#[$attribute:meta])* $name:ident: $outcome:expr;)*) => {
        $(#[test] $(#[$attribute])* fn $name() { $outcome(stringify!($name)); })*
    };
}

worlds! {
    fenced: |name| check(name, fences(&[ONCE; 2], 2));
    fenced_after_other_fences: |name| check(name, World { fences_before: HEAD_START, ..fences(&[ONCE; 2], 1) });
    fenced_with_a_duplicate: |name| check(name, World { duplicates: 1, ..fences(&[ONCE; 2], 1) });
    fenced_with_fenceahead_refusals: |name| check(name, World { ahead_refusals: 2, ..fences(&[ONCE; 2], 1) });
    fenced_queued: |name| check(name, fences(&[WAITS; 2], 2));
    timed: |name| check(name, plain(&[ONCE; 2], 2));
    released: |name| check(name, plain(&[RELEASES, ONCE], 2));
    queued: |name| check(name, plain(&[WAITS; 2], 1));
    respecting_queue: |name| check(name, plain(&[RESPECTS_QUEUE, ONCE], 2));
    fenced_respecting_queue: |name| check(name, fences(&[RESPECTS_QUEUE, ONCE], 2));
    in_order: |name| check(name, plain(&[IN_ORDER; 2], 2));
    fenced_in_order: |name| check(name, fences(&[IN_ORDER, ONCE], 2));
    one_client_acquires_in_order: |name| check_without_events(name, fences(&[IN_ORDER; 3], 0));
    crash_with_grace: |name| check(name, crashing(1, 2));
    queued_with_a_duplicate: |name| check(name, World { duplicates: 1, ..plain(&[WAITS; 2], 1) });
    timed_with_a_duplicate: |name| check(name, World { duplicates: 1, ..plain(&[ONCE; 2], 2) });
    extended: |name| check(name, plain(&[EXTENDS, ONCE], 2));

    queued_with_a_false_message: |name| check(name, World { false_messages: 1, ..plain(&[WAITS; 2], 1) });
    delayed: |name| check(name, plain(&[AT_LEAST_THREE, ONCE], 2));

    a_hold_outlives_all_masters: |name| check_until_events(name, World { grace: 0, ..restoring(2, &[], 3) });
    restoring_after_a_break: |name| check(name, World { breaks: 1, ..restoring(2, &[], 1) });

    #[ignore] restoring_with_a_contender: |name| check_part(name, restoring(2, &[ONCE], 1));
    #[ignore] restoring_with_a_contender_after_two_crashes: |name|
        check_part(name, restoring(3, &[ONCE], 2));
    #[ignore] restoring_with_a_duplicate: |name|
        check_part(name, World { duplicates: 1, ..restoring(2, &[ONCE], 1) });
    #[ignore] fenced_restoring: |name|
        check_part(name, World { fenced: true, rising_fences: true, ..restoring(2, &[ONCE], 1) });
    #[ignore] restoring_and_released: |name| {
        let mut world = restoring(2, &[ONCE], 1);
        (world.clients[0].releases, world.clients[0].acquisitions) = (true, 2);
        check_part(name, world);
    };
    #[ignore] fenced_queued_with_a_false_message: |name|
        check_part(name, World { false_messages: 1, ..timed_fences(&[WAITS, ONCE], 1) });
    #[ignore] queued_with_false_messages_and_a_duplicate: |name|
        check_part(name, World { false_messages: 2, duplicates: 1, ..plain(&[WAITS; 2], 1) });
    #[ignore] delayed_with_a_duplicate: |name|
        check_part(name, World { duplicates: 1, ..plain(&[AT_LEAST_THREE, ONCE], 2) });
    #[ignore] delayed_after_an_extension: |name|
        check_part(name, plain(&[Behaviour { extensions: 1, ..AT_LEAST_THREE }, ONCE], 2));
    #[ignore] delayed_before_a_waiter: |name| check_part(name, plain(&[AT_LEAST_THREE, WAITS], 2));
    #[ignore] delayed_and_a_crash_with_grace: |name|
        check_part(name, World { crashes: 1, grace: 3, ..plain(&[AT_LEAST_THREE, ONCE], 2) });
    #[ignore] fenced_with_two_duplicates: |name| check_part(name, World { duplicates: 2, ..fences(&[ONCE; 2], 3) });
    #[ignore] fenced_with_refusals_and_a_duplicate: |name|
        check_part(name, World { duplicates: 1, ahead_refusals: 2, ..fences(&[ONCE; 2], 2) });
    #[ignore] fenced_three_clients: |name| check_part(name, fences(&[ONCE; 3], 1));
    #[ignore] fenced_and_timed_respecting_queue: |name| check(name, timed_fences(&[RESPECTS_QUEUE, ONCE], 1));
    #[ignore] fenced_and_timed_in_order: |name| check(name, timed_fences(&[IN_ORDER, ONCE], 1));
    #[ignore] fenced_and_timed_longer: |name| check_part(name, timed_fences(&[ONCE; 2], 2));
    #[ignore] fenced_queued_and_timed_longer: |name| check_part(name, timed_fences(&[WAITS; 2], 2));
    #[ignore] fenced_queued_and_timed: |name| check_part(name, timed_fences(&[WAITS; 2], 1));
    #[ignore] queued_longer: |name| check_part(name, plain(&[WAITS; 2], 2));
    #[ignore] fenced_queued_moving_on: |name| check_part(name, timed_fences(&[WAITS_WITH_TIMEOUTS, ONCE], 1));
    #[ignore] newcomer_and_waiter: |name| check_part(name, plain(&[WAITS, RESPECTS_QUEUE, ONCE], 1));
    #[ignore] fenced_newcomer_and_waiter: |name| check_part(name, timed_fences(&[WAITS, RESPECTS_QUEUE, ONCE], 1));
    #[ignore] in_order_and_retried: |name|
        check_part(name, plain(&[Behaviour { retries: 1, ..IN_ORDER }, ONCE], 2));
    #[ignore] timed_three_clients: |name| check_part(name, plain(&[ONCE; 3], 2));
    #[ignore] timed_with_two_duplicates: |name| check_part(name, World { duplicates: 2, ..plain(&[ONCE; 2], 2) });
    #[ignore] fenced_queued_one_of_two_clients: |name| check_part(name, timed_fences(&[WAITS, ONCE], 1));
    #[ignore] released_twice: |name| check_part(name, plain(&[RELEASES_TWICE, ONCE], 1));
    #[ignore] released_by_both_clients: |name| check_part(name, plain(&[RELEASES_TWICE, RELEASES], 2));
    #[ignore] three_crashes_with_grace: |name| check_part(name, crashing(3, 2));
    #[ignore] crash_with_grace_under_extension: |name|
        check_part(name, World { crashes: 1, grace: 2, ..plain(&[EXTENDS, ONCE], 2) });
    #[ignore] fenced_crash_with_grace: |name|
        check_part(name, World { crashes: 1, grace: 1, ..timed_fences(&[ONCE; 2], 1) });
    #[ignore] fenced_crash_with_longer_grace: |name|
        check_part(name, World { crashes: 1, grace: 2, ..timed_fences(&[ONCE; 2], 2) });
    #[ignore] crash_with_grace_under_a_queue: |name|
        check_part(name, World { crashes: 1, grace: 2, ..plain(&[WAITS; 2], 2) });
    #[ignore] retried_longer: |name| check_part(name, plain(&[RETRIES, ONCE], 2));
    #[ignore] extended_by_both_clients: |name| check_part(name, plain(&[EXTENDS; 2], 2));

    refuted_no_confirm_phase: |name|
        expect_violation(name, UNIQUE, mutated(Mutation::NoConfirmPhase, fences(&[ONCE; 2], 2)));
    refuted_raise_without_hold: |name|
        expect_violation(name, UNIQUE, mutated(Mutation::RaiseWithoutHold, fences(&[ONCE; 2], 2)));
    refuted_fence_forgotten: |name| {
        let world = World { crashes: 1, ..fences(&[ONCE; 2], 1) };
        expect_violation(name, ORDER, mutated(Mutation::FenceForgotten, world));
    };
    refuted_no_grace: |name| expect_violation(name, EXCLUSION, crashing(1, 0));
    refuted_grace_below_ttl: |name| expect_violation(name, EXCLUSION, crashing(1, 1));
    refuted_valid_from_retry: |name| {
        expect_violation(name, EXCLUSION, mutated(Mutation::ValidFromRetry, plain(&[RETRIES, ONCE], 1)));
    };
    refuted_restored_without_grace: |name|
        expect_violation(name, EXCLUSION, World { grace: 0, ..restoring(2, &[ONCE], 2) });
    refuted_restored_at_once: |name|
        expect_violation(name, NO_REVIVAL, mutated(Mutation::RestoredAtOnce, World { breaks: 1, ..restoring(2, &[], 0) }));
    refuted_partial_hold_kept: |name|
        expect_violation(name, NO_PARTIAL_HOLD, mutated(Mutation::KeepsPartialHold, without_symmetry(plain(&[RETRIES, ONCE], 1))));
    // What a DELAY on a minority of the members costs: the lock is granted as soon as the leases at the
    // others end.
    refuted_one_delay: |name| expect_violation(name, AT_LEAST, mutated(Mutation::OneDelay, plain(&[AT_LEAST_THREE, ONCE], 2)));
    refuted_unheld_delay_counted: |name|
        expect_violation(name, AT_LEAST, mutated(Mutation::UnheldDelayCounted, plain(&[AT_LEAST_THREE, ONCE], 2)));
    #[ignore] refuted_delay_forgotten_without_grace: |name|
        expect_violation(name, AT_LEAST, World { crashes: 1, grace: 2, ..plain(&[AT_LEAST_THREE, ONCE], 2) });
    refuted_all_at_once: |name| expect_violation(name, ONE_ACQUIRES, fences(&[ONCE; 3], 0));
    refuted_valid_from_receipt: |name|
        expect_violation(name, EXCLUSION, mutated(Mutation::ValidFromReceipt, plain(&[WAITS, ONCE], 2)));
}

/// `make check` searches these, too.
mod larger {
    use super::*;

    worlds! {
        #[ignore] fenced_without_symmetry: |name| check(name, without_symmetry(fences(&[ONCE; 2], 2)));
        #[ignore] fenced_and_timed: |name| check(name, timed_fences(&[ONCE; 2], 1));
        #[ignore] retried: |name| check(name, plain(&[RETRIES, ONCE], 1));
        #[ignore] refuted_ungranted_counted: |name| {
            let world = World { fences_before: HEAD_START, ..fences(&[ONCE; 2], 2) };
            expect_deep_violation(name, UNIQUE, mutated(Mutation::UngrantedCounted, world));
        };
        #[ignore] refuted_fence_unchecked: |name| {
            let world = World { fences_before: HEAD_START, duplicates: 1, ..fences(&[ONCE; 2], 2) };
            expect_deep_violation(name, UNIQUE, mutated(Mutation::FenceUnchecked, world));
        };
        #[ignore] refuted_one_vote_extends: |name|
            expect_violation(name, EXCLUSION, mutated(Mutation::OneVoteExtends, plain(&[EXTENDS, ONCE], 2)));
        #[ignore] refuted_valid_from_restoration: |name|
            expect_deep_violation(name, EXCLUSION, mutated(Mutation::ValidFromRestoration, restoring(2, &[ONCE], 1)));
        #[ignore] refuted_token_used_again: |name| {
            expect_violation(name, EXCLUSION, mutated(Mutation::TokenUsedAgain, plain(&[RELEASES_TWICE, ONCE], 1)));
        };
        #[ignore] refuted_no_check_for_waiters: |name|
            expect_violation(name, NO_OVERTAKING, mutated(Mutation::NoCheckForWaiters, plain(&[WAITS, RESPECTS_QUEUE, ONCE], 1)));
    }
}
