//! The background job serves all clients: the work that one connection causes delays no other client and
//! leaks no memory.

use std::fs;

use dlock_testkit::{Conn, Events, Folder, Server, ServerKind, Value, each_server, preloaded, until};

/// The job used to end all holds of a closed connection before it checked the next lease: 9 s for 30,000
/// holds.
#[each_server]
fn a_lease_ends_while_the_holds_of_a_connection_are_ended(kind: &ServerKind) {
    const MANY: usize = 2_000;
    let server = Server::options(kind).conf("notify-keyspace-events Ed").start();
    let mut conn = server.connect();
    let id = conn.client_id();
    let requests: Vec<String> =
        (0..MANY).map(|n| format!("DLOCK.ACQUIRE crowd {n} 600000 PERMITS 100000 EPHEMERAL")).collect();
    for batch in requests.chunks(200) {
        assert!(conn.say_together(batch).iter().all(|reply| reply.int() > 0));
    }
    let mut operator = server.connect();
    let mut events = Events::subscribe(&server, "__keyevent@0__:*");
    // The lease and the connection have both ended when the background job runs.
    let kill = format!("CLIENT KILL ID {id}");
    let answers = operator.say_together(&["DLOCK.ACQUIRE other t 1", &kill, "DEBUG SLEEP 0.02"]);
    assert!(answers[0].int() > 0 && answers[1] == 1, "{answers:?}");
    let (mut disconnects, mut before_expiry) = (0, None);
    while disconnects < MANY || before_expiry.is_none() {
        match events.read().0.rsplit(':').next() {
            Some("dlock.disconnect") => disconnects += 1,
            Some("dlock.expired") => before_expiry = Some(disconnects),
            _ => {}
        }
    }
    let ended = before_expiry.expect("the lease has expired");
    assert!(ended < MANY / 2, "{ended} holds were ended before the lease");
    until("all holds have ended", || server.number("dlock_holders") == 0);
}

/// The module used to keep a record of each deletion for ever: 81 MB after a million deletions.
#[each_server]
fn deleted_keys_leave_no_state(kind: &ServerKind) {
    const SCRIPT: &str = "for n = 1, tonumber(ARGV[1]) do redis.call('DLOCK.ACQUIRE', KEYS[1] .. n % tonumber(ARGV[2]), 't', \
                          600000) redis.call('DEL', KEYS[1] .. n % tonumber(ARGV[2])) end";
    // If events are on, the background job has a task for each deleted lock, to announce that it is free.
    for events in ["", "Kd"] {
        for keys in ["1", "100000"] {
            let server = Server::options(kind).conf(&format!("notify-keyspace-events \"{events}\"")).start();
            let mut conn = server.connect();
            assert_eq!(conn.call(&["EVAL", SCRIPT, "1", "k", "10", "10"]), Value::Nil);
            let before = server.number("used_memory");
            assert_eq!(conn.call(&["EVAL", SCRIPT, "1", "k", "100000", keys]), Value::Nil);
            until("the memory is freed", || server.number("used_memory") < before + (2 << 20));
        }
    }
}

/// One grant can answer two EPHEMERAL waits of a token. The module used to record the hold for both
/// connections, but removed only one of the two records: a leak of 212 bytes each time.
#[each_server]
fn one_hold_is_bound_to_one_connection(kind: &ServerKind) {
    let (server, mut holder) = Server::connected(kind);
    let mut waiters = [server.connect(), server.connect()];
    let mut before = 0;
    for round in 0..1_500 {
        // In the first rounds, buffers and maps grow to their final size.
        if round == 100 {
            before = server.number("used_memory");
        }
        let token = format!("the-token-of-the-round-{round}");
        assert!(holder.ok("DLOCK.ACQUIRE k holder 600000").int() > 0);
        for waiter in &mut waiters {
            waiter.send(&["DLOCK.ACQUIRE", "k", &token, "600000", "BLOCK", "0", "EPHEMERAL"]);
        }
        while holder.ok("DLOCK.WAITERS k").items().len() < 2 {}
        assert_eq!(holder.ok("DLOCK.RELEASE k holder"), 1);
        for waiter in &mut waiters {
            assert!(waiter.read().int() > 0);
        }
        assert_eq!(holder.ok(&format!("DLOCK.RELEASE k {token}")), 1);
    }
    let grown = server.number("used_memory") - before;
    assert!(grown < 100_000, "the server uses {grown} more bytes");
}

/// A server at the thread limit of its user or container cannot start a thread. The module then used to
/// refuse every command until a restart.
#[each_server]
fn flushed_and_deleted_locks_are_freed_without_a_thread(kind: &ServerKind) {
    let folder = Folder::fresh();
    let file = folder.path().join("none");
    let kind = &preloaded(kind, "tests/hostile/no_threads.c", &[("NO_THREADS", &file)]);
    // 1,100 are more than the module frees inline (1,000 locks and holds of a flush, 256 holds of a lock). So
    // a thread would free the flushed locks, and on the replica the holds of `crowd`. On the master, the
    // background job frees the holds of `crowd`.
    let acquire = |conn: &mut Conn, request: fn(usize) -> String| {
        let requests: Vec<String> = (0..1_100).map(request).collect();
        assert!(conn.say_together(&requests).iter().all(|reply| reply.int() > 0));
    };
    let (master, replica) = Server::with_replica(kind);
    let mut conn = master.connect();
    acquire(&mut conn, |n| format!("DLOCK.ACQUIRE crowd t{n} 600000 SHARED"));
    replica.wait_in_sync(&master);
    // While the file exists, no thread can be started.
    fs::write(&file, "").expect("the file can be written");
    assert_eq!(conn.ok("DEL crowd"), 1);
    acquire(&mut conn, |n| format!("DLOCK.ACQUIRE k{n} t 600000"));
    assert_eq!(conn.ok("FLUSHALL"), "OK");
    replica.wait_in_sync(&master);
    for server in [&master, &replica] {
        until("all holds have ended", || server.number("dlock_holders") == 0);
        assert_eq!(server.connect().ok("DLOCK.INSPECT k1"), Value::Nil);
    }
    assert!(conn.ok("DLOCK.ACQUIRE k1 t 600000").int() > 0);
}
