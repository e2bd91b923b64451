//! The key of a queue is removed by a command, an eviction or the end of a native TTL: the queue is served or
//! refused, and the lock never has two holders.

use dlock_testkit::queue::{granted, granted_message, holders, until_no_waiters, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

#[each_server]
fn swapdb_moves_the_locks_and_leaves_the_queues(kind: &ServerKind) {
    let (server, mut zero) = Server::connected(kind);
    let mut one = server.connect();
    one.ok("SELECT 1");
    zero.ok("DLOCK.ACQUIRE k a 60000");
    zero.ok("DLOCK.ACQUIRE l a 60000");
    one.ok("DLOCK.ACQUIRE l z 200");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE l c 60000 BLOCK 0");
    zero.ok("SWAPDB 0 1");
    // b and c wait in database 0. There, k is free now, and z holds l until its lease of 200 ms ends.
    granted(&mut b);
    assert_eq!((holders(&mut zero, "k"), holders(&mut one, "k")), (vec!["b".into()], vec!["a".into()]));
    assert_eq!(holders(&mut one, "l"), ["a"]);
    granted(&mut c);
    assert_eq!(holders(&mut zero, "l"), ["c"]);
    // The background job ends the lease of the moved lock in its new database.
    one.ok("DLOCK.EXTEND k a 30");
    until("the lease ends", || one.ok("EXISTS k") == 0);
    // b holds k, c holds l, and a holds the moved l.
    assert_eq!(server.number("dlock_holders"), 3);
}

/// SWAPDB of a database with itself moves nothing, but the server replicates it and reports it to modules.
#[each_server]
fn a_database_swapped_with_itself_keeps_its_locks(kind: &ServerKind) {
    let (server, replica) =
        (Server::options(kind).conf("dlock.restart-grace 4000").start(), Server::start(kind));
    let mut conn = server.connect();
    until("the grace period has ended", || server.number("dlock_grace_ms_left") == 0);
    replica.replicate(&server);
    conn.ok("DLOCK.ACQUIRE k a 1500");
    conn.ok("DLOCK.ACQUIRE long a 4000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 4000 BLOCK 0");
    assert_eq!(conn.ok("SWAPDB 0 0"), "OK");
    assert_eq!(server.numbers(["dlock_held", "dlock_grace_ms_left"]), [2, 0]);
    // The server still ends the lease of 1.5 s, and then grants k to b. Until 4 s, no other lease ends.
    granted(&mut b);
    replica.wait_in_sync(&server);
    assert_eq!(replica.number("dlock_held"), server.number("dlock_held"));
    // After its promotion, the replica ends the holds that its master would have ended.
    replica.promote();
    until("the promoted replica ends the leases", || replica.connect().ok("DBSIZE") == 0);
    assert!(conn.ok("DLOCK.ACQUIRE flushed a 1000").int() > 0);
    conn.ok("FLUSHALL");
    assert!(server.number("dlock_grace_ms_left") != 0, "FLUSHALL begins a grace period, unlike SWAPDB 0 0");
}

#[each_server]
fn an_ephemeral_hold_moved_by_swapdb_ends_with_its_connection(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    a.ok("DLOCK.ACQUIRE k a 60000 EPHEMERAL");
    let mut conn = server.connect();
    conn.ok("SWAPDB 0 1");
    conn.ok("SELECT 1");
    assert_eq!(holders(&mut conn, "k"), ["a"]);
    drop(a);
    until("the hold has ended", || conn.ok("EXISTS k") == 0);
    // Here SWAPDB moves the hold after its connection has closed and before the background job ends it.
    let mut b = server.connect();
    b.ok("DLOCK.ACQUIRE k b 60000 EPHEMERAL");
    let kill = format!("CLIENT KILL ID {}", b.client_id());
    let answers = conn.say_together(&["MULTI", &kill, "SWAPDB 0 1", "EXEC"]);
    assert_eq!(answers[3].items(), [Value::Int(1), Value::Simple("OK".into())]);
    until("the hold has ended", || conn.ok("EXISTS k") == 0);
}

#[each_server]
fn eviction_ends_the_hold_and_serves_the_queue(kind: &ServerKind) {
    let (server, mut a) = Server::connected(kind);
    let first = a.ok("DLOCK.ACQUIRE k a 60000").int();
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    a.ok("CONFIG SET maxmemory-policy allkeys-random");
    // Before a command that may use memory (SET), the server evicts keys. All commands are in one write, so
    // that the new hold is not evicted too.
    let _ = a.say_together(&["CONFIG SET maxmemory 1", "SET x 1", "CONFIG SET maxmemory 0"]);
    assert!(granted(&mut b) > first);
    assert_eq!(holders(&mut a, "k"), ["b"]);
    until_no_waiters(&server);
}

/// When the key gets a value of another type, the whole queue is refused. The module does this in several
/// event-loop turns, so that the server serves other clients meanwhile.
#[each_server]
fn a_long_queue_is_refused_in_several_turns(kind: &ServerKind) {
    const MANY: i64 = 20_000;
    let (server, mut a) = Server::connected(kind);
    a.ok(&format!("CONFIG SET dlock.max-waiters-per-key {MANY}"));
    let shows_a_part_refused = |_| {
        a.ok("DEL k");
        a.ok("DLOCK.ACQUIRE k a 600000");
        let queue: Vec<String> =
            (0..MANY).map(|n| format!("DLOCK.ACQUIRE k t{n} 600000 QUEUE 600000")).collect();
        assert!(a.say_together(&queue).iter().all(Value::is_nil));
        assert_eq!(server.number("dlock_queued"), MANY);
        a.send(&["SET", "k", "data"]);
        let mut seen = Vec::new();
        until("all positions are refused", || {
            seen.push(server.number("dlock_queued"));
            seen.ends_with(&[0])
        });
        assert_eq!(a.read(), "OK");
        seen.iter().any(|queued| (1..MANY).contains(queued))
    };
    // In one try, INFO may be too slow to show an intermediate state.
    assert!((0..10).any(shows_a_part_refused), "all positions were refused at once");
}

/// Starts a server that deletes a key with an elapsed TTL only when a command or the module opens the key.
/// The server's background deletion, which can take minutes if very many keys have TTLs, is off.
fn without_active_expiry(kind: &ServerKind) -> (Server, Conn) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    (server, conn)
}

#[each_server]
fn the_queue_is_served_when_a_native_ttl_ends(kind: &ServerKind) {
    let (server, mut conn) = without_active_expiry(kind);
    conn.ok("DLOCK.ACQUIRE k a 600000");
    conn.ok("PEXPIRE k 300");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    granted(&mut b);
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 600000 BLOCK 0");
    conn.ok("PEXPIRE k 20");
    granted(&mut c);
    let mut subscriber = server.subscriber("channel");
    assert_eq!(conn.ok("DLOCK.ACQUIRE k d 600000 QUEUE 600000 NOTIFY channel d"), Value::Nil);
    conn.ok("PEXPIRE k 20");
    granted_message(&mut subscriber, "d");
    assert_eq!(holders(&mut conn, "k"), ["d"]);
    until_no_waiters(&server);
}

#[each_server]
fn the_queue_is_served_when_the_ttl_of_a_restored_lock_ends(kind: &ServerKind) {
    let (server, mut conn) = without_active_expiry(kind);
    conn.ok("DLOCK.ACQUIRE k a 600000");
    let dump = conn.ok("DUMP k").bytes().to_vec();
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    let restore: [&[u8]; 5] = [b"RESTORE", b"k", b"20", &dump, b"REPLACE"];
    assert_eq!(conn.call(&restore), "OK");
    granted(&mut b);
    assert_eq!(holders(&mut conn, "k"), ["b"]);
}

/// When a key with an elapsed TTL is opened, the server deletes it. So in each tick of the server's cron, the
/// module opens the keys of up to 256 queues. This test has 1,000 queues.
#[each_server]
fn every_queue_is_served_when_many_native_ttls_end(kind: &ServerKind) {
    let (server, mut conn) = without_active_expiry(kind);
    let keys: Vec<String> = (0..1_000).map(|n| format!("k{n}")).collect();
    for command in ["DLOCK.ACQUIRE KEY a 600000", "DLOCK.ACQUIRE KEY b 600000 QUEUE 600000", "PEXPIRE KEY 20"]
    {
        let commands: Vec<String> = keys.iter().map(|key| command.replace("KEY", key)).collect();
        let _ = conn.say_together(&commands);
    }
    until("every waiter is granted its lock", || server.number("dlock_handoffs") == 1_000);
    assert_eq!(server.number("dlock_queued"), 0);
}
