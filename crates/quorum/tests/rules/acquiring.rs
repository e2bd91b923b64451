use super::helpers::*;
use dlock_quorum::*;

#[test]
fn a_majority_is_more_than_half() {
    let majorities = (1..=9).map(|members| Quorum::new(members).unwrap().majority());
    assert_eq!(majorities.collect::<Vec<_>>(), [1, 2, 2, 3, 3, 4, 4, 5, 5]);
    assert_eq!(Quorum::new(0), None);
}

#[test]
fn a_majority_acquires_and_validity_counts_from_the_start_of_the_round() {
    let (mut round, sends) = Round::begin(plan(5, false), Start::AtOnce, &[], at(1_000));
    assert_eq!(sent(&sends, Request::Acquire), [0, 1, 2, 3, 4]);
    let after_two = vote(&mut round, 1_500, &[(4, granted(7)), (1, granted(9))]);
    assert_eq!(after_two.verdict, Verdict::Open);
    let after_three = vote(&mut round, 1_600, &[(0, granted(8))]);
    // The validity counts from the start of the round, before the first request is sent.
    assert_eq!(after_three.verdict, acquired(None, 1_000 + VALIDITY), "a plain quorum has no fence");
    assert!(after_three.sends.is_empty());
}

#[test]
fn a_majority_is_too_late_after_the_end_of_validity() {
    let second_grant_at = |now| {
        let (mut round, _) = Round::begin(plan(3, false), Start::AtOnce, &[], at(1_000));
        vote(&mut round, 1_001, &[(0, granted(1))]);
        vote(&mut round, now, &[(2, granted(1))])
    };
    assert_eq!(second_grant_at(1_000 + VALIDITY - 1).verdict, acquired(None, 1_000 + VALIDITY));
    let late = second_grant_at(1_000 + VALIDITY);
    assert_eq!(late.verdict, Verdict::Failed(FailureReason::TooLate));
    assert_eq!(sent(&late.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_round_fails_with_the_answer_that_makes_a_majority_impossible() {
    let (mut round, _) = Round::begin(plan(5, false), Start::AtOnce, &[], at(0));
    // After two refusals, members 0, 3 and 4 can still be a majority. After the third, none is possible.
    let after_two = vote(&mut round, 1, &[(0, granted(1)), (1, taken()), (2, taken())]);
    assert_eq!(after_two.verdict, Verdict::Open);
    let after_three = vote(&mut round, 4, &[(3, taken())]);
    assert_eq!(after_three.verdict, Verdict::Failed(FailureReason::Taken));
    assert_eq!(
        sent(&after_three.sends, Request::Release),
        [0, 1, 2, 3, 4],
        "also to member 4, which has not answered"
    );
    assert_eq!(vote(&mut round, 5, &[(4, granted(1))]).sends.len(), 0, "no second release");
    let votes: Vec<_> = round.votes().map(Option::<&Vote>::cloned).collect();
    assert_eq!(votes[..4], [Some(granted(1)), Some(taken()), Some(taken()), Some(taken())]);
}

#[test]
fn a_round_is_impossible_rather_than_taken_when_too_few_members_can_vote() {
    let failed = |votes: &[(u8, Vote)]| {
        let (mut round, _) = Round::begin(plan(3, false), Start::AtOnce, &[], at(0));
        vote(&mut round, 1, votes).verdict
    };
    let grace = Vote::Refused(Refusal::Grace(TTL));
    assert_eq!(failed(&[(0, down()), (1, Vote::Unknown)]), Verdict::Failed(FailureReason::Impossible));
    assert_eq!(
        failed(&[(0, granted(1)), (1, grace.clone()), (2, grace)]),
        Verdict::Failed(FailureReason::Impossible)
    );
    assert_eq!(failed(&[(0, down()), (1, taken())]), Verdict::Open, "the answer of member 2 decides");
    for (last, reason) in [
        (taken(), FailureReason::Taken),
        (granted(1), FailureReason::Taken),
        (down(), FailureReason::Impossible),
    ] {
        assert_eq!(failed(&[(0, down()), (1, taken()), (2, last)]), Verdict::Failed(reason));
    }
    assert_eq!(
        failed(&[(0, taken()), (1, taken())]),
        Verdict::Failed(FailureReason::Taken),
        "two of three can vote"
    );
}

#[test]
fn a_grant_counts_when_it_arrives_after_the_time_limit() {
    let (mut round, _) = Round::begin(plan(5, false), Start::AtOnce, &[], at(0));
    // `Unknown`: member 1 does not answer within the time limit.
    vote(&mut round, 1, &[(0, granted(1)), (1, Vote::Unknown), (2, down())]);
    let late = vote(&mut round, 9, &[(1, granted(1)), (3, granted(1))]);
    assert_eq!(late.verdict, acquired(None, VALIDITY));
}

#[test]
fn a_grant_still_counts_after_other_answers_of_its_member() {
    let (mut round, _) = Round::begin(plan(3, false), Start::AtOnce, &[], at(0));
    vote(&mut round, 1, &[(0, granted(1)), (0, taken()), (0, Vote::Unknown)]);
    assert_eq!(vote(&mut round, 9, &[(1, granted(1))]).verdict, acquired(None, VALIDITY));
}

#[test]
fn a_single_server_acquires_with_its_own_fence() {
    let (mut round, _) = Round::begin(plan(1, true), Start::AtOnce, &[], at(0));
    assert_eq!(vote(&mut round, 1, &[(0, granted(5))]).verdict, acquired(Some(5), VALIDITY));
}

#[test]
fn a_retry_keeps_the_validity_of_the_first_send() {
    let (mut round, _) = Round::begin(Plan { retries: 1, ..plan(3, false) }, Start::AtOnce, &[], at(0));
    let no_grant = vote(&mut round, 1, &[(0, taken()), (1, Vote::Unknown), (2, down())]);
    assert_eq!(no_grant.verdict, Verdict::TryAgain);
    assert_eq!(sent(&round.ask_again(), Request::Acquire), [1, 2], "member 0 has refused");
    assert!(round.ask_again().is_empty());
    let again = vote(&mut round, 5_000, &[(1, granted(1)), (2, granted(1))]);
    assert_eq!(again.verdict, acquired(None, VALIDITY));
}

#[test]
fn a_round_is_not_retried_when_too_many_members_refuse() {
    let (mut round, _) = Round::begin(Plan { retries: 1, ..plan(3, false) }, Start::AtOnce, &[], at(0));
    let failed = vote(&mut round, 1, &[(0, taken()), (1, taken())]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
}

/// If two clients kept one grant each, neither could acquire before the missing member answers.
#[test]
fn a_round_with_a_grant_and_a_refusal_fails_although_retries_are_left() {
    let retries = Plan { retries: 4, ..plan(3, false) };
    for missing in [down(), Vote::Unknown] {
        let (mut round, _) = Round::begin(retries, Start::AtOnce, &[Member(0), Member(1)], at(0));
        let failed = vote(&mut round, 1, &[(0, granted(1)), (1, taken()), (2, missing)]);
        assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
        assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
    }
}

#[test]
fn giving_up_releases_once_on_every_member() {
    let (mut round, _) = Round::begin(plan(3, true), Start::AtOnce, &[], at(0));
    vote(&mut round, 1, &[(0, granted(1)), (1, granted(1))]);
    assert_eq!(sent(&round.give_up(), Request::Release), [0, 1, 2]);
    assert!(round.give_up().is_empty());
    let late = reply(&mut round, 2, confirm(1, 0), &[(0, granted(1)), (1, granted(1))]);
    assert_eq!(late.verdict, Verdict::Open);
}
