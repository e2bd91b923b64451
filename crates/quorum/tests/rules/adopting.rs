//! Rounds that adopt a hold. Such a round takes over a hold that was acquired elsewhere with the same token.
//! In this round, `Request::Acquire` acquires nothing: it asks for the fence of the hold.

use super::helpers::*;
use dlock_quorum::*;

fn not_held() -> Vote {
    Vote::Refused(Refusal::NotHeld)
}

/// Unlike this round, a round that acquires has no confirm phase on a single server.
#[test]
fn an_adopted_hold_is_confirmed_on_a_single_server_too() {
    let (mut round, sends) = Round::begin(plan(1, true), Start::Adopting, &[], at(0));
    assert_eq!(sent(&sends, Request::Acquire), [0]);
    let found = vote(&mut round, 100, &[(0, granted(5))]);
    assert_eq!((found.verdict, sent(&found.sends, confirm(5, 0))), (Verdict::Open, vec![0]));
    let confirmed = reply(&mut round, 200, confirm(5, 0), &[(0, granted(5))]);
    assert_eq!(
        confirmed.verdict,
        acquired(Some(5), 100 + VALIDITY),
        "validity counts from the beginning of the confirm phase"
    );
}

#[test]
fn a_hold_is_adopted_when_a_majority_has_it() {
    let (mut round, _) = Round::begin(plan(3, true), Start::Adopting, &[], at(0));
    let found = vote(&mut round, 100, &[(0, not_held()), (1, granted(5)), (2, granted(8))]);
    assert_eq!(sent(&found.sends, confirm(8, 0)), [1, 2]);
    let confirmed = reply(&mut round, 200, confirm(8, 0), &[(1, granted(8)), (2, granted(8))]);
    // The third answer, at 102, began the confirm phase.
    assert_eq!(confirmed.verdict, acquired(Some(8), 102 + VALIDITY));
}

#[test]
fn a_hold_is_not_adopted_when_a_majority_lacks_it() {
    let (mut round, _) = Round::begin(plan(3, true), Start::Adopting, &[], at(0));
    let last = vote(&mut round, 100, &[(0, granted(5)), (1, not_held()), (2, not_held())]);
    assert!(matches!(last.verdict, Verdict::Failed(FailureReason::Taken)), "{last:?}");
    let (mut round, _) = Round::begin(plan(3, true), Start::Adopting, &[], at(0));
    vote(&mut round, 100, &[(0, granted(5)), (1, granted(5))]);
    let gone = reply(&mut round, 200, confirm(5, 0), &[(0, not_held())]);
    assert_eq!(gone.verdict, Verdict::Open, "the third member may have the hold");
    let last = vote(&mut round, 300, &[(2, not_held())]);
    assert!(matches!(last.verdict, Verdict::Failed(_)), "{last:?}");
}
