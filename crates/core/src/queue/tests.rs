use dlock_protocol::{TokenRef, Ttl};
use proptest::prelude::*;

use super::*;
/// A wait that is made longer stays where it is scheduled; one that is made shorter does not.
#[test]
fn a_position_that_is_kept_is_over_at_its_last_deadline() {
    let at = Instant::from_millis;
    let request = LockRequestRef::new(TokenRef::new(b"t").unwrap(), Ttl::MAX);
    let queued = || Queued::new(ClientId(1), None, None, false);
    let mut waiting = Waiting::default();
    let (name, owner, until) = (Name::new(0, b"k"), Owner::Token(queued()), Some(at(0).after_millis(100)));
    let newcomer = Newcomer { name, rank: Rank::Newcomer, request, owner, since: at(0), until };
    let id = waiting.join(newcomer).unwrap();
    waiting.keep(id, &request, queued(), at(0).after_millis(500));
    assert_eq!(waiting.next_due(), Some(at(0).after_millis(100)), "it is looked at");
    assert_eq!(waiting.next_over(at(499)), None);
    assert_eq!(waiting.next_due(), Some(at(0).after_millis(500)), "and put off");
    waiting.keep(id, &request, queued(), at(0).after_millis(50));
    assert_eq!(waiting.next_due(), Some(at(0).after_millis(50)));
    assert_eq!(waiting.next_over(at(49)), None);
    let over = waiting.next_over(at(50)).map(|(waiter, outcome)| (waiter.id, outcome));
    assert_eq!(over, Some((id, Outcome::TimedOut)));
}

const KEYS: [&[u8]; 2] = [b"k", b"l"];
const OWNERS: [&str; 4] = ["", "o", "o/p", "r"];

#[derive(Clone, Debug)]
enum Do {
    Join(usize, usize, u8),
    Leave(usize),
    Keep(usize, usize),
}

fn any_do() -> impl Strategy<Value = Do> {
    prop_oneof![
        4 => (0..2usize, 0..4usize, 0..3u8).prop_map(|(key, owner, token)| Do::Join(key, owner, token)),
        2 => any::<usize>().prop_map(Do::Leave),
        2 => (any::<usize>(), 0..4usize).prop_map(|(which, owner)| Do::Keep(which, owner)),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, failure_persistence: None, ..ProptestConfig::default() })]
    #[test]
    fn a_waiter_is_marked_when_its_token_or_its_owner_waits_twice(moves in prop::collection::vec(any_do(), 1..40)) {
        let (mut waiting, mut ids, now) = (Waiting::default(), Vec::new(), Instant::from_millis(0));
        let queued = || Queued::new(ClientId(1), None, None, false);
        for step in moves {
            match step {
                Do::Join(key, owner, token) => {
                    let (token, owner) = ([b'a' + token], OwnerId::new(OWNERS[owner].as_bytes()));
                    let request = LockRequestRef {
                        owner: owner.as_ref().map(OwnerId::borrowed),
                        ..LockRequestRef::new(TokenRef::new(&token).unwrap(), Ttl::MAX)
                    };
                    let (name, rank) = (Name::new(0, KEYS[key]), Rank::Newcomer);
                    let owner = Owner::Token(queued());
                    ids.extend(waiting.join(Newcomer { name, rank, request, owner, since: now, until: None }));
                }
                Do::Leave(which) if !ids.is_empty() => {
                    waiting.leave(ids.swap_remove(which % ids.len())).unwrap();
                }
                Do::Keep(which, owner) if !ids.is_empty() => {
                    let id = ids[which % ids.len()];
                    let owner = OwnerId::new(OWNERS[owner].as_bytes());
                    let asked = waiting.get(id).unwrap().request.clone();
                    let asked = LockRequestRef { owner: owner.as_ref().map(OwnerId::borrowed), ..asked.borrowed() };
                    waiting.keep(id, &asked, queued(), now.after_millis(1));
                }
                Do::Leave(_) | Do::Keep(..) => {}
            }
            let all: Vec<&Waiter> = ids.iter().filter_map(|id| waiting.get(*id)).collect();
            for waiter in &all {
                let (token, owner) = (&waiter.request.token, &waiter.request.owner);
                let same_token = all.iter().filter(|other| other.request.token == *token).count();
                let same_owner = all.iter().filter(|other| owner.is_some() && other.request.owner == *owner).count();
                let marked = waiting.queues[&waiter.name].often.contains(&waiter.position());
                prop_assert_eq!(marked, same_token > 1 || same_owner > 1, "{:?} of {:?}", waiter, all);
                let party = waiter.party();
                let of_party = all.iter().filter(|other| other.party() == party).count();
                prop_assert_eq!(waiting.of_party(&party).count(), of_party);
            }
        }
    }
}
