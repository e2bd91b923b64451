//! Extensions of a hold: which answers extend the hold, when the hold is lost, and which members are asked to
//! restore it.

use super::helpers::*;
use dlock_quorum::*;

const YES: Vote<()> = Vote::Granted(());
const NOT_HELD: Vote<()> = Vote::Refused(Refusal::NotHeld);

/// Begins an extension at 1,000 ms. The hold has three members and is valid until 5,000 ms.
fn extending() -> Extension {
    let (extension, sends) =
        Extension::new(plan(3, false).quorum, Lease::new(TTL).unwrap(), at(5_000), at(1_000));
    assert_eq!(sent(&sends, Request::Extend), [0, 1, 2]);
    extension
}

#[test]
fn a_majority_extends_and_validity_counts_from_the_start_of_the_extension() {
    let mut extension = extending();
    assert_eq!(extension.answered(Member(0), YES, at(2_000)), Extended::Open);
    assert_eq!(extension.answered(Member(0), YES, at(2_000)), Extended::Open, "a member has one vote");
    assert_eq!(extension.held_until(), at(5_000));
    assert_eq!(extension.answered(Member(2), YES, at(2_000)), Extended::Until(at(1_000 + VALIDITY)));
    assert_eq!(extension.held_until(), at(1_000 + VALIDITY));
}

#[test]
fn an_extension_keeps_the_old_validity_when_answers_are_missing() {
    let mut extension = extending();
    extension.answered(Member(0), YES, at(2_000));
    extension.answered(Member(1), Vote::Unknown, at(2_000));
    assert_eq!(extension.answered(Member(2), Vote::Unknown, at(2_000)), Extended::Unconfirmed);
    assert_eq!(extension.held_until(), at(5_000));
    let late = extension.answered(Member(1), YES, at(2_500));
    assert_eq!(late, Extended::Until(at(1_000 + VALIDITY)));
}

#[test]
fn a_hold_is_lost_when_a_majority_lacks_it() {
    let mut extension = extending();
    assert_eq!(extension.answered(Member(0), NOT_HELD, at(2_000)), Extended::Open);
    assert_eq!(extension.answered(Member(1), NOT_HELD, at(2_000)), Extended::Lost);
}

#[test]
fn a_hold_is_not_extended_after_its_end() {
    let mut extension = extending();
    extension.answered(Member(0), YES, at(4_999));
    assert_eq!(extension.answered(Member(1), YES, at(5_000)), Extended::Lost);
}

#[test]
fn a_shorter_lease_shortens_the_validity_before_any_member_answers() {
    // A client trusts 988 ms of this lease: 1 % and 2 ms less, as clocks differ.
    let one_second = Lease::new(std::time::Duration::from_secs(1)).unwrap();
    let (mut extension, _) = Extension::new(plan(3, false).quorum, one_second, at(5_000), at(1_000));
    assert_eq!(extension.held_until(), at(1_988));
    for member in 0..3 {
        extension.answered(Member(member), Vote::Unknown, at(1_500));
    }
    assert_eq!(extension.held_until(), at(1_988));
}

#[test]
fn a_hold_is_lost_when_a_majority_lacks_it_and_a_member_is_silent() {
    let mut extension = extending();
    extension.answered(Member(0), Vote::Unknown, at(2_000));
    assert_eq!(
        extension.answered(Member(1), NOT_HELD, at(2_000)),
        Extended::Open,
        "the third member decides"
    );
    assert_eq!(extension.answered(Member(2), NOT_HELD, at(2_000)), Extended::Lost);
}

#[test]
fn a_member_that_forgot_is_asked_to_restore_a_hold_that_a_majority_has() {
    let mut extension = extending();
    extension.answered(Member(0), NOT_HELD, at(2_000));
    assert!(extension.restore(at(2_000)).is_empty(), "no other member has answered");
    extension.answered(Member(1), YES, at(2_000));
    assert!(extension.restore(at(2_000)).is_empty(), "one of three is no majority");
    extension.answered(Member(2), YES, at(2_000));
    assert_eq!(sent(&extension.restore(at(2_000)), Request::Restore), [0]);
    assert!(extension.restore(at(2_000)).is_empty(), "the member is asked once");
    assert_eq!(extension.held_until(), at(1_000 + VALIDITY), "a restore does not change the validity");
}

#[test]
fn a_member_that_answers_last_is_asked_to_restore_the_hold_unless_its_validity_has_ended() {
    let mut extension = extending();
    extension.answered(Member(1), YES, at(2_000));
    extension.answered(Member(2), YES, at(2_000));
    assert!(extension.restore(at(2_000)).is_empty(), "member 0 may have the hold");
    extension.answered(Member(0), NOT_HELD, at(3_000));
    assert!(extension.clone().restore(at(1_000 + VALIDITY)).is_empty(), "the validity has ended");
    assert_eq!(sent(&extension.restore(at(3_000)), Request::Restore), [0]);
}
