//! A history has the acquisitions of clients, and the server's reports of holders and waiters. The
//! checks reject impossible histories and accept all others.

use dlock_testkit::history::{At, Break, Grant, History, Hold, Mode, Report};

/// Returns an exclusive hold that a client requested at `asked`, got at `at` and relied on until `until`.
fn hold(token: &str, asked: At, at: At, until: At, fence: i64) -> Hold {
    Hold {
        key: "k".into(),
        token: token.into(),
        mode: Mode::Exclusive,
        asked,
        grant: Some(Grant { fence, at, until }),
        ended: None,
    }
}

fn with_holds(holds: &[Hold]) -> History {
    History { holds: holds.to_vec(), ..History::default() }
}

fn report(asked: At, answered: At, holders: &[(&str, i64)], queue: &[&str]) -> Report {
    Report {
        key: "k".into(),
        asked,
        answered,
        holders: holders.iter().map(|(token, fence)| (token.to_string(), *fence)).collect(),
        queue: queue.iter().map(|token| token.to_string()).collect(),
        grants_paused: false,
    }
}

fn with_reports(holds: &[Hold], reports: &[Report]) -> History {
    History { reports: reports.to_vec(), ..with_holds(holds) }
}

#[track_caller]
fn reject(found: Vec<String>, words: &str) {
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].contains(words), "{found:?} does not contain {words:?}");
}

/// Runs all checks. That of `wrong_holders` is a part of `reported_holders`.
#[track_caller]
fn accept(history: &History) {
    let found = [history.exclusion(), history.fences(), history.reported_holders(), history.queue()].concat();
    assert!(found.is_empty(), "{found:?}");
}

#[test]
fn consecutive_holds_are_accepted() {
    let mut released = hold("a", 10, 20, 50, 1);
    released.ended = Some(55);
    // `b` is requested while `a` is held, and granted before the reply to the release of `a`.
    let holds = [released, hold("b", 30, 52, 90, 2)];
    accept(&with_reports(&holds, &[report(21, 29, &[("a", 1)], &[]), report(60, 70, &[("b", 2)], &[])]));
}

#[test]
fn two_holders_at_once_are_rejected() {
    reject(with_holds(&[hold("a", 10, 20, 50, 1), hold("b", 30, 40, 90, 2)]).exclusion(), "incompatible");
    // Here, the second hold ends before the first one.
    reject(with_holds(&[hold("a", 10, 20, 100, 1), hold("b", 30, 40, 50, 2)]).exclusion(), "b on k");
}

#[test]
fn holds_of_different_keys_may_overlap() {
    let mut other = hold("b", 30, 40, 90, 2);
    other.key = "other".into();
    accept(&with_holds(&[hold("a", 10, 20, 50, 1), other]));
}

#[test]
fn sharers_overlap_only_with_sharers() {
    let in_mode = |mut hold: Hold, mode| {
        hold.mode = mode;
        hold
    };
    let shared = |token, asked, fence| in_mode(hold(token, asked, asked + 10, 100, fence), Mode::Shared);
    accept(&with_holds(&[shared("a", 10, 1), shared("b", 11, 2), shared("c", 12, 3)]));
    reject(with_holds(&[shared("a", 10, 1), hold("b", 30, 40, 90, 2)]).exclusion(), "a on k");
    reject(with_holds(&[hold("a", 10, 20, 90, 1), shared("b", 30, 2)]).exclusion(), "b on k");
}

#[test]
fn too_many_permits_are_rejected() {
    let permit = |token, asked, until, fence| {
        let mut hold = hold(token, asked, asked + 5, until, fence);
        hold.mode = Mode::Permits(2);
        hold
    };
    accept(&with_holds(&[permit("a", 10, 50, 1), permit("b", 11, 100, 2), permit("c", 50, 100, 3)]));
    let three = with_holds(&[permit("a", 10, 50, 1), permit("b", 11, 100, 2), permit("c", 30, 100, 3)]);
    reject(three.exclusion(), "3 clients relied on 2 permits");
}

#[test]
fn a_hold_ended_by_dlock_break_may_be_overlapped() {
    let history = with_holds(&[hold("a", 10, 20, 500, 1), hold("b", 30, 45, 90, 2)]);
    let broken = |asked, answered| Break { key: "k".into(), asked, answered };
    accept(&History { breaks: vec![broken(40, 44)], ..history });
    // A break before the request does not end the hold.
    let history = with_holds(&[hold("a", 10, 20, 500, 1), hold("b", 30, 45, 90, 2)]);
    reject(History { breaks: vec![broken(5, 9)], ..history }.exclusion(), "a on k");
}

#[test]
fn a_repeated_fence_is_rejected() {
    reject(with_holds(&[hold("a", 10, 20, 25, 7), hold("b", 15, 40, 90, 7)]).fences(), "the same fence");
}

#[test]
fn a_falling_fence_is_rejected() {
    reject(with_holds(&[hold("a", 10, 20, 25, 7), hold("b", 30, 40, 90, 6)]).fences(), "b on k");
    // Fences rise over all keys of a server.
    let mut other = hold("b", 30, 40, 90, 6);
    other.key = "other".into();
    reject(with_holds(&[hold("a", 10, 20, 25, 7), other]).fences(), "b on other");
    // If two requests overlap in time, either may get the lower fence.
    accept(&with_holds(&[hold("a", 10, 32, 33, 7), hold("b", 30, 40, 90, 6)]));
}

#[test]
fn a_hold_missing_from_a_report_is_rejected() {
    let holds = [hold("a", 10, 20, 100, 1)];
    let lost = with_reports(&holds, &[report(30, 40, &[], &[])]);
    reject(lost.reported_holders(), "is missing from the report");
    // The hold may have ended during the report, or not have begun.
    let reports = [report(90, 101, &[], &[]), report(15, 19, &[], &[]), report(30, 40, &[("a", 1)], &[])];
    accept(&with_reports(&holds, &reports));
}

#[test]
fn an_ended_hold_that_returns_is_rejected() {
    let mut released = hold("a", 10, 20, 50, 1);
    released.ended = Some(60);
    let holds = [released];
    let returned = with_reports(&holds, &[report(61, 70, &[("a", 1)], &[])]);
    reject(returned.reported_holders(), "is reported after its end");
    accept(&with_reports(&holds, &[report(55, 70, &[("a", 1)], &[])]));
}

#[test]
fn a_hold_without_a_request_is_rejected() {
    let holds = [hold("a", 10, 20, 50, 1)];
    reject(with_reports(&holds, &[report(30, 40, &[("x", 1)], &[])]).wrong_holders(), "never asked");
    reject(with_reports(&holds, &[report(30, 40, &[("a", 2)], &[])]).wrong_holders(), "with the fence 2");
    // A request without a reply may have been granted.
    let mut unanswered = hold("a", 10, 0, 0, 0);
    unanswered.grant = None;
    accept(&with_reports(&[unanswered], &[report(30, 40, &[("a", 9)], &[])]));
}

#[test]
fn two_holders_in_one_report_are_rejected() {
    let holds = [hold("a", 10, 20, 25, 1), hold("b", 22, 32, 50, 2)];
    let found = with_reports(&holds, &[report(26, 40, &[("a", 1), ("b", 2)], &[])]).wrong_holders();
    assert!(found[0].contains("2 holders are reported, at most 1 are allowed"), "{found:?}");
}

#[test]
fn a_grant_out_of_queue_order_is_rejected() {
    let holds = [hold("a", 5, 6, 30, 1), hold("b", 10, 60, 70, 3), hold("c", 11, 40, 50, 2)];
    let in_order = report(20, 25, &[("a", 1)], &["c", "b"]);
    accept(&with_reports(&holds, &[in_order]));
    let out_of_order = report(20, 25, &[("a", 1)], &["b", "c"]);
    reject(with_reports(&holds, &[out_of_order]).queue(), "waited behind");
}

#[test]
fn a_newcomer_that_overtakes_the_queue_is_rejected() {
    let holds = [hold("a", 5, 6, 30, 1), hold("b", 10, 60, 70, 3), hold("late", 26, 40, 50, 2)];
    let seen = report(20, 25, &[("a", 1)], &["b"]);
    reject(with_reports(&holds, &[seen]).queue(), "was granted before it");
    // If a request is sent before the report arrives, the request may reach the server before the report is
    // made.
    let holds = [hold("a", 5, 6, 30, 1), hold("b", 10, 60, 70, 3), hold("early", 24, 40, 50, 2)];
    accept(&with_reports(&holds, &[report(20, 25, &[("a", 1)], &["b"])]));
}

#[test]
fn a_newcomer_that_overtakes_a_waiter_that_left_is_accepted() {
    let mut left = hold("b", 10, 0, 0, 0);
    left.grant = None;
    let holds = [hold("a", 5, 6, 30, 1), left, hold("late", 26, 40, 50, 2)];
    accept(&with_reports(&holds, &[report(20, 25, &[("a", 1)], &["b"])]));
}

#[test]
fn a_free_lock_with_waiters_is_rejected() {
    let free = report(20, 25, &[], &["b"]);
    let mut b = hold("b", 10, 60, 70, 3);
    reject(with_reports(&[b.clone()], std::slice::from_ref(&free)).queue(), "free at");
    // During a DELAY, for example, the server grants the lock to no client.
    accept(&with_reports(&[b.clone()], &[Report { grants_paused: true, ..free }]));
    b.grant = None;
    reject(with_reports(&[b], &[report(20, 25, &[], &["b"])]).queue(), "free at");
}
