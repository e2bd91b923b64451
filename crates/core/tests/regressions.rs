//! Bugs that were found, each with a test: the sequence that shows them is longer than those of `worlds.rs`,
//! and rare in random runs.

use std::num::NonZeroU32;

use dlock_core::{Granted, Mode, Reentry, Refusal, ReleaseCount};

use crate::model::moves::Move;
use crate::model::page::{Answer, Client, Request, Token, Told};
use crate::model::system::System;

const START: u64 = 1_760_000_000_000_000;
const KEY: u8 = 0;

/// Acquires [`KEY`] with a lease of a second. If `wait`, waits without a timeout.
fn ask(system: &mut System, client: Client, token: Token, mode: Mode, wait: bool) -> Answer {
    system.make(Move::Acquire(Request::new(client, KEY, token, mode), wait.then_some(0)))
}

fn permits(n: u32) -> Mode {
    Mode::Permits(NonZeroU32::new(n).unwrap())
}

fn holds(system: &System, token: Token) -> Option<Mode> {
    let view = system.locks.get(&KEY)?.at(system.instant());
    view.hold_of(&crate::model::system::token(token)).and(view.mode())
}

/// Found: after one wait of a token was refused, its other wait was treated like a request of a holder, and
/// refused with "other mode".
#[test]
fn a_refusal_answers_one_wait_only() {
    let mut system = System::new(START, 0);
    ask(&mut system, 1, 1, Mode::Exclusive, false);
    assert_eq!(ask(&mut system, 2, 2, permits(2), true), Answer::Waits);
    assert_eq!(ask(&mut system, 3, 3, permits(1), true), Answer::Waits);
    assert_eq!(ask(&mut system, 4, 3, permits(2), true), Answer::Waits);
    system.make(Move::Release(KEY, 1, ReleaseCount::One));
    assert_eq!(
        system.outcomes,
        [
            (2, Told::Granted(START + 1, Granted::New)),
            (3, Told::Refused(Refusal::OtherPermits(2))),
            (4, Told::Granted(START + 2, Granted::New)),
        ]
    );
}

/// Found: when the answer to a first upgrade was lost after a second upgrade, the second one was taken back.
/// Both have the same token, fence and mode.
#[test]
fn a_lost_answer_takes_back_only_its_own_upgrade() {
    let mut system = System::new(START, 0);
    let upgrade_by = |system: &mut System, client| {
        ask(system, 2, 2, Mode::Shared, false);
        assert_eq!(ask(system, client, 1, Mode::Exclusive, true), Answer::Waits);
        system.make(Move::Release(KEY, 2, ReleaseCount::All));
        assert_eq!(system.outcomes, [(client, Told::Granted(START, Granted::Upgrade))]);
    };
    ask(&mut system, 1, 1, Mode::Shared, false);
    upgrade_by(&mut system, 3);
    ask(&mut system, 1, 1, Mode::Shared, false);
    upgrade_by(&mut system, 4);
    system.make(Move::Delivered(1));
    system.make(Move::Undelivered(0));
    assert_eq!(holds(&system, 1), Some(Mode::Exclusive), "connection 4 relies on it");
}

/// Found: token 2, for which token 0 waits elsewhere, got DEADLOCK behind an upgrade. The upgrade is refused
/// when its turn comes, because the hold count is full, and then the two share the lock.
#[test]
fn a_waiter_behind_an_upgrade_that_may_be_refused_waits() {
    let (mut system, mut client) = (System::new(START, 0), 0);
    let mut wait = move |key, token, mode, reentry| {
        client += 1;
        let asked = Request { reentry, ..Request::new(client, key, token, mode) };
        system.make(Move::Acquire(asked, Some(0)))
    };
    let full = Reentry::AtLeast(NonZeroU32::new(i32::MAX as u32).unwrap());
    wait(KEY, 0, Mode::Shared, full);
    wait(KEY, 1, Mode::Shared, Reentry::Keep);
    assert_eq!(wait(KEY, 0, Mode::Exclusive, Reentry::OneMore), Answer::Waits);
    wait(KEY + 1, 2, Mode::Exclusive, Reentry::Keep);
    assert_eq!(wait(KEY + 1, 0, Mode::Exclusive, Reentry::Keep), Answer::Waits);
    assert_eq!(wait(KEY, 2, Mode::Shared, Reentry::Keep), Answer::Waits);
}
