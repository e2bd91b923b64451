//! Model-checks a quorum: drives the code of `dlock-quorum` through every order of events in small worlds of
//! 3 members. A master is the server of a member. Messages are lost, delayed, reordered and duplicated;
//! masters crash; holds end. A hold outlives all its masters, if they crash one after the other.
//!
//! It checks three rules of progress: if clients ask the masters in order, one acquires; no client overtakes
//! a waiter; no client keeps a partial hold while it waits for a missing master. It does not cover whole
//! attempts (see `rules/attempts.rs`), more than 3 masters, clocks with different rates, or shared holds.
//!
//! Each rule is broken once, and the checker must find the violation: otherwise the search proves nothing.
//! Worlds that take longer than a few seconds are ignored: `make model` runs them.
#![allow(clippy::disallowed_methods, reason = "prints how long each world took")]

mod model {
    pub mod client;
    pub mod holding;
    pub mod master;
    pub mod names;
    pub mod properties;
    pub mod run;
    pub mod system;
    pub mod world;
}

use model::names::client_orders;
use model::properties::{BROKEN, EXCLUSION, NO_OVERTAKING, NO_PARTIAL_HOLD, ONE_ACQUIRES, ORDER, UNIQUE};
use model::run::{holds, holds_always, holds_so_far, holds_some, violates, violates_deep};
use model::world::{Broken, Script, Time, World};

const ONCE: Script = Script {
    acquisitions: 1,
    waits: false,
    looks: false,
    in_order: false,
    extensions: 0,
    retries: 0,
    timeouts: false,
    releases: false,
};
const WAITS: Script = Script { waits: true, ..ONCE };
/// Moves to the next queue when a master is silent.
const WAITS_WITH_TIMEOUTS: Script = Script { timeouts: true, ..WAITS };
/// Overtakes a hold that only the first master has, but no client that waits there.
const LOOKS: Script = Script { looks: true, ..ONCE };
const IN_ORDER: Script = Script { in_order: true, ..ONCE };
const EXTENDS: Script = Script { extensions: 1, ..ONCE };
const RETRIES: Script = Script { retries: 1, timeouts: true, ..ONCE };
const RELEASES: Script = Script { releases: true, ..ONCE };
const RELEASES_TWICE: Script = Script { acquisitions: 2, ..RELEASES };

/// Fences that the masters have issued for other resources. The last master is ahead, so that fewer steps
/// lead to equal fences.
const HEAD_START: [u8; 3] = [0, 0, 1];

/// Fences only, without a clock.
fn fences(clients: &[Script], lapses: u8) -> World {
    World {
        clients: clients.to_vec(),
        client_orders: client_orders(clients),
        by_name: false,
        fences_before: [0; 3],
        time: Time::None { lapses },
        fenced: true,
        rising_fences: true,
        duplicates: 0,
        crashes: 0,
        grace: 0,
        held: false,
        breaks: 0,
        fence_ahead: 0,
        broken: None,
    }
}

/// Fences, with a clock.
fn timed_fences(clients: &[Script], ttl: u8) -> World {
    World { time: Time::Ticks { ttl }, ..fences(clients, 0) }
}

/// Plain Redlock, with a clock.
fn plain(clients: &[Script], ttl: u8) -> World {
    World { fenced: false, rising_fences: false, ..timed_fences(clients, ttl) }
}

/// Worlds in which masters crash, and then grant nothing for `grace` ticks.
fn crashing(crashes: u8, grace: u8) -> World {
    World { crashes, grace, ..plain(&[ONCE; 2], 2) }
}

/// The first client holds the lock on all masters, and restores its hold on a master that forgets it.
fn restoring(extensions: u8, others: &[Script], crashes: u8) -> World {
    let clients = [&[Script { extensions, ..ONCE }], others].concat();
    World { held: true, crashes, grace: 2, ..plain(&clients, 2) }
}

/// Turns symmetry reduction off. The world then has ten times the states, and must have the same outcome.
fn by_name(world: World) -> World {
    World { by_name: true, client_orders: vec![(0..world.clients.len()).collect()], ..world }
}

fn broken(broken: Broken, world: World) -> World {
    World { broken: Some(broken), ..world }
}

macro_rules! worlds {
    ($($(#[$attribute:meta])* $name:ident: $outcome:expr;)*) => {
        $(#[test] $(#[$attribute])* fn $name() { $outcome(stringify!($name)); })*
    };
}

worlds! {
    fenced: |name| holds(name, fences(&[ONCE; 2], 2));
    fenced_by_name: |name| holds(name, by_name(fences(&[ONCE; 2], 2)));
    fenced_after_other_fences: |name| holds(name, World { fences_before: HEAD_START, ..fences(&[ONCE; 2], 1) });
    fenced_with_a_duplicate: |name| holds(name, World { duplicates: 1, ..fences(&[ONCE; 2], 1) });
    fenced_with_refusals_for_being_ahead: |name| holds(name, World { fence_ahead: 2, ..fences(&[ONCE; 2], 1) });
    fenced_and_timed: |name| holds(name, timed_fences(&[ONCE; 2], 1));
    fenced_queued: |name| holds(name, fences(&[WAITS; 2], 2));
    timed: |name| holds(name, plain(&[ONCE; 2], 2));
    released: |name| holds(name, plain(&[RELEASES, ONCE], 2));
    queued: |name| holds(name, plain(&[WAITS; 2], 1));
    looking: |name| holds(name, plain(&[LOOKS, ONCE], 2));
    fenced_looking: |name| holds(name, fences(&[LOOKS, ONCE], 2));
    in_order: |name| holds(name, plain(&[IN_ORDER; 2], 2));
    fenced_in_order: |name| holds(name, fences(&[IN_ORDER, ONCE], 2));
    one_client_acquires_in_order: |name| holds_always(name, fences(&[IN_ORDER; 3], 0));
    crash_with_grace: |name| holds(name, crashing(1, 2));
    queued_with_a_duplicate: |name| holds(name, World { duplicates: 1, ..plain(&[WAITS; 2], 1) });
    timed_with_a_duplicate: |name| holds(name, World { duplicates: 1, ..plain(&[ONCE; 2], 2) });
    retried: |name| holds(name, plain(&[RETRIES, ONCE], 1));
    extended: |name| holds(name, plain(&[EXTENDS, ONCE], 2));

    a_hold_outlives_all_masters: |name| holds_some(name, World { grace: 0, ..restoring(2, &[], 3) });
    restoring_after_a_break: |name| holds(name, World { breaks: 1, ..restoring(2, &[], 1) });

    #[ignore] restoring_with_a_contender: |name| holds_so_far(name, restoring(2, &[ONCE], 1));
    #[ignore] restoring_with_a_contender_after_two_crashes: |name|
        holds_so_far(name, restoring(3, &[ONCE], 2));
    #[ignore] restoring_with_a_duplicate: |name|
        holds_so_far(name, World { duplicates: 1, ..restoring(2, &[ONCE], 1) });
    #[ignore] fenced_restoring: |name|
        holds_so_far(name, World { fenced: true, rising_fences: true, ..restoring(2, &[ONCE], 1) });
    #[ignore] restoring_and_released: |name| {
        let mut world = restoring(2, &[ONCE], 1);
        (world.clients[0].releases, world.clients[0].acquisitions) = (true, 2);
        holds_so_far(name, world);
    };
    #[ignore] fenced_with_two_duplicates: |name| holds_so_far(name, World { duplicates: 2, ..fences(&[ONCE; 2], 3) });
    #[ignore] fenced_with_refusals_and_a_duplicate: |name|
        holds_so_far(name, World { duplicates: 1, fence_ahead: 2, ..fences(&[ONCE; 2], 2) });
    #[ignore] fenced_three_clients: |name| holds_so_far(name, fences(&[ONCE; 3], 1));
    #[ignore] fenced_and_timed_looking: |name| holds(name, timed_fences(&[LOOKS, ONCE], 1));
    #[ignore] fenced_and_timed_in_order: |name| holds(name, timed_fences(&[IN_ORDER, ONCE], 1));
    #[ignore] fenced_and_timed_longer: |name| holds_so_far(name, timed_fences(&[ONCE; 2], 2));
    #[ignore] fenced_queued_both: |name| holds_so_far(name, timed_fences(&[WAITS; 2], 2));
    #[ignore] fenced_queued_and_timed: |name| holds_so_far(name, timed_fences(&[WAITS; 2], 1));
    #[ignore] queued_longer: |name| holds_so_far(name, plain(&[WAITS; 2], 2));
    #[ignore] queued_moving_on: |name| holds_so_far(name, timed_fences(&[WAITS_WITH_TIMEOUTS, ONCE], 1));
    #[ignore] looking_past_a_waiter: |name| holds_so_far(name, plain(&[WAITS, LOOKS, ONCE], 1));
    #[ignore] fenced_looking_past_a_waiter: |name| holds_so_far(name, timed_fences(&[WAITS, LOOKS, ONCE], 1));
    #[ignore] in_order_and_retried: |name|
        holds_so_far(name, plain(&[Script { retries: 1, ..IN_ORDER }, ONCE], 2));
    #[ignore] timed_three_clients: |name| holds_so_far(name, plain(&[ONCE; 3], 2));
    #[ignore] timed_with_two_duplicates: |name| holds_so_far(name, World { duplicates: 2, ..plain(&[ONCE; 2], 2) });
    #[ignore] queued_one_of_two: |name| holds_so_far(name, timed_fences(&[WAITS, ONCE], 1));
    #[ignore] released_twice: |name| holds_so_far(name, plain(&[RELEASES_TWICE, ONCE], 1));
    #[ignore] released_both: |name| holds_so_far(name, plain(&[RELEASES_TWICE, RELEASES], 2));
    #[ignore] three_crashes_with_grace: |name| holds_so_far(name, crashing(3, 2));
    #[ignore] crash_with_grace_under_extension: |name|
        holds_so_far(name, World { crashes: 1, grace: 2, ..plain(&[EXTENDS, ONCE], 2) });
    #[ignore] fenced_crash_with_grace: |name|
        holds_so_far(name, World { crashes: 1, grace: 1, ..timed_fences(&[ONCE; 2], 1) });
    #[ignore] fenced_crash_with_longer_grace: |name|
        holds_so_far(name, World { crashes: 1, grace: 2, ..timed_fences(&[ONCE; 2], 2) });
    #[ignore] crash_with_grace_under_a_queue: |name|
        holds_so_far(name, World { crashes: 1, grace: 2, ..plain(&[WAITS; 2], 2) });
    #[ignore] retried_longer: |name| holds_so_far(name, plain(&[RETRIES, ONCE], 2));
    #[ignore] extended_both: |name| holds_so_far(name, plain(&[EXTENDS; 2], 2));

    refuted_no_confirm_phase: |name|
        violates(name, UNIQUE, broken(Broken::NoConfirmPhase, fences(&[ONCE; 2], 2)));
    refuted_raise_without_hold: |name|
        violates(name, UNIQUE, broken(Broken::RaiseWithoutHold, fences(&[ONCE; 2], 2)));
    refuted_uncounted_answers: |name| {
        let world = World { fences_before: HEAD_START, ..fences(&[ONCE; 2], 2) };
        violates_deep(name, UNIQUE, broken(Broken::UncountedAnswers, world));
    };
    refuted_fence_unchecked: |name| {
        let world = World { fences_before: HEAD_START, duplicates: 1, ..fences(&[ONCE; 2], 2) };
        violates_deep(name, UNIQUE, broken(Broken::FenceUnchecked, world));
    };
    refuted_fence_forgotten: |name| {
        let world = World { crashes: 1, ..fences(&[ONCE; 2], 1) };
        violates(name, ORDER, broken(Broken::FenceForgotten, world));
    };
    refuted_no_grace: |name| violates(name, EXCLUSION, crashing(1, 0));
    refuted_grace_below_ttl: |name| violates(name, EXCLUSION, crashing(1, 1));
    refuted_valid_from_retry: |name| {
        violates(name, EXCLUSION, broken(Broken::ValidFromRetry, plain(&[RETRIES, ONCE], 1)));
    };
    refuted_extended_by_one: |name|
        violates(name, EXCLUSION, broken(Broken::ExtendedByOne, plain(&[EXTENDS, ONCE], 2)));
    refuted_restored_without_grace: |name|
        violates(name, EXCLUSION, World { grace: 0, ..restoring(2, &[ONCE], 2) });
    refuted_restored_at_once: |name|
        violates(name, BROKEN, broken(Broken::RestoredAtOnce, World { breaks: 1, ..restoring(2, &[], 0) }));
    refuted_valid_from_restoration: |name|
        violates_deep(name, EXCLUSION, broken(Broken::ValidFromRestoration, restoring(2, &[ONCE], 1)));
    refuted_token_used_again: |name| {
        violates(name, EXCLUSION, broken(Broken::TokenUsedAgain, plain(&[RELEASES_TWICE, ONCE], 1)));
    };
    refuted_partial_hold_kept: |name|
        violates(name, NO_PARTIAL_HOLD, broken(Broken::KeepsPartialHold, by_name(plain(&[RETRIES, ONCE], 1))));
    refuted_no_look: |name|
        violates(name, NO_OVERTAKING, broken(Broken::NoLook, plain(&[WAITS, LOOKS, ONCE], 1)));
    refuted_all_at_once: |name| violates(name, ONE_ACQUIRES, fences(&[ONCE; 3], 0));
    refuted_valid_from_receipt: |name|
        violates(name, EXCLUSION, broken(Broken::ValidFromReceipt, plain(&[WAITS, ONCE], 2)));
}
