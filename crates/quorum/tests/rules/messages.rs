//! The message of a grant: when it is a hold, and until when that is valid.

use super::helpers::*;
use dlock_quorum::*;
use std::time::Duration;

/// How long the server keeps the position after a call: less than the lease.
const KEPT: Duration = Duration::from_secs(6);
/// The validity in ms of a hold that is known by its message: `KEPT` less the drift of the lease.
const SHORT: u64 = 5_898;

fn held(number: u64, valid_until: u64) -> Option<Acquired> {
    Some(Acquired { fence: Some(fence(number)), valid_until: at(valid_until) })
}

/// Returns a wait with calls that were sent at these times in ms.
fn calls(sent: &[u64]) -> WaitCalls {
    let mut calls = WaitCalls::new(Lease::new(TTL).unwrap());
    for (sent, number) in sent.iter().zip(1..) {
        assert_eq!(calls.begin(KEPT, at(*sent)), number);
    }
    calls
}

#[test]
fn a_granted_waiter_holds_from_its_message_on_and_validity_counts_from_the_send_of_its_call() {
    let calls = calls(&[1_000, 3_000]);
    assert_eq!(calls.announced(1, fence(7), at(3_500)), held(7, 1_000 + SHORT));
    assert_eq!(calls.announced(2, fence(7), at(3_500)), held(7, 3_000 + SHORT));
    // The server keeps the position for longer than the lease.
    let mut long = WaitCalls::new(Lease::new(TTL).unwrap());
    long.begin(TTL * 2, at(1_000));
    assert_eq!(long.announced(1, fence(7), at(1_001)), held(7, 1_000 + VALIDITY));
}

#[test]
fn a_message_of_a_call_is_no_grant_once_a_later_call_was_answered_null() {
    let mut calls = calls(&[0, 1_000, 2_000]);
    calls.answered_null(1);
    assert_eq!(calls.announced(1, fence(7), at(2_000)), held(7, SHORT), "null of the same call");
    calls.answered_null(2);
    assert_eq!(calls.announced(1, fence(7), at(2_000)), None);
    assert_eq!(calls.announced(2, fence(8), at(2_000)), held(8, 1_000 + SHORT));
    calls.answered_null(1);
    assert_eq!(calls.announced(1, fence(7), at(2_000)), None, "an answer that arrives late");
}

#[test]
fn a_message_after_the_validity_of_its_call_is_too_late() {
    let calls = calls(&[0]);
    assert_eq!(calls.announced(1, fence(7), at(SHORT)), None);
    assert_eq!(calls.announced(1, fence(7), at(SHORT - 1)), held(7, SHORT));
    // A position that is kept for less than the drift leaves no validity.
    let mut short = WaitCalls::new(Lease::new(TTL).unwrap());
    short.begin(Duration::from_millis(50), at(0));
    assert_eq!(short.announced(1, fence(7), at(0)), None);
}

#[test]
fn a_message_of_a_call_that_was_not_sent_is_no_grant() {
    let calls = calls(&[0]);
    for number in [2, u32::MAX] {
        assert_eq!(calls.announced(number, fence(7), at(1)), None);
    }
}

#[test]
fn an_answer_with_a_fence_sets_the_whole_lease_from_the_send_of_its_call() {
    let calls = calls(&[0, 2_000]);
    let acquired = Acquired { fence: Some(fence(7)), valid_until: at(2_000 + VALIDITY) };
    assert_eq!(calls.answered_fence(2, fence(7)), Some(acquired));
}

#[test]
fn a_claim_counts_only_with_the_fence_of_the_hold_and_within_its_validity() {
    let lease = Lease::new(TTL).unwrap();
    let hold = Acquired { fence: Some(fence(7)), valid_until: at(SHORT) };
    let claimed = |answer: Vote, now| Claimed::read(hold, lease, at(1_000), &answer, at(now));
    assert_eq!(claimed(granted(7), SHORT - 1), Claimed::Until(at(1_000 + VALIDITY)));
    assert_eq!(claimed(granted(7), SHORT), Claimed::Lost, "nothing revives a hold");
    assert_eq!(claimed(granted(8), 1_001), Claimed::Lost, "another hold of the token");
    assert_eq!(claimed(granted(6), 1_001), Claimed::Open, "the late answer to an earlier call");
    assert_eq!(claimed(taken(), 1_001), Claimed::Lost);
    for unanswered in [Vote::Unknown, down()] {
        assert_eq!(claimed(unanswered, 1_001), Claimed::Open);
    }
}
