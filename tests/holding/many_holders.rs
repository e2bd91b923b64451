//! Locks with thousands of holders: ending them all at once delays no other client, and the counters are
//! right afterwards.

use dlock_testkit::queue::{self, granted, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, each_server, until};

/// Number of holds: more than the server processes in one event-loop turn.
const MANY: i64 = 3000;

/// Acquires a lock for `count` tokens.
#[track_caller]
fn acquire_for_many(conn: &mut Conn, key: &str, count: i64, ttl: &str, options: &str) {
    let commands: Vec<String> =
        (0..count).map(|n| format!("DLOCK.ACQUIRE {key} token:{n} {ttl} {options}")).collect();
    for batch in commands.chunks(500) {
        assert!(conn.say_together(batch).iter().all(|reply| reply.int() > 0));
    }
}

/// Returns the number of holders that INSPECT shows.
#[track_caller]
fn holder_count(server: &Server, key: &str) -> i64 {
    let lock = server.connect().ok(&format!("DLOCK.INSPECT {key} COUNT 1"));
    if lock.is_nil() { 0 } else { lock.field("holders-count").int() }
}

#[each_server]
fn break_ends_many_holds_with_one_event(kind: &ServerKind) {
    let (server, replica) = Server::with_replica(kind);
    let mut conn = server.connect();
    let before = server.number("used_memory");
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    for (mode, round) in [("SHARED", 1), ("PERMITS 5000", 2)] {
        acquire_for_many(&mut conn, "k", MANY, "600000", mode);
        assert_eq!(holder_count(&server, "k"), MANY);
        events.discard();
        let mut next = waiter(&server, "DLOCK.ACQUIRE k next 600000 BLOCK 0");
        assert_eq!(conn.say("DLOCK.BREAK k"), MANY);
        granted(&mut next);
        assert_eq!(queue::holders(&mut conn, "k"), ["next"]);
        assert_eq!(events.messages(), ["dlock.break", "dlock.acquire"]);
        until("each end is counted", || server.number("dlock_breaks") == round * MANY);
        assert_eq!(server.number("dlock_holders"), 1);
        replica.wait_in_sync(&server);
        assert_eq!(holder_count(&replica, "k"), 1);
        assert_eq!(conn.say("DLOCK.RELEASE k next"), 1);
    }
    until("the memory of the holds is freed", || server.number("used_memory") < before + 1_000_000);
}

/// An earlier version searched all holds of the lock for each hold that ended. After every few ended holds,
/// it sent the whole lock to the replicas.
#[each_server]
fn the_end_of_a_connection_ends_its_many_holds(kind: &ServerKind) {
    let (server, replica) = Server::with_replica(kind);
    let (mut conn, mut other) = (server.connect(), server.connect());
    acquire_for_many(&mut conn, "k", MANY, "600000", "SHARED EPHEMERAL");
    other.ok("DLOCK.ACQUIRE k stays 600000 SHARED");
    replica.wait_in_sync(&server);
    let before = server.number("master_repl_offset");
    drop(conn);
    until("the holds have ended", || server.number("dlock_disconnects") == MANY);
    assert_eq!((holder_count(&server, "k"), server.number("dlock_holders")), (1, 1));
    replica.wait_in_sync(&server);
    assert_eq!(holder_count(&replica, "k"), 1);
    let bytes_per_hold = (server.number("master_repl_offset") - before) / MANY;
    assert!(bytes_per_hold < 400, "{bytes_per_hold} bytes for each hold went to the replica");
}

/// The same token and connection acquire the lock again after a BREAK. Pending work for the old hold must not
/// unbind the new one.
#[each_server]
fn a_hold_acquired_again_after_a_break_is_bound_to_its_connection(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    acquire_for_many(&mut conn, "k", MANY, "600000", "SHARED EPHEMERAL");
    let acquire = "DLOCK.ACQUIRE k token:0 600000 SHARED EPHEMERAL";
    let replies = conn.say_together(&["DLOCK.BREAK k", acquire]);
    assert!(replies[0] == MANY && replies[1].int() > 0);
    until("each end is counted", || server.number("dlock_breaks") == MANY);
    drop(conn);
    until("the new hold has ended", || server.number("dlock_disconnects") == 1);
    assert_eq!(server.connect().say("EXISTS k"), 0);
}

/// Half of the leases end during a pause, in which the server must not write; the other leases are long.
#[each_server]
fn many_expired_holds_are_hidden_at_once_and_end_with_an_event_each(kind: &ServerKind) {
    let (server, replica) = Server::with_replica(kind);
    let mut conn = server.connect();
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    acquire_for_many(&mut conn, "k", MANY, "86000000", "PERMITS 5000");
    // In one transaction, so that no lease ends before the pause.
    let mut commands = vec!["MULTI".to_string()];
    commands.extend((0..MANY / 2).map(|n| format!("DLOCK.EXTEND k token:{n} 5000")));
    commands.extend(["CLIENT PAUSE 600000 WRITE", "EXEC"].map(String::from));
    let replies = conn.say_together(&commands);
    assert_eq!(replies.last().expect("the reply to EXEC").items().len() as i64, MANY / 2 + 1);
    for reader in [&server, &replica] {
        until("no expired hold is shown", || holder_count(reader, "k") == MANY / 2);
    }
    assert_eq!(server.number("dlock_expiries"), 0, "the server has written nothing");
    assert_eq!(conn.ok("DLOCK.HOLDS k token:1"), 0);
    conn.ok("CLIENT UNPAUSE");
    until("the holds have ended", || server.number("dlock_expiries") == MANY / 2);
    assert_eq!((holder_count(&server, "k"), server.number("dlock_holders")), (MANY / 2, MANY / 2));
    let expired = events.messages().iter().filter(|event| *event == "dlock.expired").count();
    assert_eq!(expired as i64, MANY / 2, "each expired hold has an event");
    replica.wait_in_sync(&server);
    until("the replica has dropped the expired holds", || replica.number("dlock_holders") == MANY / 2);
}

/// After DEL, the background job removes the records that bind the holds to their connection. A new hold has
/// a record of its own, and ends with its connection.
#[each_server]
fn a_deleted_key_with_many_holders_leaves_no_state(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut other) = (server.connect(), server.connect());
    let before = server.number("used_memory");
    acquire_for_many(&mut conn, "k", MANY, "600000", "SHARED EPHEMERAL");
    let held = server.number("used_memory");
    assert!(held > before + MANY * 100);
    assert_eq!(other.say("DEL k"), 1);
    until("the memory of the holds is freed", || server.number("used_memory") < before + 200_000);
    assert_eq!(server.number("dlock_holders"), 0);
    conn.ok("DLOCK.ACQUIRE k token:1 600000 EPHEMERAL");
    drop(conn);
    until("the new hold has ended", || other.ok("EXISTS k") == 0);
    assert_eq!(server.number("dlock_disconnects"), 1);
}

#[each_server]
fn max_holders_per_key_bounds_the_holders(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.max-holders-per-key 3").start();
    let mut conn = server.connect();
    for mode in ["SHARED", "PERMITS 10"] {
        conn.ok("CONFIG SET dlock.max-holders-per-key 3");
        acquire_for_many(&mut conn, "k", 3, "600000", mode);
        for block in ["", " BLOCK 0"] {
            let refused = conn.say(&format!("DLOCK.ACQUIRE k d 600000 {mode}{block}"));
            assert!(refused.error().starts_with("ERR one key may have 3 holders"), "{refused:?}");
            assert!(refused.error().contains("dlock.max-holders-per-key"), "{refused:?}");
        }
        // The token holds the lock already, so a renewal needs no room.
        assert!(conn.ok(&format!("DLOCK.ACQUIRE k token:2 600000 {mode}")).int() > 0);
        // Five clients wait, two more than the limit. Each is granted the lock once there is room.
        conn.ok("DLOCK.BREAK k");
        conn.ok("DLOCK.ACQUIRE k alone 600000");
        let mut waiters = ["a", "b", "c", "d", "e"]
            .map(|token| waiter(&server, &format!("DLOCK.ACQUIRE k {token} 600000 {mode} BLOCK 0")));
        conn.ok("DLOCK.RELEASE k alone");
        waiters[..3].iter_mut().for_each(|waiter| assert!(granted(waiter) > 0));
        assert_eq!(queue::tokens(&mut conn, "k"), ["d", "e"]);
        conn.ok("DLOCK.RELEASE k b");
        granted(&mut waiters[3]);
        conn.ok("CONFIG SET dlock.max-holders-per-key 4");
        granted(&mut waiters[4]);
        conn.ok("DLOCK.BREAK k");
    }
}
