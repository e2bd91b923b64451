//! Grants to positions: unclaimed, claimed, or told to a connection that waits beside.

use dlock_testkit::queue::{granted, holders, tokens};
use dlock_testkit::{ServerKind, Value, each_server, until};

use super::{heard, queue, scene};

#[each_server]
fn an_unclaimed_grant_lasts_no_longer_than_the_position_would_have(kind: &ServerKind) {
    let (_server, mut a, mut hears) = scene(kind);
    let ask = "DLOCK.ACQUIRE k b 600000 QUEUE 2000 NOTIFY channel b DELAY 600000 REENTRANT";
    assert_eq!(a.ok(ask), Value::Nil);
    a.ok("DLOCK.RELEASE k a");
    assert_eq!(heard(&mut hears), "b granted");
    assert!((1..=2000).contains(&a.ok("DLOCK.PTTL k b").int()));
    // The claim: the lease as asked for, and the same count.
    assert!(a.ok(ask).int() > 0);
    assert!(a.ok("DLOCK.PTTL k b").int() > 2000);
    assert_eq!(a.ok("DLOCK.HOLDS k b"), 1);
    assert_eq!(a.ok("DLOCK.RELEASE k b"), 1);
    // Nobody claims it: the next is granted the lock at its end, without the delay.
    a.ok("DLOCK.ACQUIRE k a 600000");
    assert_eq!(a.ok("DLOCK.ACQUIRE k b 600000 QUEUE 300 NOTIFY channel b DELAY 600000"), Value::Nil);
    queue(&mut a, "c", "");
    a.ok("DLOCK.RELEASE k a");
    assert_eq!((heard(&mut hears), heard(&mut hears)), ("b granted".into(), "c granted".into()));
    // EXTEND claims it too.
    assert_eq!(a.ok("DLOCK.EXTEND k c 900000"), 1);
    assert!(a.ok("DLOCK.PTTL k c").int() > 600_000);
}

#[each_server]
fn the_delay_of_a_claimed_grant_counts(kind: &ServerKind) {
    let (_server, mut a, mut hears) = scene(kind);
    queue(&mut a, "b", "DELAY 500000");
    a.ok("DLOCK.RELEASE k a");
    assert_eq!(heard(&mut hears), "b granted");
    assert_eq!(a.ok("DLOCK.EXTEND k b 20"), 1);
    until("the delay runs", || match a.ok("DLOCK.INSPECT k") {
        Value::Nil => false,
        seen => seen.field("delay").int() > 0,
    });
    assert_eq!(a.ok("DLOCK.ACQUIRE k c 1000"), Value::Nil);
}

#[each_server]
fn consecutive_short_blocks_keep_the_position(kind: &ServerKind) {
    let (server, mut a, mut hears) = scene(kind);
    let mut b = server.connect();
    for _ in 0..3 {
        let slice = "DLOCK.ACQUIRE k b 600000 QUEUE 600000 NOTIFY channel b BLOCK 30";
        assert_eq!(b.ok(slice), Value::Nil);
        if tokens(&mut a, "k").len() == 1 {
            queue(&mut a, "c", "");
        }
        assert_eq!(tokens(&mut a, "k"), ["b", "c"]);
    }
    // One that is granted while it waits has its whole lease.
    b.send(&["DLOCK.ACQUIRE", "k", "b", "600000", "QUEUE", "9000", "BLOCK", "0"]);
    until("b waits", || server.info("dlock_waiting") == "1");
    a.ok("DLOCK.RELEASE k a");
    granted(&mut b);
    assert!(a.ok("DLOCK.PTTL k b").int() > 9000);
    assert_eq!(b.ok("DLOCK.RELEASE k b"), 1);
    assert_eq!(heard(&mut hears), "c granted");
}

#[each_server]
fn a_position_and_its_grant_survive_a_lost_connection(kind: &ServerKind) {
    let (server, mut a, _) = scene(kind);
    let ask = ["DLOCK.ACQUIRE", "k", "b", "600000", "QUEUE", "500000", "BLOCK", "0"];
    let mut b = server.connect();
    b.send(&ask);
    until("b waits", || server.info("dlock_waiting") == "1");
    drop(b);
    until("its connection is gone", || server.info("dlock_waiting") == "0");
    assert_eq!(tokens(&mut a, "k"), ["b"]);
    // Granted to a connection that goes in the same turn: it stays, to be claimed.
    let mut b = server.connect();
    let kill = format!("CLIENT KILL ID {}", b.client_id());
    b.send(&ask);
    until("b waits", || server.info("dlock_waiting") == "1");
    assert_eq!(a.say_together(&["DLOCK.RELEASE k a", &kill]), [Value::Int(1), Value::Int(1)]);
    until("the lease is that of the position", || (1..=500_000).contains(&a.ok("DLOCK.PTTL k b").int()));
    assert_eq!(holders(&mut a, "k"), ["b"]);
    assert!(a.ok("DLOCK.ACQUIRE k b 600000").int() > 0);
    assert!(a.ok("DLOCK.PTTL k b").int() > 500_000);
}
