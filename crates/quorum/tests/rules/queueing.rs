//! The queue of a round: the member in whose queue a client waits, the requests after the grant, and clients
//! that must not overtake the waiters. `ORDER` has the members where clients queue, the first choice first.

use super::helpers::*;
use dlock_quorum::*;

const ORDER: [Member; 3] = [Member(2), Member(0), Member(1)];

fn queued() -> Round {
    let plan = Plan { retries: 1, ..plan(3, false) };
    let (round, sends) = Round::begin(plan, Start::Queued, &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Wait), [2]);
    assert_eq!(sends.len(), 1, "the client queues at one member only");
    round
}

#[test]
fn a_granted_waiter_asks_all_members_and_its_validity_counts_from_these_requests() {
    let mut round = queued();
    let asked = waited(&mut round, 60_000, 2, Vote::Granted(()));
    assert_eq!(sent(&asked.sends, Request::Acquire), [0, 1, 2], "the member of the queue is asked too");
    assert_eq!(waited(&mut round, 60_005, 2, Vote::Granted(())).sends.len(), 0, "a duplicate sends nothing");
    let after_two = vote(&mut round, 60_010, &[(1, granted(4)), (2, granted(5))]);
    assert_eq!(after_two.verdict, acquired(None, 60_000 + VALIDITY));

    let (mut round, _) = Round::begin(plan(3, true), Start::Queued, &ORDER, at(0));
    waited(&mut round, 60_000, 2, Vote::Granted(()));
    let confirm_phase = vote(&mut round, 60_010, &[(1, granted(4)), (2, granted(5))]);
    assert_eq!(sent(&confirm_phase.sends, confirm(5, 0)), [1, 2]);
    let after_two = reply(&mut round, 60_020, confirm(5, 0), &[(1, granted(5)), (2, granted(5))]);
    // The second grant, which `vote` passed at 60,011 ms, began the confirm phase. Validity counts from then.
    assert_eq!(after_two.verdict, acquired(Some(5), 60_011 + VALIDITY));
}

#[test]
fn a_granted_waiter_asks_a_single_server_again() {
    let (mut round, _) = Round::begin(plan(1, false), Start::Queued, &[Member(0)], at(0));
    let asked = waited(&mut round, 60_000, 0, Vote::Granted(()));
    assert_eq!(asked.verdict, Verdict::Open, "the grant may have expired");
    assert_eq!(sent(&asked.sends, Request::Acquire), [0]);
    let after_one = vote(&mut round, 60_001, &[(0, granted(5))]);
    assert_eq!(after_one.verdict, acquired(Some(5), 60_000 + VALIDITY));
}

#[test]
fn a_grant_in_the_queue_of_a_single_server_is_the_hold() {
    let begin = || Round::begin(plan(1, false), Start::Queued, &[Member(0)], at(0)).0;
    let grant = Acquired { fence: Some(fence(5)), valid_until: at(60_000) };
    let held = begin().granted_in_queue(Member(0), grant, at(59_999));
    assert_eq!((held.verdict, held.sends.len()), (acquired(Some(5), 60_000), 0));
    let late = begin().granted_in_queue(Member(0), grant, at(60_000));
    assert_eq!((late.verdict, sent(&late.sends, Request::Acquire)), (Verdict::Open, vec![0]));
    // A member of a quorum is asked again together with the others.
    let mut round = queued();
    let asked = round.granted_in_queue(Member(2), grant, at(1));
    assert_eq!((asked.verdict, sent(&asked.sends, Request::Acquire)), (Verdict::Open, vec![0, 1, 2]));
    assert_eq!(round.granted_in_queue(Member(2), grant, at(2)).sends.len(), 0, "a duplicate sends nothing");
}

#[test]
fn a_client_queues_at_the_first_reachable_member() {
    let mut round = queued();
    let refused = Failure::Down("connection refused".into());
    let next = waited(&mut round, 1, 2, Vote::Failed(refused.clone()));
    assert_eq!(next.sends.to_vec(), [Outgoing { to: Member(0), what: Request::Wait }]);
    let next = waited(&mut round, 2, 0, Vote::Refused(Refusal::Grace(TTL)));
    assert_eq!(next.sends.to_vec(), [Outgoing { to: Member(1), what: Request::Wait }]);
    let failed = waited(&mut round, 3, 1, Vote::Failed(refused));
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
    assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_client_leaves_a_silent_queue_before_it_joins_the_next() {
    let mut round = queued();
    let next = waited(&mut round, 1, 2, Vote::Unknown);
    let leave = Outgoing { to: Member(2), what: Request::Leave };
    assert_eq!(next.sends.to_vec(), [leave, Outgoing { to: Member(0), what: Request::Wait }]);
    let asked = waited(&mut round, 2, 0, Vote::Granted(()));
    assert_eq!(sent(&asked.sends, Request::Acquire), [0, 1, 2]);
}

#[test]
fn a_round_fails_when_the_member_of_its_queue_refuses() {
    for (refusal, reason) in [
        (Refusal::Taken, FailureReason::Taken),
        (Refusal::QueueFull, FailureReason::Taken),
        (Refusal::Deadlock("a -> b -> a".into()), FailureReason::Deadlock),
    ] {
        let mut round = queued();
        let failed = waited(&mut round, 1, 2, Vote::Refused(refusal));
        assert_eq!(failed.verdict, Verdict::Failed(reason));
    }
}

#[test]
fn a_granted_waiter_asks_again_while_its_predecessor_releases() {
    let mut round = queued();
    waited(&mut round, 1, 2, Vote::Granted(()));
    let not_yet = vote(&mut round, 2, &[(2, granted(5)), (0, taken()), (1, taken())]);
    assert_eq!(not_yet.verdict, Verdict::TryAgain);
    assert_eq!(sent(&round.ask_again(), Request::Acquire), [0, 1]);
    let after_two = vote(&mut round, 9, &[(0, granted(4))]);
    assert_eq!(after_two.verdict, acquired(None, 1 + VALIDITY), "validity counts from the first request");
}

#[test]
fn a_newcomer_overtakes_a_partial_hold_but_no_waiter() {
    for has_waiters in [false, true] {
        let (mut round, sends) = Round::begin(plan(3, false), Start::AtOnce, &ORDER, at(100));
        assert_eq!(sent(&sends, Request::Acquire), [0, 1, 2]);
        let after_two = vote(&mut round, 110, &[(0, granted(4)), (1, granted(5))]);
        assert_eq!(after_two.verdict, Verdict::Open, "the member of the queue must answer first");
        let refused = vote(&mut round, 120, &[(2, taken())]);
        assert_eq!(sent(&refused.sends, Request::HasWaiters), [2]);
        let answer = if has_waiters { taken() } else { Vote::Refused(Refusal::NotHeld) };
        let checked = reply(&mut round, 130, Request::HasWaiters, &[(2, answer)]);
        if has_waiters {
            assert_eq!(checked.verdict, Verdict::Failed(FailureReason::Taken));
            assert_eq!(sent(&checked.sends, Request::Release), [0, 1, 2]);
        } else {
            assert_eq!(
                checked.verdict,
                acquired(None, 100 + VALIDITY),
                "validity counts from the first send"
            );
            // Member 2 refused, so the client's next wait starts at the member that follows in `ORDER`.
            assert_eq!(round.next_queue(), Some(Member(0)));
        }
    }
}

#[test]
fn a_newcomer_acquires_when_the_member_of_the_queue_is_silent() {
    let (mut round, _) = Round::begin(plan(3, false), Start::AtOnce, &ORDER, at(0));
    vote(&mut round, 1, &[(0, granted(4)), (1, granted(5))]);
    assert_eq!(vote(&mut round, 2, &[(2, Vote::Unknown)]).verdict, acquired(None, VALIDITY));
}

/// The round asks one member at a time until one grants. A member that is down is passed over; the answer
/// "taken" ends the round.
#[test]
fn a_round_in_order_asks_the_other_members_after_the_first_grant() {
    let (mut round, sends) = Round::begin(plan(3, false), Start::InOrder, &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Acquire), [2]);
    assert_eq!(vote(&mut round, 1, &[(2, taken())]).verdict, Verdict::Failed(FailureReason::Taken));

    let (mut round, _) = Round::begin(plan(3, false), Start::InOrder, &ORDER, at(0));
    let next = vote(&mut round, 1, &[(2, down())]);
    assert_eq!(sent(&next.sends, Request::Acquire), [0]);
    assert_eq!(sent(&vote(&mut round, 2, &[(0, granted(5))]).sends, Request::Acquire), [1, 2]);
    let granted = vote(&mut round, 3, &[(1, granted(6))]);
    assert_eq!(granted.verdict, acquired(None, VALIDITY));
}

/// Members 0 and 1 keep refusing. This is the case if another client cannot reach member 2, has waited in the
/// queue of member 0, and now holds the lock at both. The granted waiter asks members 0 and 1 again 5 times
/// (`RETRIES_BEFORE_NEXT_QUEUE`).
#[test]
fn a_granted_waiter_moves_to_the_queue_of_a_member_that_keeps_refusing() {
    let waits = Plan { retries: 12, ..plan(3, false) };
    let (mut round, _) = Round::begin(waits, Start::Queued, &ORDER, at(0));
    waited(&mut round, 1, 2, Vote::Granted(()));
    let mut last = vote(&mut round, 2, &[(2, granted(5)), (0, taken()), (1, taken())]);
    let mut tries = 0;
    while last.verdict == Verdict::TryAgain {
        tries += 1;
        round.ask_again();
        last = vote(&mut round, 2, &[(0, taken()), (1, taken())]);
    }
    assert_eq!((last.verdict, tries), (Verdict::Failed(FailureReason::Taken), 5));
    assert_eq!(round.next_queue(), Some(Member(0)));
    // A client whose waits start in the last queue of `ORDER`, at member 1, stays there although member 2
    // refuses.
    let (mut round, _) = Round::begin(waits, Start::Queued, &ORDER[2..], at(0));
    waited(&mut round, 1, 1, Vote::Granted(()));
    let last = vote(&mut round, 2, &[(2, taken()), (1, granted(5)), (0, granted(5))]);
    assert_eq!(round.next_queue(), Some(Member(1)));
    assert_eq!(last.verdict, acquired(None, 1 + VALIDITY));
}

/// `ORDER[1..]` is the order of a client whose waits start in the queue of member 0. After a grant in the
/// first queue of `ORDER`, `next_queue` returns `None`: the next wait starts there anyway.
#[test]
fn a_client_stays_in_a_later_queue_that_granted_it_the_lock() {
    for (order, stays) in [(&ORDER[..], None), (&ORDER[1..], Some(Member(0)))] {
        let (mut round, _) = Round::begin(plan(3, false), Start::Queued, order, at(0));
        waited(&mut round, 1, order[0].0, Vote::Granted(()));
        let after_two = vote(&mut round, 2, &[(0, granted(5)), (1, granted(5))]);
        assert_eq!(after_two.verdict, acquired(None, 1 + VALIDITY));
        assert_eq!(round.next_queue(), stays);
    }
}
