//! Tests of former bugs. The sequences that show them are too long for the exhaustive search in
//! `worlds.rs`, and rare in random runs.

use std::num::NonZeroU32;

use dlock_core::{Granted, Mode, Reentry, ReleaseCount};

use crate::model::moves::Move;
use crate::model::reference::{Answer, Client, Request, Token, WaitOutcome};
use crate::model::system::System;

const START: u64 = 1_760_000_000_000_000;
const KEY: u8 = 0;

/// Acquires [`KEY`] with a lease of a second. If `wait`, waits without a timeout.
fn acquire(system: &mut System, client: Client, token: Token, mode: Mode, wait: bool) -> Answer {
    system.make(Move::Acquire(Request::new(client, KEY, token, mode), wait.then_some(0)))
}

fn mode_of_hold(system: &System, token: Token) -> Option<Mode> {
    let view = system.locks.get(&KEY)?.at(system.instant());
    view.hold_of(&crate::model::system::token(token)).and(view.mode())
}

/// The bug: when the answer to a first upgrade was lost after a second upgrade, the second one was revoked.
/// Both upgrades have the same token, fence and mode.
#[test]
fn a_lost_answer_revokes_only_its_own_upgrade() {
    let mut system = System::new(START, 0);
    let upgrade_by = |system: &mut System, client| {
        acquire(system, 2, 2, Mode::Shared, false);
        assert_eq!(acquire(system, client, 1, Mode::Exclusive, true), Answer::Waits);
        system.make(Move::Release(KEY, 2, ReleaseCount::All, 0));
        assert_eq!(system.outcomes, [(client, WaitOutcome::Granted(START, Granted::Upgrade))]);
    };
    acquire(&mut system, 1, 1, Mode::Shared, false);
    upgrade_by(&mut system, 3);
    // Downgrades the hold, so that the token can be upgraded again.
    acquire(&mut system, 1, 1, Mode::Shared, false);
    upgrade_by(&mut system, 4);
    // The answer to client 4 arrives, then the one to client 3 is lost.
    system.make(Move::Delivered(1));
    system.make(Move::Undelivered(0));
    assert_eq!(mode_of_hold(&system, 1), Some(Mode::Exclusive), "client 4 has received its upgrade");
}

/// The bug: token 2 got DEADLOCK behind an upgrade by token 0, because token 0 waits for token 2 on another
/// key. Token 2 does not wait for ever: the upgrade will be refused, because the hold count of token 0 is
/// full, and then token 2 can share the lock.
#[test]
fn acquire_behind_an_upgrade_that_may_be_refused_is_no_deadlock() {
    let (mut system, mut client) = (System::new(START, 0), 0);
    let mut acquire_or_wait = move |key, token, mode, reentry| {
        client += 1;
        let request = Request { reentry, ..Request::new(client, key, token, mode) };
        system.make(Move::Acquire(request, Some(0)))
    };
    let full = Reentry::AtLeast(NonZeroU32::new(i32::MAX as u32).unwrap());
    acquire_or_wait(KEY, 0, Mode::Shared, full);
    acquire_or_wait(KEY, 1, Mode::Shared, Reentry::Keep);
    assert_eq!(acquire_or_wait(KEY, 0, Mode::Exclusive, Reentry::OneMore), Answer::Waits);
    acquire_or_wait(KEY + 1, 2, Mode::Exclusive, Reentry::Keep);
    assert_eq!(acquire_or_wait(KEY + 1, 0, Mode::Exclusive, Reentry::Keep), Answer::Waits);
    assert_eq!(acquire_or_wait(KEY, 2, Mode::Shared, Reentry::Keep), Answer::Waits);
}
