//! `dlock.honour-strings`: a string counts as a lock of another client (`SET key token NX PX`) until
//! the string is removed. `conformance/honour-strings*.json` test each command on a string.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use dlock_testkit::queue::{granted, holders, tokens, until_no_waiters, waiter};
use dlock_testkit::{Random, Server, ServerKind, Value, each_server, rounds};

fn honouring_server(kind: &ServerKind) -> Server {
    Server::options(kind).conf("dlock.honour-strings yes").start()
}

#[each_server]
fn the_queue_is_served_whatever_removes_the_string(kind: &ServerKind) {
    let server = honouring_server(kind);
    let mut conn = server.connect();
    // The server does not search for expired keys, so the module must notice the end of a string's TTL.
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
        // `SET x 1` makes the server evict the string. Each batch below removes the limit again.
        &["CONFIG SET maxmemory-policy allkeys-random", "CONFIG SET maxmemory 1", "SET x 1"],
    ];
    for removal in removals {
        assert_eq!(conn.ok("SET k foreign"), "OK");
        let mut a = waiter(&server, "DLOCK.ACQUIRE k a 600000 BLOCK 0");
        let mut b = waiter(&server, "DLOCK.ACQUIRE k b 600000 BLOCK 0");
        // A request that is pipelined with the removal does not overtake the queue.
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

/// The critical section: at most one client may be inside.
#[derive(Default)]
struct Section {
    occupied: AtomicBool,
    /// Entries by clients that lock with SET NX.
    by_set_nx: AtomicUsize,
    /// Entries by clients that lock with dlock.
    by_dlock: AtomicUsize,
}

impl Section {
    fn enter(&self, entries: &AtomicUsize) {
        assert!(!self.occupied.swap(true, Ordering::SeqCst), "two clients are in the critical section");
        entries.fetch_add(1, Ordering::Relaxed);
        std::thread::yield_now();
        self.occupied.store(false, Ordering::SeqCst);
    }
}

/// Acquires and releases the lock `times` times with SET NX, like a library without dlock.
fn run_set_nx_client(server: &Server, section: &Section, token: &str, random: &mut Random, times: usize) {
    const RELEASE: &str = "if redis.call('type',KEYS[1]).ok=='string' and redis.call('get',KEYS[1])==ARGV[1] then \
                           return redis.call('del',KEYS[1]) else return 0 end";
    let mut conn = server.connect();
    for _ in 0..times {
        while conn.call(&["SET", "k", token, "NX", "PX", "60000"]).is_nil() {
            std::thread::yield_now();
        }
        section.enter(&section.by_set_nx);
        match random.below(3) {
            // The lock expires, as after the death of its client.
            0 => assert_eq!(conn.ok("PEXPIRE k 20"), 1),
            _ => assert_eq!(conn.call(&["EVAL", RELEASE, "1", "k", token]), 1),
        }
    }
}

fn run_dlock_client(server: &Server, section: &Section, token: &str, random: &mut Random, times: usize) {
    let mut conn = server.connect();
    for _ in 0..times {
        if random.below(4) == 0 {
            // A client that disconnects during its wait or just after its grant.
            let command = format!("DLOCK.ACQUIRE k {token}-killed 20 BLOCK 0");
            server.connect().send(&command.split(' ').collect::<Vec<_>>());
        }
        assert!(conn.ok(&format!("DLOCK.ACQUIRE k {token} 60000 BLOCK 0")).int() > 0);
        section.enter(&section.by_dlock);
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
    let (server, section, mut random) = (honouring_server(kind), Section::default(), Random::fresh());
    std::thread::scope(|scope| {
        for n in 0..6 {
            let (server, section, token) = (&server, &section, format!("t{n}"));
            let mut random = random.branch();
            scope.spawn(move || match n % 2 {
                0 => run_set_nx_client(server, section, &token, &mut random, times),
                _ => run_dlock_client(server, section, &token, &mut random, times),
            });
        }
    });
    let all = [&section.by_set_nx, &section.by_dlock].map(|entries| entries.load(Ordering::Relaxed));
    assert_eq!(all, [3 * times; 2]);
    until_no_waiters(&server);
}
