use super::words::*;
use dlock_quorum::*;

#[test]
fn a_majority_is_more_than_half() {
    let majorities = (1..=9).map(|members| Quorum::new(members).unwrap().majority());
    assert_eq!(majorities.collect::<Vec<_>>(), [1, 2, 2, 3, 3, 4, 4, 5, 5]);
    assert_eq!(Quorum::new(0), None);
}

#[test]
fn all_are_asked_at_once_and_a_majority_wins_from_before_the_first_send() {
    let (mut machine, sends) = Acquisition::at_once(plan(5, false), &[], at(1_000));
    assert_eq!(sent(&sends, Request::Acquire), [0, 1, 2, 3, 4]);
    let two = vote(&mut machine, 1_500, &[(4, granted(7)), (1, granted(9))]);
    assert_eq!(two.verdict, Verdict::Open);
    let three = vote(&mut machine, 1_600, &[(0, granted(8))]);
    assert_eq!(three.verdict, acquired(None, 1_000 + TRUSTED), "a plain quorum has no fence");
    assert!(three.sends.is_empty());
}

#[test]
fn the_last_answer_must_come_before_the_end_of_validity() {
    let last_at = |now| {
        let (mut machine, _) = Acquisition::at_once(plan(3, false), &[], at(1_000));
        vote(&mut machine, 1_001, &[(0, granted(1))]);
        vote(&mut machine, now, &[(2, granted(1))])
    };
    assert_eq!(last_at(1_000 + TRUSTED - 1).verdict, acquired(None, 1_000 + TRUSTED));
    let late = last_at(1_000 + TRUSTED);
    assert_eq!(late.verdict, Verdict::Failed(FailureReason::TooLate));
    assert_eq!(sent(&late.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn it_is_lost_with_the_first_answer_that_makes_a_majority_impossible() {
    let (mut machine, _) = Acquisition::at_once(plan(5, false), &[], at(0));
    let two = vote(&mut machine, 1, &[(0, granted(1)), (1, taken()), (2, taken())]);
    assert_eq!(two.verdict, Verdict::Open);
    let three = vote(&mut machine, 4, &[(3, taken())]);
    assert_eq!(three.verdict, Verdict::Failed(FailureReason::Taken));
    assert_eq!(sent(&three.sends, Request::Release), [0, 1, 2, 3, 4], "also where no answer came");
    assert_eq!(vote(&mut machine, 5, &[(4, granted(1))]).sends.len(), 0, "once");
    let votes: Vec<_> = machine.votes().map(Option::<&Vote>::cloned).collect();
    assert_eq!(votes[..4], [Some(granted(1)), Some(taken()), Some(taken()), Some(taken())]);
}

#[test]
fn too_many_masters_down_is_not_taken() {
    let failed = |votes: &[(u8, Vote)]| {
        let (mut machine, _) = Acquisition::at_once(plan(3, false), &[], at(0));
        vote(&mut machine, 1, votes).verdict
    };
    let grace = Vote::Refused(Refusal::Grace(TTL));
    assert_eq!(failed(&[(0, down()), (1, Vote::Unknown)]), Verdict::Failed(FailureReason::Impossible));
    assert_eq!(
        failed(&[(0, granted(1)), (1, grace.clone()), (2, grace)]),
        Verdict::Failed(FailureReason::Impossible)
    );
    // The third decides between the two.
    assert_eq!(failed(&[(0, down()), (1, taken())]), Verdict::Open);
    assert_eq!(failed(&[(0, down()), (1, taken()), (2, down())]), Verdict::Failed(FailureReason::Impossible));
    assert_eq!(failed(&[(0, down()), (1, taken()), (2, granted(1))]), Verdict::Failed(FailureReason::Taken));
    assert_eq!(
        failed(&[(0, taken()), (1, taken())]),
        Verdict::Failed(FailureReason::Taken),
        "2 may yet be up"
    );
}

#[test]
fn silence_is_not_no() {
    let (mut machine, _) = Acquisition::at_once(plan(5, false), &[], at(0));
    vote(&mut machine, 1, &[(0, granted(1)), (1, Vote::Unknown), (2, down())]);
    let late = vote(&mut machine, 9, &[(1, granted(1)), (3, granted(1))]);
    assert_eq!(late.verdict, acquired(None, TRUSTED));
}

#[test]
fn nothing_takes_a_grant_back() {
    let (mut machine, _) = Acquisition::at_once(plan(3, false), &[], at(0));
    vote(&mut machine, 1, &[(0, granted(1)), (0, taken()), (0, Vote::Unknown), (0, granted(1))]);
    assert_eq!(vote(&mut machine, 9, &[(1, granted(1))]).verdict, acquired(None, TRUSTED));
}

#[test]
fn one_server_gives_its_own_fence_without_a_confirm_phase() {
    let (mut machine, _) = Acquisition::at_once(plan(1, true), &[], at(0));
    assert_eq!(vote(&mut machine, 1, &[(0, granted(5))]).verdict, acquired(Some(5), TRUSTED));
}

#[test]
fn a_retry_asks_the_silent_and_keeps_the_first_send() {
    let (mut machine, _) = Acquisition::at_once(Plan { retries: 1, ..plan(3, false) }, &[], at(0));
    let none = vote(&mut machine, 1, &[(0, taken()), (1, Vote::Unknown), (2, down())]);
    assert_eq!(none.verdict, Verdict::TryAgain);
    assert_eq!(sent(&machine.ask_again(), Request::Acquire), [1, 2], "0 has somebody else's hold");
    assert!(machine.ask_again().is_empty());
    let again = vote(&mut machine, 5_000, &[(1, granted(1)), (2, granted(1))]);
    assert_eq!(again.verdict, acquired(None, TRUSTED));
}

#[test]
fn no_retry_where_too_many_hold_it() {
    let (mut machine, _) = Acquisition::at_once(Plan { retries: 1, ..plan(3, false) }, &[], at(0));
    let failed = vote(&mut machine, 1, &[(0, taken()), (1, taken())]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
}

/// The one who has the rest may do the same, and then neither wins before the missing one is back.
#[test]
fn who_is_refused_keeps_no_part_for_the_time_of_a_retry() {
    let retries = Plan { retries: 4, ..plan(3, false) };
    for missing in [down(), Vote::Unknown] {
        let (mut machine, _) = Acquisition::at_once(retries, &[Member(0), Member(1)], at(0));
        let failed = vote(&mut machine, 1, &[(0, granted(1)), (1, taken()), (2, missing)]);
        assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
        assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
    }
}

#[test]
fn giving_up_cleans_up_everywhere_once() {
    let (mut machine, _) = Acquisition::at_once(plan(3, true), &[], at(0));
    vote(&mut machine, 1, &[(0, granted(1)), (1, granted(1))]);
    assert_eq!(sent(&machine.give_up(), Request::Release), [0, 1, 2]);
    assert!(machine.give_up().is_empty());
    let late = hear(&mut machine, 2, confirm(1, 0), &[(0, granted(1)), (1, granted(1))]);
    assert_eq!(late.verdict, Verdict::Open);
}
