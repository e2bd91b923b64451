//! The checker of histories rejects impossible histories and accepts all others.

use dlock_testkit::history::{At, Break, Grant, History, Hold, Look, Mode};

fn hold(token: &str, asked: At, at: At, until: At, fence: i64) -> Hold {
    Hold {
        key: "k".into(),
        token: token.into(),
        mode: Mode::Exclusive,
        asked,
        grant: Some(Grant { fence, at, until }),
        gone: None,
    }
}

fn of(holds: &[Hold]) -> History {
    History { holds: holds.to_vec(), ..History::default() }
}

fn look(asked: At, answered: At, holders: &[(&str, i64)], queue: &[&str]) -> Look {
    Look {
        key: "k".into(),
        asked,
        answered,
        holders: holders.iter().map(|(token, fence)| (token.to_string(), *fence)).collect(),
        queue: queue.iter().map(|token| token.to_string()).collect(),
        held_back: false,
    }
}

#[track_caller]
fn rejected(found: Vec<String>, words: &str) {
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(words), "{found:?} says nothing of {words:?}");
}

#[track_caller]
fn fine(history: &History) {
    let found = [history.exclusion(), history.fences(), history.reported_holders(), history.queue()].concat();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn consecutive_holds_are_accepted() {
    let mut released = hold("a", 10, 20, 50, 1);
    released.gone = Some(55);
    // Requested while still held, and granted before the reply to the release.
    let history = of(&[released, hold("b", 30, 52, 90, 2)]);
    fine(&History { looks: vec![look(21, 29, &[("a", 1)], &[]), look(60, 70, &[("b", 2)], &[])], ..history });
}

#[test]
fn two_holders_at_once_are_rejected() {
    rejected(of(&[hold("a", 10, 20, 50, 1), hold("b", 30, 40, 90, 2)]).exclusion(), "incompatible holds");
    // Also if the second hold ended within the first.
    rejected(of(&[hold("a", 10, 20, 100, 1), hold("b", 30, 40, 50, 2)]).exclusion(), "b on k");
}

#[test]
fn holds_of_different_keys_may_overlap() {
    let mut other = hold("b", 30, 40, 90, 2);
    other.key = "other".into();
    fine(&of(&[hold("a", 10, 20, 50, 1), other]));
}

#[test]
fn sharers_overlap_only_with_sharers() {
    let in_mode = |mut hold: Hold, mode| {
        hold.mode = mode;
        hold
    };
    let shared = |token, asked, fence| in_mode(hold(token, asked, asked + 10, 100, fence), Mode::Shared);
    fine(&of(&[shared("a", 10, 1), shared("b", 11, 2), shared("c", 12, 3)]));
    rejected(of(&[shared("a", 10, 1), hold("b", 30, 40, 90, 2)]).exclusion(), "a on k");
    rejected(of(&[hold("a", 10, 20, 90, 1), shared("b", 30, 2)]).exclusion(), "b on k");
}

#[test]
fn too_many_permits_are_rejected() {
    let permit = |token, asked, until, fence| {
        let mut hold = hold(token, asked, asked + 5, until, fence);
        hold.mode = Mode::Permits(2);
        hold
    };
    fine(&of(&[permit("a", 10, 50, 1), permit("b", 11, 100, 2), permit("c", 50, 100, 3)]));
    let three = of(&[permit("a", 10, 50, 1), permit("b", 11, 100, 2), permit("c", 30, 100, 3)]);
    rejected(three.exclusion(), "3 clients relied on 2 permits");
}

#[test]
fn a_broken_hold_may_be_overlapped() {
    let history = of(&[hold("a", 10, 20, 500, 1), hold("b", 30, 45, 90, 2)]);
    let broken = |asked, answered| Break { key: "k".into(), asked, answered };
    fine(&History { breaks: vec![broken(40, 44)], ..history });
    // A break before the request ends nothing of the hold.
    let history = of(&[hold("a", 10, 20, 500, 1), hold("b", 30, 45, 90, 2)]);
    rejected(History { breaks: vec![broken(5, 9)], ..history }.exclusion(), "a on k");
}

#[test]
fn a_repeated_fence_is_rejected() {
    rejected(of(&[hold("a", 10, 20, 25, 7), hold("b", 15, 40, 90, 7)]).fences(), "the same fence");
}

#[test]
fn a_falling_fence_is_rejected() {
    rejected(of(&[hold("a", 10, 20, 25, 7), hold("b", 30, 40, 90, 6)]).fences(), "b on k");
    // Fences rise over all keys of a server.
    let mut other = hold("b", 30, 40, 90, 6);
    other.key = "other".into();
    rejected(of(&[hold("a", 10, 20, 25, 7), other]).fences(), "b on other");
    // Requested at the same time, either may be the first.
    fine(&of(&[hold("a", 10, 32, 33, 7), hold("b", 30, 40, 90, 6)]));
}

#[test]
fn a_lost_hold_is_rejected() {
    let with = |looks: Vec<Look>| History { looks, ..of(&[hold("a", 10, 20, 100, 1)]) };
    rejected(with(vec![look(30, 40, &[], &[])]).reported_holders(), "is missing from the report");
    // The hold may have ended during the observation, or not have begun.
    fine(&with(vec![look(90, 101, &[], &[]), look(15, 19, &[], &[]), look(30, 40, &[("a", 1)], &[])]));
}

#[test]
fn an_ended_hold_that_returns_is_rejected() {
    let mut released = hold("a", 10, 20, 50, 1);
    released.gone = Some(60);
    let with = |looks: Vec<Look>| History { looks, ..of(std::slice::from_ref(&released)) };
    rejected(with(vec![look(61, 70, &[("a", 1)], &[])]).reported_holders(), "is reported after its end");
    fine(&with(vec![look(55, 70, &[("a", 1)], &[])]));
}

#[test]
fn a_hold_without_a_request_is_rejected() {
    let with = |looks: Vec<Look>| History { looks, ..of(&[hold("a", 10, 20, 50, 1)]) };
    rejected(with(vec![look(30, 40, &[("x", 1)], &[])]).forged(), "never asked");
    rejected(with(vec![look(30, 40, &[("a", 2)], &[])]).forged(), "with the fence 2");
    // A request without a reply may have been granted.
    let mut unanswered = hold("a", 10, 0, 0, 0);
    unanswered.grant = None;
    fine(&History { looks: vec![look(30, 40, &[("a", 9)], &[])], ..of(&[unanswered]) });
}

#[test]
fn two_holders_in_one_observation_are_rejected() {
    let history = of(&[hold("a", 10, 20, 25, 1), hold("b", 22, 32, 50, 2)]);
    let found = History { looks: vec![look(26, 40, &[("a", 1), ("b", 2)], &[])], ..history }.forged();
    assert!(found[0].contains("2 holders are reported, at most 1"), "{found:?}");
}

#[test]
fn a_grant_out_of_queue_order_is_rejected() {
    let holds = [hold("a", 5, 6, 30, 1), hold("b", 10, 60, 70, 3), hold("c", 11, 40, 50, 2)];
    let kept = look(20, 25, &[("a", 1)], &["c", "b"]);
    fine(&History { looks: vec![kept], ..of(&holds) });
    let other = look(20, 25, &[("a", 1)], &["b", "c"]);
    rejected(History { looks: vec![other], ..of(&holds) }.queue(), "waited behind");
}

#[test]
fn a_newcomer_that_overtakes_the_queue_is_rejected() {
    let holds = [hold("a", 5, 6, 30, 1), hold("b", 10, 60, 70, 3), hold("late", 26, 40, 50, 2)];
    let seen = look(20, 25, &[("a", 1)], &["b"]);
    rejected(History { looks: vec![seen], ..of(&holds) }.queue(), "was granted before it");
    // A request before the observation may have been further ahead in the queue.
    let holds = [hold("a", 5, 6, 30, 1), hold("b", 10, 60, 70, 3), hold("early", 24, 40, 50, 2)];
    fine(&History { looks: vec![look(20, 25, &[("a", 1)], &["b"])], ..of(&holds) });
}

#[test]
fn a_waiter_that_left_the_queue_does_not_count() {
    let mut left = hold("b", 10, 0, 0, 0);
    left.grant = None;
    let holds = [hold("a", 5, 6, 30, 1), left, hold("late", 26, 40, 50, 2)];
    fine(&History { looks: vec![look(20, 25, &[("a", 1)], &["b"])], ..of(&holds) });
}

#[test]
fn a_free_lock_with_waiters_is_rejected() {
    let forgotten = look(20, 25, &[], &["b"]);
    let mut b = hold("b", 10, 60, 70, 3);
    rejected(History { looks: vec![forgotten.clone()], ..of(&[b.clone()]) }.queue(), "free at");
    fine(&History { looks: vec![Look { held_back: true, ..forgotten }], ..of(&[b.clone()]) });
    b.grant = None;
    rejected(History { looks: vec![look(20, 25, &[], &["b"])], ..of(&[b]) }.queue(), "free at");
}
