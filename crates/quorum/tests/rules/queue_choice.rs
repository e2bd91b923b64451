//! The choice of the queue in which a client waits. It depends on the run ids of the members, on the holders
//! at each member, and on what the client has recorded about the lock ([`Contention`]).

use super::helpers::*;
use dlock_quorum::*;
use std::time::Duration;

const FIRST: Member = Member(2);
const SECOND: Member = Member(0);
const THIRD: Member = Member(1);

/// Three members in the order 2, 0, 1, except that `missing` is the last one.
fn order(missing: Option<u8>) -> QueueOrder {
    QueueOrder::new([(0, "b"), (1, "c"), (2, "a")].map(|(member, run_id)| Place {
        member: Member(member),
        is_missing: missing == Some(member),
        run_id: Some(run_id.into()),
        address: "redis://any".into(),
    }))
}

/// The tokens of the holders at three members, all with holds of `age` ms. `""` means that there is no hold,
/// `None` that the holders are unknown.
fn holders(seen: [Option<&str>; 3], age: u64) -> Holders {
    let holder = |token: &str| Holder { token: token.into(), age: Duration::from_millis(age) };
    let at_member = |token: &str| if token.is_empty() { Vec::new() } else { vec![holder(token)] };
    Holders { by_member: seen.map(|token| token.map(at_member)).into(), closed: 0 }
}

fn quorum() -> Quorum {
    Quorum::new(3).unwrap()
}

#[test]
fn members_are_ordered_by_run_id_and_missing_ones_come_last() {
    assert_eq!(order(None).starting_at(None), [FIRST, SECOND, THIRD]);
    assert_eq!(order(Some(2)).starting_at(None), [SECOND, THIRD, FIRST]);
    let unknown = |member, address: &str| Place {
        member: Member(member),
        is_missing: false,
        run_id: None,
        address: address.into(),
    };
    let mixed = [
        unknown(0, "redis://b"),
        unknown(1, "redis://a"),
        Place { run_id: Some("z".into()), ..unknown(2, "redis://c") },
    ];
    assert_eq!(QueueOrder::new(mixed).starting_at(None), [Member(2), Member(1), Member(0)]);
}

/// The start queue is the queue to which the client moved last.
#[test]
fn new_waits_use_the_start_queue_for_two_seconds_unless_its_member_is_missing() {
    let mut contention = Contention::default();
    assert!(contention.move_to(SECOND, &order(None), at(1_000)));
    for (now, missing, expected) in [
        (2_999, None, vec![SECOND, THIRD]),
        (3_000, None, vec![FIRST, SECOND, THIRD]),
        (2_999, Some(0), vec![FIRST, THIRD, SECOND]),
    ] {
        assert_eq!(
            order(missing).starting_at(contention.start_queue(at(now))),
            expected,
            "{now} {missing:?}"
        );
    }
    assert!(!contention.is_expired(at(2_999)) && contention.is_expired(at(3_000)));
}

#[test]
fn a_client_does_not_move_to_an_earlier_queue_than_its_start_queue() {
    let mut contention = Contention::default();
    assert!(contention.move_to(THIRD, &order(None), at(1_000)));
    assert!(!contention.move_to(SECOND, &order(None), at(2_999)));
    assert_eq!(contention.start_queue(at(2_999)), Some(THIRD));
    assert!(contention.move_to(SECOND, &order(None), at(3_000)), "the start queue has expired");
    assert!(contention.move_to(THIRD, &order(None), at(3_001)));
    assert!(
        contention.move_to(SECOND, &order(Some(1)), at(3_002)),
        "the member of the later queue is missing"
    );
}

/// A client looks for other clients in the queue of a later member.
#[test]
fn a_client_looks_for_others_once_a_second_but_again_at_once_if_it_found_none() {
    let mut contention = Contention::default();
    assert!(contention.begin_looking_for_others(at(1_000)));
    assert!(!contention.begin_looking_for_others(at(1_999)));
    assert!(contention.begin_looking_for_others(at(2_000)));
    // The client has found no other client.
    contention.allow_looking_again();
    assert!(contention.begin_looking_for_others(at(2_001)));
}

/// A client reads the holders twice, one round trip apart.
#[test]
fn a_young_partial_hold_that_is_read_twice_shows_that_other_clients_wait() {
    // The holders at member 0 that do not hold the lock at a majority, except the token `own`.
    let partial =
        |seen: [Option<&str>; 3], age| holders(seen, age).partial_holders(quorum(), Member(0), "own");
    let young = partial([Some("a"), Some("own"), Some("own")], 1_999);
    let old = partial([Some("a"), Some("own"), None], 2_000);
    let none = partial([Some("own"), Some(""), Some("b")], 0);
    assert_eq!(none, []);
    assert_eq!(partial([Some("a"), Some("a"), Some("own")], 0), [], "a hold on a majority is not partial");
    assert_eq!(OtherHolds::compare(&young, &none), OtherHolds::None);
    assert_eq!(OtherHolds::compare(&none, &young), OtherHolds::None, "the hold is not in the first list");
    assert_eq!(OtherHolds::compare(&young, &young), OtherHolds::Young);
    assert_eq!(OtherHolds::compare(&old, &old), OtherHolds::Stale);
    let both = [old, young].concat();
    assert_eq!(OtherHolds::compare(&both, &both), OtherHolds::Young, "the youngest hold decides");
}

/// The queue behind a holder with a majority can move, because that holder will release the lock. The client
/// of a holder without a majority may have died, and then the queue does not move. A member whose holders are
/// unknown counts for every holder.
#[test]
fn a_queue_is_stuck_when_its_holders_have_no_majority() {
    for (seen, can_move) in [
        ([Some("a"), Some("a"), Some("b")], true),
        ([Some("a"), Some("b"), Some("b")], false),
        ([Some("a"), Some("b"), None], true),
        ([None, Some("b"), Some("b")], true),
        ([Some("a"), Some(""), Some("")], false),
        ([Some(""), Some("b"), Some("b")], true),
    ] {
        assert_eq!(holders(seen, 0).queue_can_move(quorum(), Member(0)), can_move, "{seen:?}");
    }
}

/// The members that a delay keeps closed count as held by one more client.
#[test]
fn a_lock_is_taken_if_a_majority_has_one_holder_or_is_closed() {
    let is_taken = |seen, closed| Holders { closed, ..holders(seen, 0) }.is_taken(quorum());
    assert!(is_taken([Some("a"), None, Some("a")], 0));
    assert!(!is_taken([Some("a"), Some("b"), Some("c")], 0));
    assert!(is_taken([Some("own"), Some(""), Some("")], 2));
    assert!(!is_taken([Some("own"), Some("b"), Some("")], 1), "the two clients may have split the votes");
}

#[test]
fn a_waiter_leaves_a_queue_when_two_checks_in_a_row_find_it_stuck_with_the_same_holders() {
    let mut watch = QueueWatch::new(quorum(), Member(0), Stay::WhileQueueMoves);
    let stuck = holders([Some("a"), Some("b"), Some("b")], 0);
    let moving = holders([Some("a"), Some("a"), Some("b")], 0);
    let another = holders([Some("c"), Some("b"), Some("b")], 0);
    for (found, must_leave) in
        [(&stuck, false), (&moving, false), (&stuck, false), (&another, false), (&another, true)]
    {
        assert_eq!(watch.must_leave(found), must_leave);
    }
}

#[test]
fn a_waiter_leaves_the_last_queue_only_once_its_holders_are_stale() {
    let leaves_when_stuck = |stay, age| {
        let mut watch = QueueWatch::new(quorum(), Member(0), stay);
        let stuck = holders([Some("a"), Some("b"), Some("b")], age);
        watch.must_leave(&stuck);
        watch.must_leave(&stuck)
    };
    assert!(leaves_when_stuck(Stay::WhileQueueMoves, 1_999));
    assert!(!leaves_when_stuck(Stay::UntilHoldersAreStale, 1_999));
    assert!(leaves_when_stuck(Stay::UntilHoldersAreStale, 2_000));
    assert!(!leaves_when_stuck(Stay::Always, 2_000));
}
