//! FLUSHDB and FLUSHALL, synchronous and ASYNC.

use super::Fixture;
use dlock_testkit::{Server, ServerKind, each_server, until};

#[each_server]
fn a_flush_ends_every_hold_of_its_databases(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    for (flush, other_stays) in [
        ("FLUSHDB SYNC", true),
        ("FLUSHDB ASYNC", true),
        ("FLUSHDB", true),
        ("FLUSHALL SYNC", false),
        ("FLUSHALL ASYNC", false),
        ("FLUSHALL", false),
    ] {
        for n in 0..20 {
            fixture.acquire(&format!("k{n}"), "t");
        }
        fixture.ok("SELECT 3");
        fixture.acquire("other", "t");
        fixture.ok("SELECT 0");
        assert_eq!(fixture.ok(flush), "OK");
        assert_eq!(fixture.ok("DLOCK.HOLDS k0 t"), 0);
        assert_eq!(fixture.ok("DLOCK.RELEASE k1 t"), 0);
        let (stays, held_locks) = if other_stays { (Some("t"), 1) } else { (None, 0) };
        fixture.assert_locks(0, &[("k0", None), ("k19", None)], held_locks);
        fixture.assert_locks(3, &[("other", stays)], held_locks);
        // `acquire` asserts that the fence still rises.
        fixture.acquire("k0", "other");
        fixture.assert_locks(0, &[("k0", Some("other"))], held_locks + 1);
        fixture.ok("FLUSHALL");
    }
}

#[each_server]
fn a_lease_from_before_a_flush_does_not_end_a_later_hold(kind: &ServerKind) {
    for flush in ["FLUSHALL", "FLUSHALL ASYNC", "FLUSHDB"] {
        let mut fixture = Fixture::new(kind);
        // The leases of 50 ms are from before the flush. The lease of `mark` ends after them, and is the only
        // one that the server counts as expired.
        let answers = fixture.conn.say_together(&[
            "DLOCK.ACQUIRE k t 50",
            "DLOCK.ACQUIRE other t 50",
            flush,
            "DLOCK.ACQUIRE k t 600000",
            "DLOCK.ACQUIRE mark t 60",
        ]);
        assert!(answers[3].int() > answers[0].int());
        until("the old deadline has passed", || fixture.conn.ok("EXISTS mark") == 0);
        fixture.assert_locks(0, &[("k", Some("t")), ("other", None)], 1);
        assert_eq!(fixture.master.number("dlock_expiries"), 1);
    }
}

/// The flush ends the holds from before it, but not a hold that begins after it in the same transaction.
#[each_server]
fn a_flush_in_a_transaction_or_script_leaves_later_holds(kind: &ServerKind) {
    let mut fixture = Fixture::new(kind);
    fixture.acquire("k", "t");
    for command in ["MULTI", "FLUSHALL", "DLOCK.ACQUIRE k other 600000"] {
        fixture.ok(command);
    }
    assert!(fixture.ok("EXEC").items()[1].int() > 0);
    fixture.assert_locks(0, &[("k", Some("other"))], 1);

    let text = "redis.call('FLUSHDB') return redis.call('DLOCK.ACQUIRE', KEYS[1], ARGV[1], 600000)";
    assert!(fixture.conn.call(&["EVAL", text, "1", "k", "third"]).int() > 0);
    fixture.assert_locks(0, &[("k", Some("third"))], 1);
}

#[each_server]
fn a_hundred_thousand_holds_are_flushed_in_the_background(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let many = "for n = ARGV[1], ARGV[1] + 9999 do \
                    redis.call('DLOCK.ACQUIRE', 'k' .. n, 'token:' .. n, 600000 + n, 'LABEL', 'a label too long to be inline') \
                end";
    let fill = |conn: &mut dlock_testkit::Conn| {
        for start in (1..100_000).step_by(10_000) {
            assert!(conn.call(&["EVAL", many, "0", &start.to_string()]).is_nil());
        }
        assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [100_000, 100_000]);
    };
    fill(&mut conn);
    let before = server.number("dlock_fence");
    assert_eq!(conn.ok("FLUSHALL ASYNC"), "OK");
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [0, 0]);
    // Acquires the locks again while the background thread still frees the old ones.
    fill(&mut conn);
    until("all flushed locks are freed", || server.number("lazyfree_pending_objects") == 0);
    assert_eq!(conn.ok("DLOCK.HOLDS k77777 token:77777"), 1);
    assert!(conn.ok("DLOCK.INSPECT k1").field("fence").int() > before);
    assert_eq!(conn.ok("DBSIZE"), 100_000);
}
