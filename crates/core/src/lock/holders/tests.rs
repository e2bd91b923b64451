use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;
use crate::lock::{Ephemeral, Extras};
use dlock_protocol::{ClientId, Delay, Token, Ttl};

fn hold(token: u8, due: u64, fence: u64, delay: u32) -> Hold {
    let ephemeral = if delay == 1 { Ephemeral::Bound(ClientId(7)) } else { Ephemeral::No };
    let delay = Delay::from_millis(delay.into()).expect("a delay");
    let (token, fence) =
        (Token::new(&[token]).expect("a token"), Fence::from_outside(fence).expect("a fence"));
    let mut hold = Hold::new(token, fence, Instant::from_millis(0), Deadline::at_millis(due), Ttl::MAX);
    hold.set_extras(Extras { ephemeral, delay, ..Extras::NONE });
    hold
}

#[derive(Clone, Debug)]
enum Do {
    Put(u8, u64, u64, u32),
    Remove(u8),
    Expire(u64, usize),
    TakeSome(usize),
}

fn any_do() -> impl Strategy<Value = Do> {
    let put = (0..60u8, 1..40u64, 1..1000u64, 0..3u32).prop_map(|(t, d, f, x)| Do::Put(t, d, f, x));
    prop_oneof![
        12 => put,
        5 => (0..60u8).prop_map(Do::Remove),
        1 => (1..40u64, 1..9usize).prop_map(|(now, most)| Do::Expire(now, most)),
        1 => (1..9usize).prop_map(Do::TakeSome),
    ]
}

/// What a plain map of the same holds says.
fn same(holders: &Holders, map: &BTreeMap<u8, Hold>) {
    let mut all: Vec<Hold> = holders.iter().cloned().collect();
    all.sort_by(|a, b| a.token().cmp(b.token()));
    assert_eq!(all, map.values().cloned().collect::<Vec<_>>());
    assert_eq!((holders.len(), holders.is_empty()), (map.len(), map.is_empty()));
    assert_eq!(holders.bound(), map.values().filter(|hold| hold.is_bound()).count());
    assert_eq!(holders.first_deadline(), map.values().map(|hold| hold.deadline()).min());
    assert_eq!(holders.last_deadline(), map.values().map(|hold| hold.deadline()).max());
    for token in 0..60 {
        assert_eq!(holders.get(&[token]), map.get(&token));
    }
    for now in (0..42).step_by(3).map(Instant::from_millis) {
        let mut live: Vec<_> = holders.live(now).map(|hold| hold.token().clone()).collect();
        live.sort();
        let expected = || map.values().filter(|hold| !hold.deadline().passed(now));
        assert!(live.iter().eq(expected().map(|hold| hold.token())), "{live:?}");
        assert_eq!(holders.count_live(now), live.len());
        assert_eq!(holders.at_most_one_lives(now), live.len() < 2);
        assert_eq!(holders.fence(now), expected().map(|hold| hold.fence()).max());
        let over = map.values().filter(|hold| hold.deadline().passed(now));
        assert_eq!(holders.delay_of_expired(now), over.filter_map(Hold::delay_until).max());
    }
}

fn play(moves: Vec<Do>) {
    let (mut holders, mut map) = (Holders(Kept::Few(Vec::new())), BTreeMap::new());
    for step in moves {
        match step {
            Do::Put(token, due, fence, delay) => {
                let new = hold(token, due, fence, delay);
                let changed = holders.change(&[token], |hold| *hold = new.clone()).is_some();
                assert_eq!(map.insert(token, new.clone()).is_some(), changed);
                if !changed {
                    holders.push(new);
                }
            }
            Do::Remove(token) => assert_eq!(holders.remove(&[token]), map.remove(&token)),
            Do::Expire(now, most) => {
                let now = Instant::from_millis(now);
                let expired = map.values().filter(|hold| hold.deadline().passed(now)).count();
                let taken = holders.take_expired(now, most);
                assert!(taken.len() >= expired.min(most) && taken.len() <= expired);
                for hold in taken {
                    assert!(hold.deadline().passed(now));
                    assert_eq!(map.remove(&hold.token().as_bytes()[0]), Some(hold));
                }
            }
            Do::TakeSome(most) => {
                let taken = holders.take_some(most);
                assert_eq!(taken.len(), map.len().min(most));
                for hold in taken {
                    assert_eq!(map.remove(&hold.token().as_bytes()[0]), Some(hold));
                }
            }
        }
        same(&holders, &map);
    }
    if let Some(rebuilt) = Holders::from_vec(map.values().cloned().collect()) {
        same(&rebuilt, &map);
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn they_are_what_a_plain_map_is(moves in prop::collection::vec(any_do(), 1..200)) {
        play(moves);
    }
}
