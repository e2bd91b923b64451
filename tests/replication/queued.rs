//! Positions exist in the memory of one master only: the state of a promoted replica.

use dlock_testkit::queue::{holders, tokens};
use dlock_testkit::{Server, ServerKind, Value, each_server};

#[each_server]
fn a_promoted_replica_has_the_unclaimed_grants_and_no_positions(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    let mut a = master.connect();
    let ask = |token: &str| format!("DLOCK.ACQUIRE k {token} 600000 QUEUE 500000 DELAY 600000");
    a.ok("DLOCK.ACQUIRE k a 600000");
    for token in ["b", "c", "d"] {
        assert_eq!(a.ok(&ask(token)), Value::Nil);
    }
    a.ok("DLOCK.RELEASE k a");
    let fence = a.ok("DLOCK.INSPECT k").field("fence").int();
    replica.wait_in_sync(&master);
    let mut b = replica.connect();
    assert_eq!(b.ok("REPLICAOF NO ONE"), "OK");
    assert_eq!((holders(&mut b, "k"), tokens(&mut b, "k")), (vec!["b".into()], vec![]));
    assert!((1..=500_000).contains(&b.ok("DLOCK.PTTL k b").int()));
    // Each waiter joins again when it asks; the claim returns the same fence and sets the whole lease.
    for token in ["d", "c"] {
        assert_eq!(b.ok(&ask(token)), Value::Nil);
    }
    assert_eq!(tokens(&mut b, "k"), ["d", "c"]);
    assert_eq!(b.ok(&ask("b")).int(), fence);
    assert!(b.ok("DLOCK.PTTL k b").int() > 500_000);
    assert_eq!(b.ok("DLOCK.RELEASE k b"), 1);
    assert_eq!(holders(&mut b, "k"), ["d"]);
}
