//! Records that the checker must accept or reject.

use crate::record::{Record, Write};
use dlock_testkit::history::{At, Grant, Hold, Mode};

fn hold(name: &str, at: At, until: At, fence: i64) -> Hold {
    let grant = Some(Grant { fence, at, until });
    Hold { key: "r".into(), token: name.into(), mode: Mode::Exclusive, asked: 0, grant, gone: None }
}

fn write(hold: &str, fence: i64, accepted: bool) -> Write {
    Write { resource: "r".into(), fence, hold: hold.into(), accepted, passed: accepted }
}

#[track_caller]
fn rejected(holds: &[Hold], writes: &[Write], words: &str) {
    let wrong = Record { holds: holds.to_vec(), writes: writes.to_vec() }.wrong();
    assert_eq!(wrong.len(), 1, "{wrong:?}");
    assert!(wrong[0].contains(words), "{wrong:?} says nothing of {words:?}");
}

#[test]
fn the_checker_accepts_consecutive_holds_and_a_refused_stale_write() {
    let holds = [hold("a", 10, 20, 1), hold("b", 20, 30, 2)];
    let writes = [write("a", 1, true), write("b", 2, true), write("a", 1, false), write("b", 2, true)];
    assert_eq!(Record { holds: holds.to_vec(), writes: writes.to_vec() }.wrong(), [""; 0]);
}

#[test]
fn the_checker_accepts_a_stale_write_before_the_next_holders_first() {
    let holds = [hold("a", 10, 20, 1), hold("b", 25, 30, 2)];
    let writes = [write("a", 1, true), write("b", 2, true)];
    assert_eq!(Record { holds: holds.to_vec(), writes: writes.to_vec() }.wrong(), [""; 0]);
}

#[test]
fn the_checker_reads_a_late_end_as_before_the_next_hold() {
    // The client was paused during its acquisition, and the next one was faster.
    let record = Record { holds: vec![hold("a", 40, 20, 1), hold("b", 25, 30, 2)], writes: Vec::new() };
    assert_eq!(record.wrong(), [""; 0]);
}

#[test]
fn the_checker_rejects_two_valid_holds_at_once() {
    rejected(&[hold("a", 10, 30, 1), hold("b", 20, 40, 2)], &[], "a on r");
}

#[test]
fn the_checker_rejects_a_fence_that_does_not_rise() {
    rejected(&[hold("a", 10, 20, 2), hold("b", 30, 40, 1)], &[], "fence order");
    rejected(&[hold("a", 10, 20, 2), hold("b", 30, 40, 2)], &[], "fence order");
}

#[test]
fn the_checker_rejects_an_accepted_stale_write() {
    let holds = [hold("a", 10, 20, 1), hold("b", 30, 40, 2)];
    rejected(&holds, &[write("b", 2, true), write("a", 1, true)], "stale");
}

#[test]
fn the_checker_rejects_a_write_of_an_unknown_hold() {
    rejected(&[], &[write("a", 1, true)], "no client had the hold");
    rejected(&[hold("a", 10, 20, 1)], &[write("a", 2, true)], "no client had the hold");
}

#[test]
fn the_checker_rejects_a_gate_that_differs_from_the_store() {
    let holds = [hold("a", 10, 20, 1), hold("b", 30, 40, 2)];
    for accepted in [true, false] {
        let last = Write { passed: !accepted, ..write("b", 2, accepted) };
        rejected(&holds, &[write("a", 1, true), last], "gate");
    }
}
