//! While the server refuses the writes of clients, the module's background job grants nothing and removes no
//! hold, not even an expired one. Waiters then wait until their timeout. One exception: when memory is full,
//! the job removes holds of locks without waiters.

use std::fs;
use std::time::Duration;

use dlock_testkit::queue::{self, granted, holders, tokens, waiter};
use dlock_testkit::{Conn, Events, Server, ServerKind, Value, each_server, until};

/// A master that refuses writes while a lease ends. Two clients wait for the lock.
struct Scene {
    server: Server,
    conn: Conn,
    /// Next in the queue when the lease ends.
    b: Conn,
    /// Behind b, with a timeout.
    c: Conn,
    events: Events,
}

/// `refuse` makes the server refuse writes with an error that begins with `word`.
fn scene(kind: &ServerKind, conf: &[&str], refuse: impl FnOnce(&Server, &mut Conn), word: &str) -> Scene {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").confs(conf).start();
    let mut conn = server.connect();
    // The lease is longer than the set-up below takes.
    conn.ok("DLOCK.ACQUIRE k a 6000");
    let b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    let c = waiter(&server, "DLOCK.ACQUIRE k c 60000 BLOCK 8000");
    refuse(&server, &mut conn);
    conn.until_error("DLOCK.ACQUIRE other x 60000", word);
    assert_eq!(conn.ok("DLOCK.HOLDS k a"), 1, "the lease has not ended yet");
    let events = Events::subscribe(&server, "__keyspace@0__:k");
    Scene { server, conn, b, c, events }
}

impl Scene {
    /// Asserts that the module does nothing at the end of the lease: it counts no expiry, c times out later,
    /// and b keeps waiting.
    fn assert_nothing_happens_at_the_lease_end(&mut self) {
        assert_eq!(self.c.read(), Value::Nil, "c has timed out");
        assert_eq!(self.c.say("ECHO x"), "x", "exactly one reply");
        assert_eq!(self.conn.ok("DLOCK.HOLDS k a"), 0, "the lease has expired");
        self.assert_b_waits();
        assert_eq!(self.server.numbers(["dlock_expiries", "dlock_timeouts"]), [0, 1]);
    }

    /// Asserts that the lock has no holder, that b alone waits, and that no event was published.
    fn assert_b_waits(&mut self) {
        assert_eq!(holders(&mut self.conn, "k"), [""; 0]);
        assert_eq!(tokens(&mut self.conn, "k"), ["b"]);
        assert!(self.b.try_read(Duration::ZERO).is_none(), "b got a reply");
        self.events.assert_none();
    }

    /// Asserts that b is granted the lock, once the server accepts writes again.
    fn assert_b_is_granted(mut self) {
        granted(&mut self.b);
        assert_eq!(self.events.messages(), ["dlock.expired", "dlock.acquire"]);
        assert_eq!(self.b.say("DLOCK.RELEASE k b"), 1);
        queue::until_no_waiters(&self.server);
    }
}

/// Tests the configuration that docs/choosing.md recommends. The isolated master refuses writes. If its
/// background job still granted the lock, both servers would have a holder at the same time.
#[each_server]
fn an_isolated_master_grants_no_lock_beside_its_promoted_replica(kind: &ServerKind) {
    let replica = Server::options(kind).conf("dlock.restart-grace 6000").start();
    let promote = |server: &Server, conn: &mut Conn| {
        replica.replicate(server);
        conn.ok("CONFIG SET min-replicas-to-write 1");
        replica.promote();
    };
    let mut scene = scene(kind, &[], promote, "NOREPLICAS");
    scene.assert_nothing_happens_at_the_lease_end();
    // The promoted replica grants after its grace period.
    let mut z = replica.connect();
    until("the replica grants the lock", || matches!(z.say("DLOCK.ACQUIRE k z 3000"), Value::Int(_)));
    scene.assert_b_waits();
    scene.conn.ok("CONFIG SET min-replicas-to-write 0");
    scene.assert_b_is_granted();
}

#[each_server]
fn no_lock_is_granted_after_a_failed_save(kind: &ServerKind) {
    let fail = |server: &Server, conn: &mut Conn| {
        // A folder blocks the path of the file.
        fs::create_dir_all(server.dir().join("no.rdb/in")).expect("the folder can be created");
        conn.ok("BGSAVE");
        until("the save has failed", || server.info("rdb_last_bgsave_status") == "err");
    };
    let mut scene = scene(kind, &["save 3600 1", "dbfilename no.rdb"], fail, "MISCONF");
    scene.assert_nothing_happens_at_the_lease_end();
    scene.conn.ok("CONFIG SET stop-writes-on-bgsave-error no");
    scene.assert_b_is_granted();
}

#[each_server]
fn no_lock_is_granted_and_release_works_when_memory_is_full(kind: &ServerKind) {
    let fill = |_: &Server, conn: &mut Conn| {
        conn.ok("DLOCK.ACQUIRE long a 60000");
        conn.ok("DLOCK.ACQUIRE brief a 1000");
        conn.ok("CONFIG SET maxmemory 1");
    };
    let mut scene = scene(kind, &[], fill, "OOM");
    assert_eq!(scene.server.number("dlock_held"), 3);
    // A hold without waiters ends: otherwise a full server would never free the memory of expired leases.
    until("the brief hold ends", || scene.conn.ok("EXISTS brief") == 0);
    assert_eq!(scene.c.read(), Value::Nil, "c has timed out");
    scene.assert_b_waits();
    // The server accepts RELEASE. On `k`, RELEASE removes the expired hold and serves the queue.
    assert_eq!(scene.conn.say("DLOCK.RELEASE long a"), 1);
    assert_eq!(scene.conn.say("DLOCK.RELEASE k nobody"), 0);
    scene.assert_b_is_granted();
}

/// When memory is full, only holds with waiters stay. The background job ends the holds of a connection in
/// the order of their keys and tokens. It must go on to the next key although `k` has a waiter. The other
/// keys sort directly before and after `k`; the tokens include a very low and a very high one.
#[each_server]
fn holds_of_a_closed_connection_end_when_memory_is_full(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut holder) = (server.connect(), server.connect());
    let others = ["j", "k\0", "k\0x", "k!"];
    for key in others.iter().chain(&["k"]) {
        for token in ["a", "\0", "\u{10ffff}"] {
            let call = ["DLOCK.ACQUIRE", key, token, "60000", "PERMITS", "3", "EPHEMERAL"];
            assert!(holder.call(&call).int() > 0);
        }
    }
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 PERMITS 3 BLOCK 0");
    conn.ok("CONFIG SET maxmemory 1");
    drop(holder);
    for key in others {
        until("the hold without waiters ends", || conn.call(&["EXISTS", key]) == 0);
    }
    assert_eq!((holders(&mut conn, "k").len(), tokens(&mut conn, "k")), (3, vec!["b".to_string()]));
    conn.ok("CONFIG SET maxmemory 0");
    granted(&mut b);
    until("the other holds end", || holders(&mut conn, "k") == ["b"]);
    assert_eq!(server.number("dlock_disconnects"), 15);
}

/// With an eviction policy, the server evicts before each command, and memory may exceed the limit in
/// between. The background job must grant locks all the same.
#[each_server]
fn the_queue_is_served_while_memory_exceeds_an_eviction_limit(kind: &ServerKind) {
    let server = Server::options(kind).conf("maxmemory-policy volatile-lru").start();
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k a 3000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    conn.ok("SETRANGE first 4000000 x");
    conn.ok("EXPIRE first 1000");
    let used = server.number("used_memory");
    conn.ok(&format!("CONFIG SET maxmemory {}", used + 1_000_000));
    // The server compares its memory with the limit before this command, and exceeds the limit after it.
    conn.ok("SETRANGE second 2000000 x");
    granted(&mut b);
}

/// In an earlier version, a wait that timed out during a pause blocked the waiters behind it for ever. The
/// test stops writes by CLIENT PAUSE, because a CONFIG SET would make the module serve all queues.
#[each_server]
fn waits_time_out_in_a_pause_and_the_queue_is_served_after_it(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k a 60000 SHARED");
    conn.ok("DLOCK.ACQUIRE expired a 4000");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 5000");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 60000 SHARED BLOCK 0");
    let mut d = waiter(&server, "DLOCK.ACQUIRE expired d 60000 BLOCK 0");
    assert_eq!(conn.ok("CLIENT PAUSE 600000 WRITE"), "OK");
    assert_eq!(b.read(), Value::Nil);
    assert_eq!(conn.ok("DLOCK.HOLDS expired a"), 0);
    assert_eq!([tokens(&mut conn, "k"), tokens(&mut conn, "expired")], [["c"], ["d"]]);
    conn.ok("CLIENT UNPAUSE");
    granted(&mut c);
    granted(&mut d);
    assert_eq!(holders(&mut conn, "k"), ["a", "c"]);
}

/// The module probes whether the server accepts writes. The probe leaves no trace in statistics, logs or
/// MONITOR.
#[each_server]
fn the_write_probe_is_invisible_to_clients(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut monitor) = (server.connect(), server.connect());
    assert_eq!(monitor.ok("MONITOR"), "OK");
    conn.ok("CONFIG RESETSTAT");
    conn.ok("ACL LOG RESET");
    conn.ok("DLOCK.ACQUIRE k a 30");
    until("the lease ends", || conn.ok("EXISTS k") == 0);
    conn.ok("CONFIG SET min-replicas-to-write 1");
    let stats = conn.ok("INFO everything").text();
    assert!(stats.contains("cmdstat_DLOCK.ACQUIRE:calls=1,"), "{stats}");
    assert!(stats.contains("total_error_replies:0"), "{stats}");
    assert_eq!(conn.ok("ACL LOG").items().len(), 0);
    conn.ok("ECHO end");
    loop {
        let line = monitor.read().text().to_lowercase();
        // The probe is DLOCK._MAY, or a dry run of ACQUIRE with the token `?`.
        assert!(!line.contains("_may") && !line.contains("\"?\""), "{line}");
        if line.contains("\"end\"") {
            return;
        }
    }
}

/// After an error reply, "the server has done nothing" (docs/writing-a-client.md): a refused request of a
/// queued token neither renews its position nor changes its terms. One exception is documented: a request in
/// another mode gives up the position first.
#[each_server]
fn an_error_reply_to_a_queued_token_leaves_its_position_as_it_was(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let mut user = server.user("~* +dlock.acquire resetchannels");
    conn.ok("DLOCK.ACQUIRE held a 600000");
    let _waiter = waiter(&server, "DLOCK.ACQUIRE held c 600000 BLOCK 0");
    // An option of the server, its value during the request and after it; the mode in which the lock is held;
    // the options of the request; its error; and whether the position is kept. DEADLOCK is missing: only a
    // request that joins a queue gets it.
    for (option, [set, reset], held_as, options, error, is_kept) in [
        ("dlock.max-waiters", ["1", "10000"], "", "BLOCK 0", "QUEUEFULL", true),
        ("dlock.max-waiters-per-key", ["0", "1000"], "", "BLOCK 0", "QUEUEFULL", true),
        ("maxmemory", ["1", "0"], "", "", "OOM", true),
        ("min-replicas-to-write", ["1", "0"], "", "", "NOREPLICAS", true),
        ("dlock.max-ttl", ["700000", "86400000"], "", "", "ERR QUEUE", true),
        ("hz", ["10", "10"], "", "BLOCK x", "ERR", true),
        ("hz", ["10", "10"], "", "SNOTIFY a b", "ERR", true),
        ("hz", ["10", "10"], "", "NOTIFY other b", "NOPERM", true),
        ("dlock.max-holders-per-key", ["1", "100000"], "SHARED", "SHARED", "ERR one key", false),
    ] {
        let case = format!("{option} {options} {error}");
        let key = case.replace(' ', "-");
        assert!(conn.ok(format!("DLOCK.ACQUIRE {key} a 600000 {held_as}").trim()).int() > 0);
        let queue = format!("DLOCK.ACQUIRE {key} b 600000 QUEUE 600000 LABEL first");
        assert_eq!(conn.ok(&queue), Value::Nil);
        conn.ok(&format!("CONFIG SET {option} {set}"));
        let by = if error == "NOPERM" { &mut user } else { &mut conn };
        let again =
            by.say(format!("DLOCK.ACQUIRE {key} b 600000 QUEUE 6000000 LABEL again {options}").trim());
        assert!(again.error().starts_with(error), "{case}: {again:?}");
        conn.ok(&format!("CONFIG SET {option} {reset}"));
        let waiters = conn.ok(&format!("DLOCK.WAITERS {key}"));
        let labels: Vec<_> = waiters.items().iter().map(|waiter| waiter.field("label").text()).collect();
        assert_eq!(labels, if is_kept { vec!["first"] } else { vec![] }, "{case}");
        for waiter in waiters.items() {
            assert!(waiter.field("left").int() <= 600_000, "{case}: {waiter:?}");
        }
        for token in ["b", "a"] {
            conn.ok(&format!("DLOCK.RELEASE {key} {token}"));
        }
    }
}
