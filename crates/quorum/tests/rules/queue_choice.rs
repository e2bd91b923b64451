//! Tests of the choice of a queue from the members' answers and the client's memory.

use super::helpers::*;
use dlock_quorum::*;
use std::time::Duration;

const FIRST: Member = Member(2);
const SECOND: Member = Member(0);
const THIRD: Member = Member(1);

/// Three members in the order 2, 0, 1; `missing` comes last.
fn order(missing: Option<u8>) -> QueueOrder {
    QueueOrder::new([(0, "b"), (1, "c"), (2, "a")].map(|(member, run_id)| Place {
        member: Member(member),
        is_missing: missing == Some(member),
        run_id: Some(run_id.into()),
        name: "redis://any".into(),
    }))
}

/// The holders at three members, with holds of `age` ms. `""` means no hold, and `None` unknown holders.
fn holders(seen: [Option<&str>; 3], age: u64) -> Holders {
    let holder = |token: &str| Holder { token: token.into(), age: Duration::from_millis(age) };
    Holders(
        seen.map(|token| token.map(|token| if token.is_empty() { Vec::new() } else { vec![holder(token)] }))
            .into(),
    )
}

fn quorum() -> Quorum {
    Quorum::new(3).unwrap()
}

#[test]
fn members_are_ordered_by_run_id_and_missing_ones_come_last() {
    assert_eq!(order(None).starting_at(None), [FIRST, SECOND, THIRD]);
    assert_eq!(order(Some(2)).starting_at(None), [SECOND, THIRD, FIRST]);
    let unknown = |member, name: &str| Place {
        member: Member(member),
        is_missing: false,
        run_id: None,
        name: name.into(),
    };
    let mixed = [
        unknown(0, "redis://b"),
        unknown(1, "redis://a"),
        Place { run_id: Some("z".into()), ..unknown(2, "redis://c") },
    ];
    assert_eq!(QueueOrder::new(mixed).starting_at(None), [Member(2), Member(1), Member(0)]);
}

#[test]
fn a_client_starts_for_two_seconds_at_the_queue_where_it_met_others() {
    let mut memory = Contention::default();
    assert!(memory.meet(SECOND, &order(None), at(1_000)));
    for (now, missing, expected) in [
        (2_999, None, vec![SECOND, THIRD]),
        (3_000, None, vec![FIRST, SECOND, THIRD]),
        (2_999, Some(0), vec![FIRST, THIRD, SECOND]),
    ] {
        assert_eq!(order(missing).starting_at(memory.queue(at(now))), expected, "{now} {missing:?}");
    }
    assert!(!memory.is_over(at(2_999)) && memory.is_over(at(3_000)));
}

#[test]
fn a_client_does_not_move_from_a_later_queue_in_use_to_an_earlier_one() {
    let mut memory = Contention::default();
    assert!(memory.meet(THIRD, &order(None), at(1_000)));
    assert!(!memory.meet(SECOND, &order(None), at(2_999)));
    assert_eq!(memory.queue(at(2_999)), Some(THIRD));
    assert!(memory.meet(SECOND, &order(None), at(3_000)), "no client was met at the later queue for 2 s");
    assert!(memory.meet(THIRD, &order(None), at(3_001)));
    assert!(memory.meet(SECOND, &order(Some(1)), at(3_002)), "the member of the later queue is missing");
}

#[test]
fn one_attempt_looks_for_others_once_a_second_unless_it_found_none() {
    let mut memory = Contention::default();
    assert!(memory.begin_look(at(1_000)));
    assert!(!memory.begin_look(at(1_999)));
    assert!(memory.begin_look(at(2_000)));
    memory.end_look();
    assert!(memory.begin_look(at(2_001)));
}

#[test]
fn a_refusal_shows_a_queue_if_a_young_hold_without_a_majority_stays() {
    let partial =
        |seen: [Option<&str>; 3], age| holders(seen, age).partial_holders(quorum(), Member(0), "own");
    let young = partial([Some("a"), Some("own"), Some("own")], 1_999);
    let old = partial([Some("a"), Some("own"), None], 2_000);
    let none = partial([Some("own"), Some(""), Some("b")], 0);
    assert_eq!(none, []);
    assert_eq!(partial([Some("a"), Some("a"), Some("own")], 0), [], "a hold on a majority is not partial");
    assert_eq!(Others::of(&young, &none), Others::Gone);
    assert_eq!(Others::of(&none, &young), Others::Gone, "the hold was not there at the first look");
    assert_eq!(Others::of(&young, &young), Others::Queue);
    assert_eq!(Others::of(&old, &old), Others::Leftover);
    let both = [old, young].concat();
    assert_eq!(Others::of(&both, &both), Others::Queue, "the youngest hold decides");
}

#[test]
fn a_queue_can_move_unless_its_holders_have_no_majority() {
    for (seen, moves) in [
        ([Some("a"), Some("a"), Some("b")], true),
        ([Some("a"), Some("b"), Some("b")], false),
        ([Some("a"), Some("b"), None], true),
        ([None, Some("b"), Some("b")], true),
        ([Some("a"), Some(""), Some("")], false),
        ([Some(""), Some("b"), Some("b")], true),
    ] {
        assert_eq!(holders(seen, 0).queue_can_move(quorum(), Member(0)), moves, "{seen:?}");
    }
    assert!(holders([Some("a"), None, Some("a")], 0).has_majority(quorum()));
    assert!(!holders([Some("a"), Some("b"), Some("c")], 0).has_majority(quorum()));
}

#[test]
fn a_waiter_leaves_a_queue_when_two_looks_in_a_row_show_it_stuck() {
    let mut watch = QueueWatch::new(quorum(), Member(0), Stay::WhileItMoves);
    let stuck = holders([Some("a"), Some("b"), Some("b")], 0);
    let moving = holders([Some("a"), Some("a"), Some("b")], 0);
    let another = holders([Some("c"), Some("b"), Some("b")], 0);
    for (look, leaves) in
        [(&stuck, false), (&moving, false), (&stuck, false), (&another, false), (&another, true)]
    {
        assert_eq!(watch.must_leave(look), leaves);
    }
}

#[test]
fn a_waiter_leaves_the_last_queue_only_once_its_holders_are_stale() {
    let leaves = |stay, age| {
        let mut watch = QueueWatch::new(quorum(), Member(0), stay);
        let stuck = holders([Some("a"), Some("b"), Some("b")], age);
        watch.must_leave(&stuck);
        watch.must_leave(&stuck)
    };
    assert!(leaves(Stay::WhileItMoves, 1_999));
    assert!(!leaves(Stay::UntilHoldersAreStale, 1_999));
    assert!(leaves(Stay::UntilHoldersAreStale, 2_000));
    assert!(!leaves(Stay::Always, 2_000));
}
