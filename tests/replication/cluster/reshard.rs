//! `redis-cli --cluster reshard` under load, to another node and back.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;

use super::client::Client;
use dlock_testkit::cluster::{EQUAL_SLOTS, cluster, cluster_with, move_slot, reshard};
use dlock_testkit::history::History;
use dlock_testkit::workers::{Clock, SetAtTheEnd};
use dlock_testkit::{Random, Server, ServerKind, Value, each_server, locks, rounds, until, until_some};

/// Number of slots that move.
const SLOTS: usize = 60;

/// Returns `count` keys with this prefix in the slots that move, which are the lowest ones.
fn keys(node: &Server, prefix: &str, count: usize) -> Vec<String> {
    let mut conn = node.connect();
    let mut slot = |key: &String| conn.ok(&format!("CLUSTER KEYSLOT {key}")).int();
    let keys = (0..).map(|n| format!("{prefix}:{n}"));
    keys.filter(|key| slot(key) < SLOTS as i64).take(count).collect()
}

/// Acquires locks of every kind with leases that are longer than the test.
fn acquire_all(node: &Server, keys: &[String]) {
    let mut conn = node.connect();
    for (n, key) in keys.iter().enumerate() {
        let options = ["", "SHARED", "PERMITS 3", "DEPTH 4 LABEL host", "DELAY 50"][n % 5];
        assert!(conn.ok(&format!("DLOCK.ACQUIRE {key} t {} {options}", 600_000 + n)).int() > 0);
        if options.starts_with(['S', 'P']) {
            assert!(conn.ok(&format!("DLOCK.ACQUIRE {key} u 700000 {options}")).int() > 0);
        }
    }
}

/// Describes the locks that [`acquire_all`] has acquired, with their deadlines.
fn long_locks(node: &Server) -> Vec<String> {
    locks(node).into_iter().filter(|line| line.contains("long:")).collect()
}

#[each_server]
fn slots_moved_under_load_keep_their_holders_and_waiters(kind: &ServerKind) {
    let mut random = Random::fresh();
    let clock = Clock::start();
    // `here` keeps some slots: a node that gives its last slot to another node becomes a replica of that
    // node.
    let slots = [format!("0 {}", SLOTS + 9), format!("{} 8191", SLOTS + 10), "8192 16383".to_string()];
    let [here, there, other] = cluster(kind, [&slots[0], &slots[1], &slots[2]]);
    let (contended, long) = (keys(&here, "contended", 4), keys(&here, "long", 20));
    acquire_all(&here, &long);
    let before = long_locks(&here);
    let (granted, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    let until_more_grants = || {
        let before = granted.load(Ordering::Relaxed);
        until("20 more locks are granted", || granted.load(Ordering::Relaxed) > before + 20);
    };
    let mut clients: Vec<Client<'_>> = (0..6)
        .map(|n| Client::new(format!("client{n}"), &contended, other.port(), clock, random.branch()))
        .collect();
    // Each of these clients waits for one of the long locks, and follows the lock to its new node.
    let mut waiting: Vec<Client<'_>> = (0..4)
        .map(|n| Client::new(format!("waiting{n}"), &long[n..=n], here.port(), clock, random.branch()))
        .collect();
    thread::scope(|scope| {
        let _end = SetAtTheEnd(&over);
        for client in &mut clients {
            scope.spawn(|| {
                while !over.load(Ordering::Relaxed) {
                    granted.fetch_add(usize::from(client.lock_once()), Ordering::Relaxed);
                }
            });
        }
        for (client, key) in waiting.iter_mut().zip(&long) {
            scope.spawn(move || {
                client.ask(key, &format!("DLOCK.ACQUIRE {key} waiting 600000 BLOCK 0")).answer.int()
            });
        }
        until("four clients wait", || here.number("dlock_waiting") >= 4);
        let mut sides = [&here, &there];
        for _ in 0..rounds(2) {
            let [from, to] = sides;
            until_more_grants();
            reshard(from, to, SLOTS);
            assert_eq!(long_locks(to), before);
            assert!(long_locks(from).is_empty());
            sides.reverse();
        }
        until_more_grants();
        over.store(true, Ordering::Relaxed);
        // All four waiters must reach the node that now has the slots. It grants them the locks when the long
        // holds are released.
        let mut conn = sides[0].connect();
        until("the waiters have followed their locks", || {
            let waiters = |key: &String| conn.ok(&format!("DLOCK.WAITERS {key}")).items().len();
            long[..4].iter().map(waiters).sum::<usize>() == 4
        });
        for key in &long[..4] {
            for token in ["t", "u"] {
                conn.ok(&format!("DLOCK.RELEASE {key} {token} ALL"));
            }
        }
    });
    let redirected: usize = clients.iter().chain(&waiting).map(|client| client.redirected).sum();
    // A client that waits while its slot moves gets TRYAGAIN.
    let try_again: usize = waiting.iter().map(|client| client.try_again).sum();
    assert!(redirected > 0 && try_again >= 4, "{redirected} redirects, {try_again} TRYAGAIN");
    let denied: Vec<String> = clients.iter().flat_map(|client| client.denied.iter().cloned()).collect();
    assert!(denied.is_empty(), "{denied:#?}");
    let mut all = History::default();
    // Fences rise on each node, but can fall when a slot moves: a free lock has no key that would take its
    // last fence to the new node.
    let mut by_node: BTreeMap<u16, History> = BTreeMap::new();
    for (node, hold) in clients.into_iter().flat_map(|client| client.holds) {
        by_node.entry(node).or_default().holds.push(hold.clone());
        all.holds.push(hold);
    }
    let fence_violations = by_node.values().flat_map(History::fences);
    let violations: Vec<String> = all.exclusion().into_iter().chain(fence_violations).collect();
    assert!(violations.is_empty() && by_node.len() == 2, "{violations:#?}");
}

/// After a crash, fences continue above the mark, some seconds ahead of the clock. A free lock leaves no
/// fence in its slot, so the next fence is that of the other node's clock.
#[each_server]
fn no_fence_falls_when_a_slot_moves_right_after_a_crash(kind: &ServerKind) {
    let mut nodes = cluster_with(kind, EQUAL_SLOTS, &["cluster-node-timeout 60000", "save 3600 1"]);
    // A slot of the first node.
    let key = keys(&nodes[0], "k", 1).remove(0);
    let mut conn = nodes[0].connect();
    conn.ok(&format!("DLOCK.ACQUIRE {key} t 30000"));
    conn.ok("SAVE");
    let mut conn = nodes[0].kill_and_restart();
    // Neither ends the wait for the clock.
    conn.ok("FLUSHALL");
    conn.ok("CONFIG SET dlock.restart-grace 0");
    // Until the cluster is up and the clock has passed the mark, the answer is an error.
    let granted = || {
        let reply = conn.say(&format!("DLOCK.ACQUIRE {key} t 30000"));
        matches!(reply, Value::Int(_)).then_some(reply)
    };
    let fence = until_some("a grant after the crash", granted).int();
    conn.ok(&format!("DLOCK.RELEASE {key} t"));
    move_slot(&nodes, &nodes[0], &nodes[1], &key, || {});
    let next = nodes[1].connect().ok(&format!("DLOCK.ACQUIRE {key} u 30000")).int();
    assert!(next > fence, "{next} after {fence}");
}
