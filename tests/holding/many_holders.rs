//! Locks with thousands of holders: ending them all at once delays no other client, and the counters are
//! right afterwards.

use dlock_testkit::queue;
use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, each_server, until};

/// More holds than one event-loop turn ends, and than one effect names.
const MANY: usize = 3000;

/// Acquires a lock for `many` tokens in a transaction, because a script has no connection of its own.
#[track_caller]
fn crowd(conn: &mut Conn, key: &str, many: usize, ttl: &str, options: &str) {
    let commands: Vec<String> =
        (0..many).map(|n| format!("DLOCK.ACQUIRE {key} token:{n} {ttl} {options}")).collect();
    for some in commands.chunks(500) {
        let some: Vec<&str> = some.iter().map(String::as_str).collect();
        assert!(conn.say_together(&some).iter().all(|answer| answer.int() > 0));
    }
}

fn number(server: &Server, field: &str) -> usize {
    server.info(field).parse().expect("a number")
}

/// Returns the number of holders, and the number that INSPECT shows.
#[track_caller]
fn holders(server: &Server, key: &str) -> usize {
    let found = server.connect().ok(&format!("DLOCK.INSPECT {key} COUNT 1"));
    if found.is_nil() { 0 } else { found.field("holders-count").int() as usize }
}

fn told(events: &mut Events, name: &str) -> usize {
    events.so_far().iter().filter(|(_, event)| event == name).count()
}

#[each_server]
fn break_ends_many_holds_with_one_effect_and_one_event(kind: &ServerKind) {
    let (server, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&server);
    let mut conn = server.connect();
    let before = number(&server, "used_memory");
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    for (mode, broken) in [("SHARED", 1), ("PERMITS 5000", 2)] {
        crowd(&mut conn, "k", MANY, "600000", mode);
        assert_eq!(holders(&server, "k"), MANY);
        drop(events.so_far());
        let mut next = waiter(&server, "DLOCK.ACQUIRE k next 600000 BLOCK 0");
        assert_eq!(conn.say("DLOCK.BREAK k"), MANY as i64);
        granted(&mut next);
        assert_eq!(queue::holders(&mut conn, "k"), ["next"]);
        let told: Vec<String> = events.so_far().into_iter().map(|(_, event)| event).collect();
        assert_eq!(told, ["dlock.break", "dlock.acquire"]);
        until("each is counted", || number(&server, "dlock_breaks") == broken * MANY);
        assert_eq!(number(&server, "dlock_holders"), 1);
        replica.wait_in_sync(&server);
        assert_eq!(holders(&replica, "k"), 1);
        assert_eq!(conn.say("DLOCK.RELEASE k next"), 1);
    }
    until("their memory is given back", || number(&server, "used_memory") < before + 1_000_000);
}

/// Each hold was searched among all of them, and the whole lock was sent to the replicas for every few.
#[each_server]
fn the_end_of_a_connection_ends_its_many_holds(kind: &ServerKind) {
    let (server, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&server);
    let (mut conn, mut other) = (server.connect(), server.connect());
    crowd(&mut conn, "k", MANY, "600000", "SHARED EPHEMERAL");
    other.ok("DLOCK.ACQUIRE k stays 600000 SHARED");
    replica.wait_in_sync(&server);
    let sent = |server: &Server| number(server, "master_repl_offset");
    let before = sent(&server);
    drop(conn);
    until("they have ended", || number(&server, "dlock_disconnects") == MANY);
    assert_eq!((holders(&server, "k"), number(&server, "dlock_holders")), (1, 1));
    replica.wait_in_sync(&server);
    assert_eq!(holders(&replica, "k"), 1);
    let each = (sent(&server) - before) / MANY;
    assert!(each < 400, "{each} bytes for each went to the replica");
}

/// Broken, and acquired again by the same token and connection: pending work for the old hold keeps the new
/// one bound.
#[each_server]
fn a_hold_acquired_again_after_a_break_is_bound_to_its_connection(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    crowd(&mut conn, "k", MANY, "600000", "SHARED EPHEMERAL");
    let again = "DLOCK.ACQUIRE k token:0 600000 SHARED EPHEMERAL";
    let answers = conn.say_together(&["DLOCK.BREAK k", again]);
    assert!(answers[0] == MANY as i64 && answers[1].int() > 0);
    until("each is counted", || number(&server, "dlock_breaks") == MANY);
    drop(conn);
    until("it has ended", || number(&server, "dlock_disconnects") == 1);
    assert_eq!(server.connect().say("EXISTS k"), 0);
}

/// Half of the leases end at once while the server refuses writes; the others stay.
#[each_server]
fn many_expired_holds_are_hidden_at_once_and_removed_in_turns(kind: &ServerKind) {
    let (server, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&server);
    let mut conn = server.connect();
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    crowd(&mut conn, "k", MANY, "86000000", "PERMITS 3001");
    let leases: Vec<String> = (0..MANY / 2).map(|n| format!("DLOCK.EXTEND k token:{n} 500")).collect();
    // In one step, so that no lease ends before the pause.
    let step = leases.iter().map(String::as_str).chain(["CLIENT PAUSE 600000 WRITE", "EXEC"]);
    let answers = conn.say_together(&["MULTI"].into_iter().chain(step).collect::<Vec<_>>());
    assert_eq!(answers.last().expect("of EXEC").items().len(), MANY / 2 + 1);
    for at in [&server, &replica] {
        until("none of them is seen", || holders(at, "k") == MANY / 2);
    }
    let ended = number(&server, "dlock_expiries");
    assert!(ended < 300, "{ended} have ended before the pause");
    assert_eq!(conn.ok("DLOCK.HOLDS k token:1"), 0);
    conn.ok("CLIENT UNPAUSE");
    until("they have ended", || number(&server, "dlock_expiries") == MANY / 2);
    assert_eq!((holders(&server, "k"), number(&server, "dlock_holders")), (MANY / 2, MANY / 2));
    assert_eq!(told(&mut events, "dlock.expired"), MANY / 2, "an event for each");
    replica.wait_in_sync(&server);
    until("the replica has dropped them", || number(&replica, "dlock_holders") == MANY / 2);
}

/// The bindings of a deleted key with many holders are removed in the background; the next hold has its own
/// binding.
#[each_server]
fn a_deleted_key_with_many_holders_leaves_no_state(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut other) = (server.connect(), server.connect());
    let before = number(&server, "used_memory");
    crowd(&mut conn, "k", MANY, "600000", "SHARED EPHEMERAL");
    let held = number(&server, "used_memory");
    assert!(held > before + MANY * 100);
    assert_eq!(other.say("DEL k"), 1);
    until("the memory is given back", || number(&server, "used_memory") < before + 200_000);
    assert_eq!(number(&server, "dlock_holders"), 0);
    conn.ok("DLOCK.ACQUIRE k token:1 600000 EPHEMERAL");
    drop(conn);
    until("the new one has ended", || other.ok("EXISTS k") == 0);
    assert_eq!(number(&server, "dlock_disconnects"), 1);
}

#[each_server]
fn max_holders_per_key_bounds_the_holders(kind: &ServerKind) {
    let server = Server::options(kind).conf("dlock.max-holders-per-key 3").start();
    let mut conn = server.connect();
    for mode in ["SHARED", "PERMITS 10"] {
        for token in ["a", "b", "c"] {
            assert!(conn.ok(&format!("DLOCK.ACQUIRE k {token} 600000 {mode}")).int() > 0);
        }
        for block in ["", " BLOCK 0"] {
            let refused = conn.say(&format!("DLOCK.ACQUIRE k d 600000 {mode}{block}"));
            assert!(refused.error().starts_with("ERR one key may have 3 holders"), "{refused:?}");
            assert!(refused.error().contains("dlock.max-holders-per-key"), "{refused:?}");
        }
        assert!(conn.ok(&format!("DLOCK.ACQUIRE k c 600000 {mode}")).int() > 0, "it holds already");
        // More clients queued when the lock became full.
        conn.ok("DLOCK.BREAK k");
        conn.ok("DLOCK.ACQUIRE k alone 600000");
        let mut waiters = ["a", "b", "c", "d"]
            .map(|token| waiter(&server, &format!("DLOCK.ACQUIRE k {token} 600000 {mode} BLOCK 0")));
        conn.ok("DLOCK.RELEASE k alone");
        waiters[..3].iter_mut().for_each(|waiter| assert!(granted(waiter) > 0));
        assert_eq!(
            (queue::holders(&mut conn, "k").len(), queue::tokens(&mut conn, "k")),
            (3, vec!["d".into()])
        );
        conn.ok("DLOCK.RELEASE k b");
        granted(&mut waiters[3]);
        conn.ok("DLOCK.BREAK k");
    }
    // A waiter of a full lock is granted when the option is raised.
    conn.ok("DLOCK.ACQUIRE full alone 600000");
    let mut waiters = ["a", "b", "c", "d"]
        .map(|token| waiter(&server, &format!("DLOCK.ACQUIRE full {token} 600000 SHARED BLOCK 0")));
    conn.ok("DLOCK.RELEASE full alone");
    waiters[..3].iter_mut().for_each(|waiter| assert!(granted(waiter) > 0));
    conn.ok("CONFIG SET dlock.max-holders-per-key 4");
    granted(&mut waiters[3]);
    crowd(&mut conn, "k", 4, "600000", "SHARED");
    assert!(
        conn.say("DLOCK.ACQUIRE k x 600000 SHARED").error().starts_with("ERR one key may have 4 holders")
    );
}
