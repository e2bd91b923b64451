use super::words::*;
use dlock_quorum::*;

const ORDER: [Member; 3] = [Member(2), Member(0), Member(1)];

fn queued() -> Acquisition {
    let plan = Plan { retries: 1, ..plan(3, false) };
    let (machine, sends) = Acquisition::queued(plan, &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Wait), [2]);
    assert_eq!(sends.len(), 1, "never at two");
    machine
}

#[test]
fn what_was_waited_for_is_claimed_and_counts_from_there() {
    let mut machine = queued();
    let turn = waited(&mut machine, 60_000, 2, Vote::Granted(()));
    assert_eq!(sent(&turn.sends, Request::Acquire), [0, 1, 2], "there too");
    assert_eq!(waited(&mut machine, 60_005, 2, Vote::Granted(())).sends.len(), 0, "told twice");
    let two = vote(&mut machine, 60_010, &[(1, granted(4)), (2, granted(5))]);
    assert_eq!(two.verdict, acquired(None, 60_000 + TRUSTED));

    let (mut machine, _) = Acquisition::queued(plan(3, true), &ORDER, at(0));
    waited(&mut machine, 60_000, 2, Vote::Granted(()));
    let confirm_phase = vote(&mut machine, 60_010, &[(1, granted(4)), (2, granted(5))]);
    assert_eq!(sent(&confirm_phase.sends, confirm(5, 0)), [1, 2]);
    let two = hear(&mut machine, 60_020, confirm(5, 0), &[(1, granted(5)), (2, granted(5))]);
    assert_eq!(two.verdict, acquired(Some(5), 60_011 + TRUSTED));
}

#[test]
fn a_single_server_is_asked_again_too() {
    let (mut machine, _) = Acquisition::queued(plan(1, false), &[Member(0)], at(0));
    let turn = waited(&mut machine, 60_000, 0, Vote::Granted(()));
    assert_eq!(turn.verdict, Verdict::Open, "it may be over");
    assert_eq!(sent(&turn.sends, Request::Acquire), [0]);
    let one = vote(&mut machine, 60_001, &[(0, granted(5))]);
    assert_eq!(one.verdict, acquired(Some(5), 60_000 + TRUSTED));
}

#[test]
fn the_queue_is_at_the_first_master_that_can_be_reached() {
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
fn a_silent_queue_is_left_before_the_next_is_joined_and_its_master_is_asked_later() {
    let mut machine = queued();
    let next = waited(&mut machine, 1, 2, Vote::Unknown);
    let leave = Outgoing { to: Member(2), what: Request::Leave };
    assert_eq!(next.sends.to_vec(), [leave, Outgoing { to: Member(0), what: Request::Wait }]);
    let turn = waited(&mut machine, 2, 0, Vote::Granted(()));
    assert_eq!(sent(&turn.sends, Request::Acquire), [0, 1, 2]);
}

#[test]
fn who_waits_in_vain_or_for_itself_asks_nobody_else() {
    for refusal in [Refusal::Taken, Refusal::QueueFull, Refusal::Deadlock("a -> b -> a".into())] {
        let mut machine = queued();
        let failed = waited(&mut machine, 1, 2, Vote::Refused(refusal));
        assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
    }
}

#[test]
fn a_granted_waiter_asks_again_where_the_last_holder_is_still_leaving() {
    let mut machine = queued();
    waited(&mut machine, 1, 2, Vote::Granted(()));
    let not_yet = vote(&mut machine, 2, &[(2, granted(5)), (0, taken()), (1, taken())]);
    assert_eq!(not_yet.verdict, Verdict::TryAgain);
    assert_eq!(sent(&machine.ask_again(), Request::Acquire), [0, 1]);
    let two = vote(&mut machine, 9, &[(0, granted(4))]);
    assert_eq!(two.verdict, acquired(None, 1 + TRUSTED), "from the first request");
}

/// What the master of the queue alone still has keeps nobody out, where nobody waits.
#[test]
fn a_newcomer_passes_a_hold_that_one_master_has_alone_but_no_waiter() {
    for somebody_waits in [false, true] {
        let (mut machine, sends) = Acquisition::at_once(plan(3, false), &ORDER, at(100));
        assert_eq!(sent(&sends, Request::Acquire), [0, 1, 2]);
        let two = vote(&mut machine, 110, &[(0, granted(4)), (1, granted(5))]);
        assert_eq!(two.verdict, Verdict::Open, "the master of the queue is heard first");
        let refused = vote(&mut machine, 120, &[(2, taken())]);
        assert_eq!(sent(&refused.sends, Request::Look), [2]);
        let said = if somebody_waits { taken() } else { Vote::Refused(Refusal::NotHeld) };
        let looked = hear(&mut machine, 130, Request::Look, &[(2, said)]);
        if somebody_waits {
            assert_eq!(looked.verdict, Verdict::Failed(FailureReason::Taken));
            assert_eq!(sent(&looked.sends, Request::Release), [0, 1, 2]);
        } else {
            assert_eq!(looked.verdict, acquired(None, 100 + TRUSTED), "validity counts from the first send");
            assert_eq!(machine.next_queue(), Some(Member(0)));
        }
    }
}

#[test]
fn a_silent_master_of_the_queue_is_passed() {
    let (mut machine, _) = Acquisition::at_once(plan(3, false), &ORDER, at(0));
    vote(&mut machine, 1, &[(0, granted(4)), (1, granted(5))]);
    assert_eq!(vote(&mut machine, 2, &[(2, Vote::Unknown)]).verdict, acquired(None, TRUSTED));
}

#[test]
fn of_those_who_ask_in_order_only_one_gets_to_the_others() {
    let (mut machine, sends) = Acquisition::in_order(plan(3, false), &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Acquire), [2]);
    assert_eq!(vote(&mut machine, 1, &[(2, taken())]).verdict, Verdict::Failed(FailureReason::Taken));

    let (mut machine, _) = Acquisition::in_order(plan(3, false), &ORDER, at(0));
    let next = vote(&mut machine, 1, &[(2, down())]);
    assert_eq!(sent(&next.sends, Request::Acquire), [0]);
    assert_eq!(sent(&vote(&mut machine, 2, &[(0, granted(5))]).sends, Request::Acquire), [1, 2]);
    assert_eq!(vote(&mut machine, 3, &[(1, granted(6))]).verdict, acquired(None, TRUSTED), "it did not wait");
}

/// Others came in by a later queue: it goes to them, for they cannot come.
#[test]
fn who_is_refused_in_its_turn_goes_to_the_queue_of_those_who_refuse() {
    let waits = Plan { retries: 12, ..plan(3, false) };
    let (mut machine, _) = Acquisition::queued(waits, &ORDER, at(0));
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
    // The last of the order has nowhere to go, and stays as long as an earlier one refuses.
    let (mut machine, _) = Acquisition::queued(waits, &ORDER[2..], at(0));
    waited(&mut machine, 1, 1, Vote::Granted(()));
    let last = vote(&mut machine, 2, &[(2, taken()), (1, granted(5)), (0, granted(5))]);
    assert_eq!(machine.next_queue(), Some(Member(1)));
    assert_eq!(last.verdict, acquired(None, 1 + TRUSTED));
}

/// Here the first of the order is not named: it is missing, or the others have left its queue.
#[test]
fn who_waited_in_a_later_queue_than_the_first_stays_there() {
    for (order, stays) in [(&ORDER[..], None), (&ORDER[1..], Some(Member(0)))] {
        let (mut machine, _) = Acquisition::queued(plan(3, false), order, at(0));
        waited(&mut machine, 1, order[0].0, Vote::Granted(()));
        let two = vote(&mut machine, 2, &[(0, granted(5)), (1, granted(5))]);
        assert_eq!(two.verdict, acquired(None, 1 + TRUSTED));
        assert_eq!(machine.next_queue(), stays);
    }
}

#[test]
fn a_queue_moves_unless_its_holder_has_no_majority() {
    let quorum = plan(3, false).quorum;
    let seen = |holders: [Option<&'static str>; 3]| holders.map(|there| there.map(|holder| vec![holder]));
    for (holders, moves) in [
        ([Some("a"), Some("a"), Some("b")], true),
        ([Some("a"), Some("b"), Some("b")], false),
        ([Some("a"), Some("b"), None], true),
        ([None, Some("b"), Some("b")], true),
    ] {
        assert_eq!(quorum.may_move(Member(0), &seen(holders)), moves, "{holders:?}");
    }
    assert!(!quorum.may_move(Member(0), &[Some(vec!["a"]), Some(vec![]), Some(vec![])]));
    assert!(quorum.may_move(Member(0), &[Some(vec![]), Some(vec!["b"]), Some(vec!["b"])]));
    assert!(quorum.has_holder(&seen([Some("a"), None, Some("a")])));
    assert!(!quorum.has_holder(&seen([Some("a"), Some("b"), Some("c")])));
}
