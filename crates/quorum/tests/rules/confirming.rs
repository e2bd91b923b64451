//! The confirm phases of a fenced round. A phase has one fence, to which a majority must raise its holds. The
//! phase sends CONFIRM to each member with a counted grant: a grant with this fence or a lower one.

use super::helpers::*;
use dlock_quorum::*;

/// Members 0 and 1 of three have granted the fences 5 and 8, at 101 and 102 ms. The second grant has begun
/// phase 0, which is for the fence 8: `confirm(8, 0)`.
fn confirming() -> Round {
    let (mut round, _) = Round::begin(plan(3, true), Start::AtOnce, &[], at(0));
    let begun = vote(&mut round, 101, &[(0, granted(5)), (1, granted(8))]);
    assert_eq!(begun.verdict, Verdict::Open);
    assert_eq!(sent(&begun.sends, confirm(8, 0)), [0, 1], "the members that granted get the greatest fence");
    round
}

#[test]
fn a_majority_confirms_and_validity_counts_from_the_start_of_the_confirm_phase() {
    let mut round = confirming();
    // The second answer of member 0 is not another vote.
    let after_one = reply(&mut round, 200, confirm(8, 0), &[(0, granted(8)), (0, granted(8))]);
    assert_eq!(after_one.verdict, Verdict::Open);
    let after_two = reply(&mut round, 300, confirm(8, 0), &[(1, granted(8))]);
    assert_eq!(after_two.verdict, acquired(Some(8), 102 + VALIDITY));
}

#[test]
fn a_confirm_phase_is_too_late_after_the_end_of_validity() {
    let mut round = confirming();
    reply(&mut round, 200, confirm(8, 0), &[(0, granted(8))]);
    let late = reply(&mut round, 102 + VALIDITY, confirm(8, 0), &[(1, granted(8))]);
    assert_eq!(late.verdict, Verdict::Failed(FailureReason::TooLate));
    assert_eq!(sent(&late.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_late_grant_joins_the_confirm_phase_when_its_fence_is_not_greater() {
    let mut round = confirming();
    let joins = vote(&mut round, 150, &[(2, granted(7))]);
    assert_eq!(sent(&joins.sends, confirm(8, 0)), [2]);
    let after_two =
        reply(&mut round, 200, confirm(8, 0), &[(1, Vote::Unknown), (0, granted(8)), (2, granted(8))]);
    assert_eq!(after_two.verdict, acquired(Some(8), 102 + VALIDITY));
}

/// Member 2 answers the CONFIRM of 8, but has no grant that takes part in this phase: at first none at all,
/// then one with a greater fence.
#[test]
fn a_confirm_answer_does_not_count_without_a_counted_grant() {
    let mut round = confirming();
    let uncounted = reply(&mut round, 150, confirm(8, 0), &[(0, granted(8)), (2, granted(8))]);
    assert_eq!(uncounted.verdict, Verdict::Open, "member 2 has not granted");
    assert!(vote(&mut round, 160, &[(2, granted(9))]).sends.is_empty(), "9 does not join the phase for 8");
    let after_the_grant = reply(&mut round, 170, confirm(8, 0), &[(2, granted(8))]);
    assert_eq!(after_the_grant.verdict, Verdict::Open);
}

#[test]
fn a_grant_with_a_greater_fence_begins_the_next_phase_when_the_lower_one_cannot_be_confirmed() {
    let mut round = confirming();
    vote(&mut round, 150, &[(2, granted(9))]);
    let next = reply(&mut round, 200, confirm(8, 0), &[(0, granted(8)), (1, Vote::Unknown)]);
    assert_eq!(sent(&next.sends, confirm(9, 1)), [0, 1, 2]);
    let after_two = reply(&mut round, 300, confirm(9, 1), &[(0, granted(9)), (2, granted(9))]);
    assert_eq!(after_two.verdict, acquired(Some(9), 201 + VALIDITY));
}

/// Member 1 answers the CONFIRM of 8 with the greater fence 11. The next phase asks member 0 again, although
/// that member has confirmed 8.
#[test]
fn an_answer_with_a_greater_fence_begins_a_phase_in_which_no_earlier_answer_counts() {
    let mut round = confirming();
    let again = reply(&mut round, 200, confirm(8, 0), &[(0, granted(8)), (1, granted(11))]);
    assert_eq!(sent(&again.sends, confirm(11, 1)), [0, 1]);
    let after_one = reply(&mut round, 300, confirm(11, 1), &[(1, granted(11))]);
    assert_eq!(after_one.verdict, Verdict::Open, "member 0 confirmed 8, not 11");
    let after_two = reply(&mut round, 400, confirm(11, 1), &[(0, granted(11))]);
    assert_eq!(after_two.verdict, acquired(Some(11), 201 + VALIDITY));
}

#[test]
fn an_answer_to_an_earlier_phase_does_not_count() {
    let mut round = confirming();
    reply(&mut round, 200, confirm(8, 0), &[(1, granted(11))]);
    let stale = reply(&mut round, 300, confirm(8, 0), &[(0, granted(11)), (1, granted(11))]);
    assert_eq!(stale.verdict, Verdict::Open);
}

/// Fences are times. Members 0 and 2 refuse the fence 20 as too far ahead of their clocks.
#[test]
fn answers_to_an_earlier_phase_do_not_count_in_a_later_phase_with_the_same_fence() {
    let mut round = confirming();
    vote(&mut round, 150, &[(2, granted(7))]);
    reply(&mut round, 200, confirm(8, 0), &[(1, granted(20))]);
    let ahead = Vote::Refused(Refusal::FenceAhead);
    let lower = reply(&mut round, 300, confirm(20, 1), &[(0, ahead.clone()), (2, ahead)]);
    assert_eq!(sent(&lower.sends, confirm(7, 2)), [0, 2], "the greatest fence of members 0 and 2");
    let higher = reply(&mut round, 400, confirm(7, 2), &[(0, granted(8))]);
    assert_eq!(sent(&higher.sends, confirm(8, 3)), [0, 2]);
    let stale = reply(&mut round, 500, confirm(8, 0), &[(0, granted(8)), (2, granted(8))]);
    assert_eq!(stale.verdict, Verdict::Open, "answers to phase 0 do not count in phase 3");
    let after_two = reply(&mut round, 600, confirm(8, 3), &[(0, granted(8)), (2, granted(8))]);
    assert_eq!(after_two.verdict, acquired(Some(8), 400 + VALIDITY));
}

/// Fences are times. Members 0 and 2 refuse the fence 8 as too far ahead of their clocks. So the clock of
/// member 1, which granted 8, is ahead.
#[test]
fn a_member_with_a_clock_ahead_of_the_others_is_dropped_and_reported() {
    let mut round = confirming();
    vote(&mut round, 150, &[(2, granted(6))]);
    let ahead = Vote::Refused(Refusal::FenceAhead);
    let after_one = reply(&mut round, 200, confirm(8, 0), &[(0, ahead.clone())]);
    assert_eq!(after_one.verdict, Verdict::Open, "members 1 and 2 may still confirm 8");
    assert_eq!(round.members_ahead().count(), 0);
    let lower = reply(&mut round, 300, confirm(8, 0), &[(2, ahead)]);
    assert_eq!(sent(&lower.sends, confirm(6, 1)), [0, 2]);
    assert_eq!(round.members_ahead().collect::<Vec<_>>(), [Member(1)]);
    let after_two =
        reply(&mut round, 400, confirm(6, 1), &[(1, granted(8)), (0, granted(6)), (2, granted(6))]);
    assert_eq!(after_two.verdict, acquired(Some(6), 300 + VALIDITY));
}

#[test]
fn a_round_is_impossible_when_no_majority_remains_without_the_member_with_a_clock_ahead() {
    let mut round = confirming();
    vote(&mut round, 150, &[(2, down())]);
    let failed = reply(&mut round, 200, confirm(8, 0), &[(0, Vote::Refused(Refusal::FenceAhead))]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
}

#[test]
fn a_round_is_too_late_when_a_hold_expires_before_it_is_confirmed() {
    let mut round = confirming();
    vote(&mut round, 150, &[(2, taken())]);
    let failed = reply(&mut round, 200, confirm(8, 0), &[(0, Vote::Refused(Refusal::NotHeld))]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::TooLate));
    assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_round_is_impossible_when_members_fall_silent_in_the_confirm_phase() {
    let mut round = confirming();
    vote(&mut round, 150, &[(2, down())]);
    let failed = reply(&mut round, 200, confirm(8, 0), &[(0, Vote::Unknown)]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
}

/// A majority of four members is three. Member 0 grants a second time, with the fence 5, and member 1 answers
/// CONFIRM with the fence 2. A phase for fence 2 could ask members 1 and 2 only, because member 0 has the
/// greater fence 5. So the round skips phase 1, for fence 2, and begins phase 2, for fence 5.
#[test]
fn a_confirm_phase_needs_a_majority_of_counted_grants() {
    let (mut round, _) = Round::begin(plan(4, true), Start::AtOnce, &[], at(0));
    vote(&mut round, 1, &[(0, granted(1)), (1, granted(1)), (2, granted(1)), (3, taken())]);
    vote(&mut round, 9, &[(0, granted(5))]);
    let again = reply(&mut round, 10, confirm(1, 0), &[(1, granted(2))]);
    assert_eq!(sent(&again.sends, confirm(5, 2)), [0, 1, 2], "phase 2 asks the three members that granted");
}
