//! Tests of the checker in `record.rs`: records of clients' holds and writes that it must accept or reject. A
//! write is stale if it arrives after the end of its hold. A record has the order of the writes, but no
//! times. So the checker detects a stale write only if a later holder has written before it.

use crate::record::{Record, Write};
use dlock_testkit::history::{At, Grant, Hold, Mode};

fn hold(name: &str, at: At, until: At, fence: i64) -> Hold {
    let grant = Some(Grant { fence, at, until });
    Hold { key: "r".into(), token: name.into(), mode: Mode::Exclusive, asked: 0, grant, ended: None }
}

fn write(hold: &str, fence: i64, accepted: bool) -> Write {
    Write { resource: "r".into(), fence, hold: hold.into(), accepted, passed: accepted }
}

#[track_caller]
fn assert_rejected(holds: &[Hold], writes: &[Write], words: &str) {
    let violations = Record { holds: holds.to_vec(), writes: writes.to_vec() }.violations();
    assert_eq!(violations.len(), 1, "{violations:?}");
    assert!(violations[0].contains(words), "{violations:?} does not mention {words:?}");
}

#[test]
fn the_checker_accepts_consecutive_holds_and_a_refused_stale_write() {
    let holds = [hold("a", 10, 20, 1), hold("b", 20, 30, 2)];
    let writes = [write("a", 1, true), write("b", 2, true), write("a", 1, false), write("b", 2, true)];
    assert_eq!(Record { holds: holds.to_vec(), writes: writes.to_vec() }.violations(), [""; 0]);
}

#[test]
fn the_checker_accepts_a_stale_write_before_the_first_write_of_the_next_holder() {
    let holds = [hold("a", 10, 20, 1), hold("b", 25, 30, 2)];
    let writes = [write("a", 1, true), write("b", 2, true)];
    assert_eq!(Record { holds: holds.to_vec(), writes: writes.to_vec() }.violations(), [""; 0]);
}

#[test]
fn the_checker_sorts_a_hold_by_the_end_of_its_validity_if_the_grant_arrived_later() {
    // The first client was paused during its acquisition: it received its hold at 40, after the end at 20.
    // The second client acquired meanwhile, with a greater fence.
    let record = Record { holds: vec![hold("a", 40, 20, 1), hold("b", 25, 30, 2)], writes: Vec::new() };
    assert_eq!(record.violations(), [""; 0]);
}

#[test]
fn the_checker_rejects_two_valid_holds_at_once() {
    assert_rejected(&[hold("a", 10, 30, 1), hold("b", 20, 40, 2)], &[], "a on r");
}

#[test]
fn the_checker_rejects_a_fence_that_does_not_rise() {
    assert_rejected(&[hold("a", 10, 20, 2), hold("b", 30, 40, 1)], &[], "fence order");
    assert_rejected(&[hold("a", 10, 20, 2), hold("b", 30, 40, 2)], &[], "fence order");
}

#[test]
fn the_checker_rejects_an_accepted_stale_write() {
    let holds = [hold("a", 10, 20, 1), hold("b", 30, 40, 2)];
    assert_rejected(&holds, &[write("b", 2, true), write("a", 1, true)], "stale");
}

#[test]
fn the_checker_rejects_a_write_of_an_unknown_hold() {
    assert_rejected(&[], &[write("a", 1, true)], "no client had the hold");
    assert_rejected(&[hold("a", 10, 20, 1)], &[write("a", 2, true)], "no client had the hold");
}

/// `accepted` is the decision of the store, `passed` that of DLOCK.FENCED about the same write.
#[test]
fn the_checker_rejects_a_fenced_reply_that_differs_from_the_store() {
    let holds = [hold("a", 10, 20, 1), hold("b", 30, 40, 2)];
    for accepted in [true, false] {
        let last = Write { passed: !accepted, ..write("b", 2, accepted) };
        assert_rejected(&holds, &[write("a", 1, true), last], "DLOCK.FENCED");
    }
}
