use super::helpers::*;
use dlock_quorum::*;

/// Members 0 and 1 of three have granted 5 and 8. The confirm phase for 8 began at 102.
fn confirming() -> Round {
    let (mut machine, _) = Round::at_once(plan(3, true), &[], at(0));
    let begun = vote(&mut machine, 101, &[(0, granted(5)), (1, granted(8))]);
    assert_eq!(begun.verdict, Verdict::Open);
    assert_eq!(sent(&begun.sends, confirm(8, 0)), [0, 1], "the greatest fence, to the members that granted");
    machine
}

#[test]
fn a_majority_confirms_with_validity_from_before_the_confirm_phase() {
    let mut machine = confirming();
    let one = hear(&mut machine, 200, confirm(8, 0), &[(0, granted(8)), (0, granted(8))]);
    assert_eq!(one.verdict, Verdict::Open);
    let two = hear(&mut machine, 300, confirm(8, 0), &[(1, granted(8))]);
    assert_eq!(two.verdict, acquired(Some(8), 102 + TRUSTED));
}

#[test]
fn a_confirm_phase_is_too_late_after_the_end_of_validity() {
    let mut machine = confirming();
    hear(&mut machine, 200, confirm(8, 0), &[(0, granted(8))]);
    let late = hear(&mut machine, 102 + TRUSTED, confirm(8, 0), &[(1, granted(8))]);
    assert_eq!(late.verdict, Verdict::Failed(FailureReason::TooLate));
    assert_eq!(sent(&late.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_late_grant_joins_the_confirm_phase_when_its_fence_is_not_greater() {
    let mut machine = confirming();
    let joins = vote(&mut machine, 150, &[(2, granted(7))]);
    assert_eq!(sent(&joins.sends, confirm(8, 0)), [2]);
    let two = hear(&mut machine, 200, confirm(8, 0), &[(1, Vote::Unknown), (0, granted(8)), (2, granted(8))]);
    assert_eq!(two.verdict, acquired(Some(8), 102 + TRUSTED));
}

#[test]
fn a_confirm_answer_does_not_count_without_a_counted_grant() {
    let mut machine = confirming();
    let uncounted = hear(&mut machine, 150, confirm(8, 0), &[(0, granted(8)), (2, granted(8))]);
    assert_eq!(uncounted.verdict, Verdict::Open, "2 has not granted");
    assert!(vote(&mut machine, 160, &[(2, granted(9))]).sends.is_empty(), "greater: left out");
    let still = hear(&mut machine, 170, confirm(8, 0), &[(2, granted(8))]);
    assert_eq!(still.verdict, Verdict::Open);
}

#[test]
fn a_greater_grant_begins_the_next_phase_when_the_fence_cannot_be_confirmed() {
    let mut machine = confirming();
    vote(&mut machine, 150, &[(2, granted(9))]);
    let next = hear(&mut machine, 200, confirm(8, 0), &[(0, granted(8)), (1, Vote::Unknown)]);
    assert_eq!(sent(&next.sends, confirm(9, 1)), [0, 1, 2]);
    let two = hear(&mut machine, 300, confirm(9, 1), &[(0, granted(9)), (2, granted(9))]);
    assert_eq!(two.verdict, acquired(Some(9), 201 + TRUSTED));
}

#[test]
fn a_greater_answer_begins_the_next_phase_with_no_answer_counted() {
    let mut machine = confirming();
    let again = hear(&mut machine, 200, confirm(8, 0), &[(0, granted(8)), (1, granted(11))]);
    assert_eq!(sent(&again.sends, confirm(11, 1)), [0, 1]);
    let one = hear(&mut machine, 300, confirm(11, 1), &[(1, granted(11))]);
    assert_eq!(one.verdict, Verdict::Open, "0 said yes to 8, not to 11");
    let two = hear(&mut machine, 400, confirm(11, 1), &[(0, granted(11))]);
    assert_eq!(two.verdict, acquired(Some(11), 201 + TRUSTED));
}

#[test]
fn an_answer_to_an_earlier_phase_does_not_count() {
    let mut machine = confirming();
    hear(&mut machine, 200, confirm(8, 0), &[(1, granted(11))]);
    let stale = hear(&mut machine, 300, confirm(8, 0), &[(0, granted(11)), (1, granted(11))]);
    assert_eq!(stale.verdict, Verdict::Open);
}

#[test]
fn a_fence_that_returns_begins_another_phase() {
    let mut machine = confirming();
    vote(&mut machine, 150, &[(2, granted(7))]);
    hear(&mut machine, 200, confirm(8, 0), &[(1, granted(20))]);
    let ahead = Vote::Refused(Refusal::FenceAhead);
    let lower = hear(&mut machine, 300, confirm(20, 1), &[(0, ahead.clone()), (2, ahead)]);
    assert_eq!(sent(&lower.sends, confirm(7, 2)), [0, 2], "of those that are left");
    let up = hear(&mut machine, 400, confirm(7, 2), &[(0, granted(8))]);
    assert_eq!(sent(&up.sends, confirm(8, 3)), [0, 2]);
    let stale = hear(&mut machine, 500, confirm(8, 0), &[(0, granted(8)), (2, granted(8))]);
    assert_eq!(stale.verdict, Verdict::Open, "their lease is that of the first phase");
    let two = hear(&mut machine, 600, confirm(8, 3), &[(0, granted(8)), (2, granted(8))]);
    assert_eq!(two.verdict, acquired(Some(8), 400 + TRUSTED));
}

#[test]
fn a_member_with_a_clock_ahead_is_dropped_and_reported() {
    let mut machine = confirming();
    vote(&mut machine, 150, &[(2, granted(6))]);
    let ahead = Vote::Refused(Refusal::FenceAhead);
    let one = hear(&mut machine, 200, confirm(8, 0), &[(0, ahead.clone())]);
    assert_eq!(one.verdict, Verdict::Open, "1 and 2 may still agree on it");
    assert_eq!(machine.ahead().count(), 0);
    let lower = hear(&mut machine, 300, confirm(8, 0), &[(2, ahead)]);
    assert_eq!(sent(&lower.sends, confirm(6, 1)), [0, 2]);
    assert_eq!(machine.ahead().collect::<Vec<_>>(), [Member(1)]);
    let two = hear(&mut machine, 400, confirm(6, 1), &[(1, granted(8)), (0, granted(6)), (2, granted(6))]);
    assert_eq!(two.verdict, acquired(Some(6), 300 + TRUSTED));
}

#[test]
fn a_round_is_impossible_when_no_majority_remains_beside_a_clock_ahead() {
    let mut machine = confirming();
    vote(&mut machine, 150, &[(2, down())]);
    let failed = hear(&mut machine, 200, confirm(8, 0), &[(0, Vote::Refused(Refusal::FenceAhead))]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
}

#[test]
fn a_round_is_too_late_when_a_hold_expires_before_it_is_confirmed() {
    let mut machine = confirming();
    vote(&mut machine, 150, &[(2, taken())]);
    let failed = hear(&mut machine, 200, confirm(8, 0), &[(0, Vote::Refused(Refusal::NotHeld))]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::TooLate));
    assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_round_is_impossible_when_members_fall_silent_in_the_confirm_phase() {
    let mut machine = confirming();
    vote(&mut machine, 150, &[(2, down())]);
    let failed = hear(&mut machine, 200, confirm(8, 0), &[(0, Vote::Unknown)]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
}

/// Found by a random run: the phase began with two of four members, and failed only with the next answer.
#[test]
fn a_confirm_phase_needs_a_majority_of_counted_grants() {
    let (mut machine, _) = Round::at_once(plan(4, true), &[], at(0));
    vote(&mut machine, 1, &[(0, granted(1)), (1, granted(1)), (2, granted(1)), (3, taken())]);
    vote(&mut machine, 9, &[(0, granted(5))]);
    let again = hear(&mut machine, 10, confirm(1, 0), &[(1, granted(2))]);
    assert_eq!(sent(&again.sends, confirm(5, 2)), [0, 1, 2], "2 would leave out 0, which has 5");
}
