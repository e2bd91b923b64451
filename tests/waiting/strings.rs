//! `dlock.honour-strings`: a string counts as a lock of another client (`SET key token NX PX`) until
//! the string is removed.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dlock_testkit::queue::{granted, holders, tokens, until_no_waiters, waiter};
use dlock_testkit::{Events, Random, Server, ServerKind, Value, each_server, rounds, until};

fn server(kind: &ServerKind) -> Server {
    Server::options(kind).conf("dlock.honour-strings yes").conf("notify-keyspace-events Kd").start()
}

#[each_server]
fn the_queue_is_served_for_each_end_of_the_string(kind: &ServerKind) {
    let server = server(kind);
    let mut conn = server.connect();
    conn.ok("DEBUG SET-ACTIVE-EXPIRE 0");
    let removals: [&[&str]; 9] = [
        &["DEL k"],
        &["UNLINK k"],
        &["PEXPIRE k 5"],
        &["SET k other PX 5"],
        &["RENAME k elsewhere"],
        &["MOVE k 1"],
        &["FLUSHDB"],
        &["SWAPDB 0 2", "DEL k"],
        &["CONFIG SET maxmemory-policy allkeys-random", "CONFIG SET maxmemory 1", "SET x 1"],
    ];
    for removal in removals {
        assert_eq!(conn.ok("SET k foreign"), "OK");
        let mut a = waiter(&server, "DLOCK.ACQUIRE k a 600000 BLOCK 0");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
        // A request in the same write does not overtake the queue.
        let batch: Vec<&str> =
            removal.iter().copied().chain(["CONFIG SET maxmemory 0", "DLOCK.ACQUIRE k c 9"]).collect();
        let answers = conn.say_together(&batch);
        assert_eq!(answers.last(), Some(&Value::Nil), "{removal:?}");
        granted(&mut a);
        assert_eq!((holders(&mut conn, "k"), tokens(&mut conn, "k")), (vec!["a".into()], vec!["b".into()]));
        conn.ok("DLOCK.RELEASE k a");
        granted(&mut b);
        conn.ok("FLUSHALL");
    }
    until_no_waiters(&server);
}

#[each_server]
fn a_string_counts_as_held_by_another_client(kind: &ServerKind) {
    let server = server(kind);
    let mut conn = server.connect();
    conn.hello3();
    conn.ok("SET k foreign");
    assert!(conn.ok("DLOCK.ACQUIRE k a 60000").is_nil());
    assert!(conn.ok("DLOCK.ACQUIRE k a 60000 SHARED BLOCK 1").is_nil());
    let scripted = "EVAL return(redis.call('dlock.acquire','k','a',9,'block',0)) 1 k";
    assert!(conn.ok(scripted).is_nil());
    assert!(conn.ok("DLOCK.LIST 0").items()[1].items().is_empty(), "a script waits for no lock");
    let mut a = waiter(&server, "DLOCK.ACQUIRE k a 60000 BLOCK 0 LABEL host");
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 60000 BLOCK 0");
    let mut c = waiter(&server, "DLOCK.ACQUIRE k c 60000 BLOCK 0");
    assert_eq!(tokens(&mut conn, "k"), ["a", "b", "c"]);
    let seen = conn.ok("DLOCK.INSPECT k");
    assert_eq!(seen.field("mode"), &"string");
    assert_eq!(seen.field("waiters"), &Value::Int(3));
    let listed = conn.ok("DLOCK.LIST 0 WAITED").items()[1].items()[0].clone();
    assert_eq!(listed.field("mode"), &"string");
    assert_eq!((listed.field("holders"), listed.field("waiters")), (&Value::Int(0), &Value::Int(3)));
    // CANCEL and RELEASE end a wait. RELEASE returns 0, because c holds nothing.
    assert_eq!(conn.ok("DLOCK.CANCEL k b"), 1);
    assert_eq!(conn.ok("DLOCK.RELEASE k c"), 0);
    assert!(b.read().is_nil() && c.read().is_nil());
    for command in ["EXTEND k a 9", "HOLDS k a", "PTTL k", "CONFIRM k a 1 9", "BREAK k"] {
        assert!(conn.say(&format!("DLOCK.{command}")).error().starts_with("WRONGTYPE"), "{command}");
    }
    assert_eq!(conn.ok("GET k"), "foreign");
    // Any other type is data.
    conn.ok("DEL list");
    conn.ok("RPUSH list x");
    assert!(conn.say("DLOCK.ACQUIRE list a 9 BLOCK 0").error().starts_with("WRONGTYPE"));
    conn.ok("RENAME list k");
    assert!(a.read().error().starts_with("WRONGTYPE"));
    until_no_waiters(&server);
}

#[each_server]
fn set_over_a_lock_ends_its_hold_and_set_nx_does_not(kind: &ServerKind) {
    let server = server(kind);
    let mut conn = server.connect();
    let mut events = Events::subscribe(&server, "__keyspace@0__:k");
    conn.ok("DLOCK.ACQUIRE k a 600000");
    assert!(conn.ok("SET k foreign NX PX 600000").is_nil());
    let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
    assert_eq!(conn.ok("SET k foreign"), "OK");
    until("the end of a's hold is published", || {
        events.so_far().iter().any(|(_, event)| event == "dlock.free")
    });
    assert_eq!(tokens(&mut conn, "k"), ["b"], "b waits for the removal of the string");
    assert_eq!(conn.ok("DLOCK.RELEASE k a"), 0);
    conn.ok("DEL k");
    granted(&mut b);
}

#[each_server]
fn a_wait_for_a_string_ends_by_timeout_by_disconnect_and_when_the_option_is_switched_off(kind: &ServerKind) {
    let server = server(kind);
    let mut conn = server.connect();
    conn.ok("SET k foreign");
    let mut late = server.connect();
    late.send(&["DLOCK.ACQUIRE", "k", "late", "9", "BLOCK", "30"]);
    drop(waiter(&server, "DLOCK.ACQUIRE k gone 9 BLOCK 0"));
    assert!(late.read().is_nil());
    until_no_waiters(&server);
    let mut refused = waiter(&server, "DLOCK.ACQUIRE k refused 9 BLOCK 0");
    assert_eq!(conn.ok("CONFIG SET dlock.honour-strings no"), "OK");
    assert!(refused.read().error().starts_with("WRONGTYPE"));
    assert!(conn.say("DLOCK.ACQUIRE k a 9").error().starts_with("WRONGTYPE"));
    conn.ok("CONFIG SET dlock.honour-strings yes");
    conn.ok("CONFIG SET dlock.restart-grace 600000");
    conn.ok("DLOCK.ACQUIRE held a 600000");
    conn.ok("FLUSHALL");
    conn.ok("SET k foreign");
    assert!(conn.say("DLOCK.ACQUIRE k a 9 BLOCK 0").error().starts_with("GRACE"));
}

/// The critical section: at most one client may be inside.
#[derive(Default)]
struct Inside {
    occupied: AtomicBool,
    /// Entries by clients that lock with SET NX.
    by_set_nx: AtomicUsize,
    /// Entries by clients that lock with dlock.
    by_dlock: AtomicUsize,
}

impl Inside {
    fn enter(&self, entries: &AtomicUsize) {
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "two holders");
        entries.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
        self.occupied.store(false, Ordering::SeqCst);
    }
}

/// Acquires and releases the lock `times` times with SET NX, like a library without dlock.
fn run_set_nx_client(server: &Server, inside: &Inside, token: &str, random: &mut Random, times: usize) {
    const RELEASE: &str = "if redis.call('type',KEYS[1]).ok=='string' and redis.call('get',KEYS[1])==ARGV[1] then \
                           return redis.call('del',KEYS[1]) else return 0 end";
    let mut conn = server.connect();
    for _ in 0..times {
        while conn.call(&["SET", "k", token, "NX", "PX", "60000"]).is_nil() {
            std::thread::yield_now();
        }
        inside.enter(&inside.by_set_nx);
        match random.below(3) {
            // The client dies, or releases too late.
            0 => assert_eq!(conn.ok("PEXPIRE k 20"), 1),
            _ => assert_eq!(conn.call(&["EVAL", RELEASE, "1", "k", token]), 1),
        }
    }
}

fn run_dlock_client(server: &Server, inside: &Inside, token: &str, random: &mut Random, times: usize) {
    let mut conn = server.connect();
    for _ in 0..times {
        if random.below(4) == 0 {
            // A client that disconnects during its wait or just after its grant.
            let command = format!("DLOCK.ACQUIRE k {token}-killed 20 BLOCK 0");
            server.connect().send(&command.split(' ').collect::<Vec<_>>());
        }
        assert!(conn.ok(&format!("DLOCK.ACQUIRE k {token} 60000 BLOCK 0")).int() > 0);
        inside.enter(&inside.by_dlock);
        match random.below(3) {
            0 => assert_eq!(conn.ok(&format!("DLOCK.EXTEND k {token} 20")), 1),
            1 => assert_eq!(conn.ok("DLOCK.BREAK k"), 1),
            _ => assert_eq!(conn.ok(&format!("DLOCK.RELEASE k {token}")), 1),
        }
    }
}

#[each_server]
fn set_nx_clients_and_dlock_clients_exclude_each_other(kind: &ServerKind) {
    let times = 30 * rounds(1);
    let (server, inside, mut random) = (server(kind), Inside::default(), Random::fresh());
    std::thread::scope(|scope| {
        for n in 0..6 {
            let (server, inside, token) = (&server, &inside, format!("t{n}"));
            let mut random = random.branch();
            scope.spawn(move || match n % 2 {
                0 => run_set_nx_client(server, inside, &token, &mut random, times),
                _ => run_dlock_client(server, inside, &token, &mut random, times),
            });
        }
    });
    let all = [&inside.by_set_nx, &inside.by_dlock].map(|entries| entries.load(Ordering::Relaxed));
    assert_eq!(all, [3 * times; 2]);
    until_no_waiters(&server);
}
