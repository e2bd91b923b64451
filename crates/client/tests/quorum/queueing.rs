use super::words::*;
use dlock_client::quorum::*;

const ORDER: [Member; 3] = [Member(2), Member(0), Member(1)];

fn queued() -> Acquisition {
    let plan = Plan { retries: 1, ..plan(3, false) };
    let (machine, sends) = Acquisition::queued(plan, &ORDER, at(0));
    assert_eq!(sent(&sends, Request::Wait), [2]);
    assert_eq!(sends.len(), 1, "never at two");
    machine
}

#[test]
fn what_was_waited_for_is_always_confirmed() {
    let mut machine = queued();
    let granted_there = hear(&mut machine, 60_000, Request::Wait, &[(2, granted(5))]);
    assert_eq!(sent(&granted_there.sends, Request::Acquire), [0, 1]);
    let confirm_phase = vote(&mut machine, 60_010, &[(1, granted(4))]);
    assert_eq!(sent(&confirm_phase.sends, confirm(5, 0)), [1, 2], "also where no fence is asked for");
    let two = hear(&mut machine, 60_020, confirm(5, 0), &[(1, granted(5)), (2, granted(5))]);
    assert_eq!(two.verdict, acquired(None, 60_010 + TRUSTED));

    let (mut machine, _) = Acquisition::queued(plan(3, true), &ORDER, at(0));
    hear(&mut machine, 60_000, Request::Wait, &[(2, granted(5))]);
    vote(&mut machine, 60_010, &[(1, granted(4))]);
    let two = hear(&mut machine, 60_020, confirm(5, 0), &[(1, granted(5)), (2, granted(5))]);
    assert_eq!(two.verdict, acquired(Some(5), 60_010 + TRUSTED), "it was asked for");
}

#[test]
fn a_single_server_confirms_it_too() {
    let (mut machine, _) = Acquisition::queued(plan(1, false), &[Member(0)], at(0));
    let granted_there = hear(&mut machine, 60_000, Request::Wait, &[(0, granted(5))]);
    assert_eq!(granted_there.verdict, Verdict::Open);
    assert_eq!(sent(&granted_there.sends, confirm(5, 0)), [0]);
    let one = hear(&mut machine, 60_001, confirm(5, 0), &[(0, granted(5))]);
    assert_eq!(one.verdict, acquired(Some(5), 60_000 + TRUSTED));
}

#[test]
fn the_queue_is_at_the_first_master_that_can_be_reached() {
    let mut machine = queued();
    let next = hear(&mut machine, 1, Request::Wait, &[(2, down())]);
    assert_eq!(next.sends.to_vec(), [Outgoing { to: Member(0), what: Request::Wait }]);
    let next = hear(&mut machine, 2, Request::Wait, &[(0, Vote::Refused(Refusal::Grace(TTL)))]);
    assert_eq!(next.sends.to_vec(), [Outgoing { to: Member(1), what: Request::Wait }]);
    let failed = hear(&mut machine, 3, Request::Wait, &[(1, down())]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Impossible));
    assert_eq!(sent(&failed.sends, Request::Release), [0, 1, 2]);
}

#[test]
fn a_silent_queue_is_left_before_the_next_is_joined_and_its_master_is_asked_later() {
    let mut machine = queued();
    let next = hear(&mut machine, 1, Request::Wait, &[(2, Vote::Unknown)]);
    let leave = Outgoing { to: Member(2), what: Request::Leave };
    assert_eq!(next.sends.to_vec(), [leave, Outgoing { to: Member(0), what: Request::Wait }]);
    let granted_there = hear(&mut machine, 2, Request::Wait, &[(0, granted(5))]);
    assert_eq!(sent(&granted_there.sends, Request::Acquire), [1, 2]);
}

#[test]
fn who_waits_in_vain_or_for_itself_asks_nobody_else() {
    for refusal in [Refusal::Taken, Refusal::QueueFull, Refusal::Deadlock("a -> b -> a".into())] {
        let mut machine = queued();
        let failed = hear(&mut machine, 1, Request::Wait, &[(2, Vote::Refused(refusal))]);
        assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
    }
}

#[test]
fn a_granted_waiter_asks_again_where_the_last_holder_is_still_leaving() {
    let mut machine = queued();
    hear(&mut machine, 1, Request::Wait, &[(2, granted(5))]);
    let not_yet = vote(&mut machine, 2, &[(0, taken()), (1, taken())]);
    assert_eq!(not_yet.verdict, Verdict::TryAgain);
    assert_eq!(sent(&machine.ask_again(), Request::Acquire), [0, 1]);
    let confirm_phase = vote(&mut machine, 9, &[(0, granted(4))]);
    assert_eq!(sent(&confirm_phase.sends, confirm(5, 0)), [0, 2]);
}

#[test]
fn a_probe_acquires_with_a_majority_of_the_others() {
    let (mut machine, sends) = Acquisition::probe(plan(3, false), Member(2), at(100));
    assert_eq!(sent(&sends, Request::Acquire), [0, 1]);
    assert_eq!(sends.len(), 2);
    let two = vote(&mut machine, 110, &[(0, granted(4)), (1, granted(5))]);
    assert_eq!(
        two.verdict,
        acquired(None, 100 + TRUSTED),
        "it did not wait, so its grants count from the sending"
    );

    let (mut machine, _) = Acquisition::probe(plan(3, false), Member(2), at(100));
    let failed = vote(&mut machine, 110, &[(0, granted(4)), (1, taken())]);
    assert_eq!(failed.verdict, Verdict::Failed(FailureReason::Taken));
}

#[test]
fn the_fence_of_a_probe_is_confirmed_by_those_who_granted() {
    let (mut machine, _) = Acquisition::probe(plan(5, true), Member(0), at(0));
    let confirm_phase = vote(&mut machine, 10, &[(1, granted(4)), (2, granted(9)), (3, granted(5))]);
    assert_eq!(sent(&confirm_phase.sends, confirm(9, 0)), [1, 2, 3]);
}
