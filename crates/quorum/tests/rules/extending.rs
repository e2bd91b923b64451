use super::words::*;
use dlock_quorum::Lease;
use dlock_quorum::*;

const YES: Vote<()> = Vote::Granted(());
const NOT_HELD: Vote<()> = Vote::Refused(Refusal::NotHeld);

/// Of a hold on three masters that is valid until 5,000, begun at 1,000.
fn extending() -> Extension {
    let (machine, sends) =
        Extension::new(plan(3, false).quorum, Lease::new(TTL).unwrap(), at(5_000), at(1_000));
    assert_eq!(sent(&sends, Request::Extend), [0, 1, 2]);
    machine
}

#[test]
fn a_majority_extends_from_before_the_send() {
    let mut machine = extending();
    assert_eq!(machine.answered(Member(0), YES, at(2_000)), Extended::Open);
    assert_eq!(machine.answered(Member(0), YES, at(2_000)), Extended::Open, "one master, one vote");
    assert_eq!(machine.held_until(), at(5_000));
    assert_eq!(machine.answered(Member(2), YES, at(2_000)), Extended::Until(at(1_000 + TRUSTED)));
    assert_eq!(machine.held_until(), at(1_000 + TRUSTED));
}

#[test]
fn silence_keeps_the_old_validity() {
    let mut machine = extending();
    machine.answered(Member(0), YES, at(2_000));
    machine.answered(Member(1), Vote::Unknown, at(2_000));
    assert_eq!(machine.answered(Member(2), Vote::Unknown, at(2_000)), Extended::Unconfirmed);
    assert_eq!(machine.held_until(), at(5_000));
    assert_eq!(machine.answered(Member(1), YES, at(2_500)), Extended::Until(at(1_000 + TRUSTED)), "late");
}

#[test]
fn a_majority_that_has_no_hold_ends_it() {
    let mut machine = extending();
    assert_eq!(machine.answered(Member(0), NOT_HELD, at(2_000)), Extended::Open);
    assert_eq!(machine.answered(Member(1), NOT_HELD, at(2_000)), Extended::Lost);
}

#[test]
fn past_its_end_a_hold_is_not_extended() {
    let mut machine = extending();
    machine.answered(Member(0), YES, at(4_999));
    assert_eq!(machine.answered(Member(1), YES, at(5_000)), Extended::Lost);
}

#[test]
fn a_shorter_lease_counts_at_once_for_silence_may_have_obeyed() {
    let second = Lease::new(std::time::Duration::from_secs(1)).unwrap();
    let (mut machine, _) = Extension::new(plan(3, false).quorum, second, at(5_000), at(1_000));
    assert_eq!(machine.held_until(), at(1_988));
    for member in 0..3 {
        machine.answered(Member(member), Vote::Unknown, at(1_500));
    }
    assert_eq!(machine.held_until(), at(1_988));
}

#[test]
fn a_hold_that_a_majority_does_not_have_is_over_whoever_is_silent() {
    let mut machine = extending();
    machine.answered(Member(0), Vote::Unknown, at(2_000));
    assert_eq!(machine.answered(Member(1), NOT_HELD, at(2_000)), Extended::Open, "the third decides");
    assert_eq!(machine.answered(Member(2), NOT_HELD, at(2_000)), Extended::Lost);
}

#[test]
fn a_master_that_forgot_is_asked_again_once_a_majority_holds_without_it() {
    let mut machine = extending();
    machine.answered(Member(0), NOT_HELD, at(2_000));
    assert!(machine.restore(at(2_000)).is_empty(), "nobody else has answered");
    machine.answered(Member(1), YES, at(2_000));
    assert!(machine.restore(at(2_000)).is_empty(), "one of three is no majority");
    machine.answered(Member(2), YES, at(2_000));
    assert_eq!(sent(&machine.restore(at(2_000)), Request::Restore), [0]);
    assert!(machine.restore(at(2_000)).is_empty(), "once");
    assert_eq!(machine.held_until(), at(1_000 + TRUSTED), "what it grants is no vote");
}

#[test]
fn a_master_is_asked_again_also_if_it_answers_last_but_not_past_the_end() {
    let mut machine = extending();
    machine.answered(Member(1), YES, at(2_000));
    machine.answered(Member(2), YES, at(2_000));
    assert!(machine.restore(at(2_000)).is_empty(), "it may still hold");
    machine.answered(Member(0), NOT_HELD, at(3_000));
    assert!(machine.clone().restore(at(1_000 + TRUSTED)).is_empty(), "the hold is over");
    assert_eq!(sent(&machine.restore(at(3_000)), Request::Restore), [0]);
}
