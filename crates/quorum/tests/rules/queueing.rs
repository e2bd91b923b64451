use super::helpers::*;
use dlock_quorum::*;

const ORDER: [Member; 3] = [Member(2), Member(0), Member(1)];

fn queued() -> Round {
    let plan = Plan { retries: 1, ..plan(3, false) };
    let (machine, sends) = Round::begin(plan, Start::Queued, &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Wait), [2]);
    assert_eq!(sends.len(), 1, "the client queues at one member only");
    machine
}

#[test]
fn a_granted_waiter_claims_the_lock_and_its_validity_counts_from_the_claim() {
    let mut machine = queued();
    let claim = waited(&mut machine, 60_000, 2, Vote::Granted(()));
    assert_eq!(sent(&claim.sends, Request::Acquire), [0, 1, 2], "the member of the queue is asked too");
    assert_eq!(
        waited(&mut machine, 60_005, 2, Vote::Granted(())).sends.len(),
        0,
        "a duplicate sends nothing"
    );
    let after_two = vote(&mut machine, 60_010, &[(1, granted(4)), (2, granted(5))]);
    assert_eq!(after_two.verdict, acquired(None, 60_000 + TRUSTED));

    let (mut machine, _) = Round::begin(plan(3, true), Start::Queued, &ORDER, at(0));
    waited(&mut machine, 60_000, 2, Vote::Granted(()));
    let confirm_phase = vote(&mut machine, 60_010, &[(1, granted(4)), (2, granted(5))]);
    assert_eq!(sent(&confirm_phase.sends, confirm(5, 0)), [1, 2]);
    let after_two = reply(&mut machine, 60_020, confirm(5, 0), &[(1, granted(5)), (2, granted(5))]);
    assert_eq!(after_two.verdict, acquired(Some(5), 60_011 + TRUSTED));
}

#[test]
fn a_granted_waiter_claims_the_lock_on_a_single_server_too() {
    let (mut machine, _) = Round::begin(plan(1, false), Start::Queued, &[Member(0)], at(0));
    let claim = waited(&mut machine, 60_000, 0, Vote::Granted(()));
    assert_eq!(claim.verdict, Verdict::Open, "the grant may have expired");
    assert_eq!(sent(&claim.sends, Request::Acquire), [0]);
    let after_one = vote(&mut machine, 60_001, &[(0, granted(5))]);
    assert_eq!(after_one.verdict, acquired(Some(5), 60_000 + TRUSTED));
}

#[test]
fn a_client_queues_at_the_first_reachable_member() {
    let mut machine = queued();
    let refused = Failure::Down("connection refused".into());
    let next = waited(&mut machine, 1, 2, Vote::Failed(refused.clone()));
    assert_eq!(next.sends.to_vec(), [Outgoing { to: Member(0), what: Request::Wait }]);
    let next = waited(&mut machine, 2, 0, Vote::Refused(Refusal::Grace(TTL)));
    assert_eq!(next.sends.to_vec(), [Outgoing { to: Member(1), what: Request::Wait }]);
    let failed = waited(&mut machine, 3, 1, Vote::Failed(refused));
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
    assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_client_leaves_a_silent_queue_before_it_joins_the_next() {
    let mut machine = queued();
    let next = waited(&mut machine, 1, 2, Vote::Unknown);
    let leave = Outgoing { to: Member(2), what: Request::Leave };
    assert_eq!(next.sends.to_vec(), [leave, Outgoing { to: Member(0), what: Request::Wait }]);
    let claim = waited(&mut machine, 2, 0, Vote::Granted(()));
    assert_eq!(sent(&claim.sends, Request::Acquire), [0, 1, 2]);
}

#[test]
fn a_refused_waiter_asks_no_other_member() {
    for (refusal, reason) in [
        (Refusal::Taken, FailureReason::Taken),
        (Refusal::QueueFull, FailureReason::Taken),
        (Refusal::Deadlock("a -> b -> a".into()), FailureReason::Deadlock),
    ] {
        let mut machine = queued();
        let failed = waited(&mut machine, 1, 2, Vote::Refused(refusal));
        assert_eq!(failed.verdict, Verdict::Failed(reason));
    }
}

#[test]
fn a_granted_waiter_asks_again_while_its_predecessor_releases() {
    let mut machine = queued();
    waited(&mut machine, 1, 2, Vote::Granted(()));
    let not_yet = vote(&mut machine, 2, &[(2, granted(5)), (0, taken()), (1, taken())]);
    assert_eq!(not_yet.verdict, Verdict::TryAgain);
    assert_eq!(sent(&machine.ask_again(), Request::Acquire), [0, 1]);
    let after_two = vote(&mut machine, 9, &[(0, granted(4))]);
    assert_eq!(after_two.verdict, acquired(None, 1 + TRUSTED), "validity counts from the first request");
}

/// A hold that the member of the queue has alone keeps no client out, if no client waits there.
#[test]
fn a_newcomer_overtakes_a_partial_hold_but_no_waiter() {
    for has_waiters in [false, true] {
        let (mut machine, sends) = Round::begin(plan(3, false), Start::AtOnce, &ORDER, at(100));
        assert_eq!(sent(&sends, Request::Acquire), [0, 1, 2]);
        let after_two = vote(&mut machine, 110, &[(0, granted(4)), (1, granted(5))]);
        assert_eq!(after_two.verdict, Verdict::Open, "the member of the queue must answer first");
        let refused = vote(&mut machine, 120, &[(2, taken())]);
        assert_eq!(sent(&refused.sends, Request::Look), [2]);
        let answer = if has_waiters { taken() } else { Vote::Refused(Refusal::NotHeld) };
        let looked = reply(&mut machine, 130, Request::Look, &[(2, answer)]);
        if has_waiters {
            assert_eq!(looked.verdict, Verdict::Failed(FailureReason::Taken));
            assert_eq!(sent(&looked.sends, Request::Release), [0, 1, 2]);
        } else {
            assert_eq!(looked.verdict, acquired(None, 100 + TRUSTED), "validity counts from the first send");
            assert_eq!(machine.next_queue(), Some(Member(0)));
        }
    }
}

#[test]
fn a_newcomer_acquires_when_the_member_of_the_queue_is_silent() {
    let (mut machine, _) = Round::begin(plan(3, false), Start::AtOnce, &ORDER, at(0));
    vote(&mut machine, 1, &[(0, granted(4)), (1, granted(5))]);
    assert_eq!(vote(&mut machine, 2, &[(2, Vote::Unknown)]).verdict, acquired(None, TRUSTED));
}

#[test]
fn a_client_that_asks_in_order_asks_the_others_after_a_grant() {
    let (mut machine, sends) = Round::begin(plan(3, false), Start::InOrder, &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Acquire), [2]);
    assert_eq!(vote(&mut machine, 1, &[(2, taken())]).verdict, Verdict::Failed(FailureReason::Taken));

    let (mut machine, _) = Round::begin(plan(3, false), Start::InOrder, &ORDER, at(0));
    let next = vote(&mut machine, 1, &[(2, down())]);
    assert_eq!(sent(&next.sends, Request::Acquire), [0]);
    assert_eq!(sent(&vote(&mut machine, 2, &[(0, granted(5))]).sends, Request::Acquire), [1, 2]);
    let granted = vote(&mut machine, 3, &[(1, granted(6))]);
    assert_eq!(granted.verdict, acquired(None, TRUSTED));
}

/// The other clients came through a later queue because they cannot reach the first one.
#[test]
fn a_granted_waiter_moves_to_the_queue_of_a_member_that_keeps_refusing() {
    let waits = Plan { retries: 12, ..plan(3, false) };
    let (mut machine, _) = Round::begin(waits, Start::Queued, &ORDER, at(0));
    waited(&mut machine, 1, 2, Vote::Granted(()));
    let mut last = vote(&mut machine, 2, &[(2, granted(5)), (0, taken()), (1, taken())]);
    let mut tries = 0;
    while last.verdict == Verdict::TryAgain {
        tries += 1;
        machine.ask_again();
        last = vote(&mut machine, 2, &[(0, taken()), (1, taken())]);
    }
    assert_eq!((last.verdict, tries), (Verdict::Failed(FailureReason::Taken), 5));
    assert_eq!(machine.next_queue(), Some(Member(0)));
    // No queue follows the last one, so the client stays there although an earlier member refuses.
    let (mut machine, _) = Round::begin(waits, Start::Queued, &ORDER[2..], at(0));
    waited(&mut machine, 1, 1, Vote::Granted(()));
    let last = vote(&mut machine, 2, &[(2, taken()), (1, granted(5)), (0, granted(5))]);
    assert_eq!(machine.next_queue(), Some(Member(1)));
    assert_eq!(last.verdict, acquired(None, 1 + TRUSTED));
}

/// In the second case the order does not name the first member: it is missing, or the other clients left its
/// queue.
#[test]
fn a_client_stays_at_a_later_queue_that_it_waited_in() {
    for (order, stays) in [(&ORDER[..], None), (&ORDER[1..], Some(Member(0)))] {
        let (mut machine, _) = Round::begin(plan(3, false), Start::Queued, order, at(0));
        waited(&mut machine, 1, order[0].0, Vote::Granted(()));
        let after_two = vote(&mut machine, 2, &[(0, granted(5)), (1, granted(5))]);
        assert_eq!(after_two.verdict, acquired(None, 1 + TRUSTED));
        assert_eq!(machine.next_queue(), stays);
    }
}
