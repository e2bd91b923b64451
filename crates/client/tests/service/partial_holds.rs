//! A hold on one master alone delays no client.

use std::time::Duration;
use tokio::task::JoinHandle;

use super::{LONG, client, head, holders, masters, until_held_everywhere, until_nothing_is_left};
use dlock_testkit::{Server, ServerKind, Value, each_server, queue, until};

/// Time limit of waits that need several tries.
const LONG_WAIT: Duration = Duration::from_secs(30);

/// Creates a hold on the clients' queue master only, as if a RELEASE there had been lost.
fn stale(servers: &[Server]) {
    assert!(head(servers).connect().ok("DLOCK.ACQUIRE r stale 600000").int() > 0);
}

/// Returns the number of waiters at the clients' queue master.
fn waiting(servers: &[Server]) -> usize {
    queue::clients(&mut head(servers).connect(), "r").len()
}

#[each_server]
async fn a_newcomer_acquires_past_a_hold_on_one_master(kind: &ServerKind) {
    for (count, fenced) in [(3, false), (5, true)] {
        let servers = masters(kind, count);
        stale(&servers);
        let client = client(&servers).await;
        let mut last = None;
        for _ in 0..3 {
            let lock = client.lock("r").ttl(LONG);
            let acquired = (if fenced { lock.fenced() } else { lock }).acquire();
            let guard = tokio::time::timeout(LONG_WAIT, acquired).await.expect("at once");
            let guard = guard.expect("a majority is free");
            assert_eq!(holders(head(&servers), "r"), ["stale"], "the partial hold is still there");
            assert!(guard.fence().is_some() == fenced && (guard.fence() > last || !fenced));
            last = guard.fence();
            guard.release().await.expect("the lock is held");
        }
        assert_eq!(head(&servers).connect().say("DLOCK.RELEASE r stale"), 1);
        until_nothing_is_left(&servers, "r");
    }
}

/// Waiters queued before the hold was left behind move to the next queue, and all are granted.
#[each_server]
async fn a_waiter_behind_a_hold_on_one_master_moves_to_the_next_queue(kind: &ServerKind) {
    for count in [3, 5] {
        let servers = masters(kind, count);
        for server in &servers {
            assert!(server.connect().ok("DLOCK.ACQUIRE r stale 600000").int() > 0);
        }
        let mut queue: Vec<JoinHandle<()>> = Vec::new();
        for position in 1..=3 {
            let lock = client(&servers).await.lock("r").fenced();
            queue.push(tokio::spawn(async move {
                let guard = lock.acquire().await.expect("a majority is free");
                guard.release().await.expect("the lock is held");
            }));
            until("the client is queued", || waiting(&servers) == position);
        }
        for other in servers.iter().filter(|server| server.port() != head(&servers).port()) {
            assert_eq!(other.connect().ok("DLOCK.RELEASE r stale"), 1);
        }
        for next in queue {
            tokio::time::timeout(LONG_WAIT, next).await.expect("its turn comes").expect("no panic");
            assert_eq!(holders(head(&servers), "r"), ["stale"], "the partial hold is still there");
        }
        until("nobody waits there", || waiting(&servers) == 0);
        assert_eq!(head(&servers).connect().say("DLOCK.RELEASE r stale"), 1);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_newcomer_overtakes_no_waiter_behind_a_hold_on_one_master(kind: &ServerKind) {
    let servers = masters(kind, 3);
    stale(&servers);
    let mut rival = queue::waiter(head(&servers), "DLOCK.ACQUIRE r rival 600000 BLOCK 0");
    let tried =
        client(&servers).await.lock("r").ttl(LONG).wait(dlock_client::Wait::For(Duration::from_millis(1)));
    tried.acquire().await.expect_err("the rival queued first");
    assert_eq!(head(&servers).connect().ok("DLOCK.RELEASE r stale"), 1);
    assert!(queue::granted(&mut rival) > 0);
    assert_eq!(head(&servers).connect().ok("DLOCK.RELEASE r rival"), 1);
    until_nothing_is_left(&servers, "r");
    assert_eq!(head(&servers).connect().ok("DLOCK.INSPECT r"), Value::Nil);
}

/// The partial hold is on any master. Clients that try all queues do not count its queue as in use.
#[each_server]
async fn all_contenders_proceed_past_a_hold_on_one_master(kind: &ServerKind) {
    for place in 0..3 {
        let mut servers = masters(kind, 3);
        servers.sort_by_cached_key(|server| server.info("run_id"));
        assert!(servers[place].connect().ok("DLOCK.ACQUIRE r stale 600000").int() > 0);
        let client = client(&servers).await;
        let tasks = (0..3).map(|_| {
            let client = client.clone();
            tokio::spawn(async move {
                for _ in 0..20 {
                    let guard = client.lock("r").ttl(LONG).acquire().await.expect("a majority is free");
                    guard.release().await.expect("the lock is held");
                }
            })
        });
        for task in tasks.collect::<Vec<_>>() {
            tokio::time::timeout(LONG_WAIT, task).await.expect("nobody is stuck").expect("no panic");
        }
        assert_eq!(holders(&servers[place], "r"), ["stale"], "the partial hold is still there");
    }
}

/// Clients leave a queue that does not move, also the last one.
#[each_server]
async fn a_waiter_behind_a_hold_on_the_last_master_returns_to_the_first(kind: &ServerKind) {
    let mut servers = masters(kind, 3);
    servers.sort_by_cached_key(|server| server.info("run_id"));
    for (number, server) in servers.iter().enumerate() {
        assert!(server.connect().ok(&format!("DLOCK.ACQUIRE r stale{number} 600000")).int() > 0);
    }
    let lock = client(&servers).await.lock("r").ttl(LONG);
    let waits = tokio::spawn(lock.acquire());
    let last = &servers[2];
    until("the client has joined the last queue", || !queue::tokens(&mut last.connect(), "r").is_empty());
    for (number, server) in servers[..2].iter().enumerate() {
        assert_eq!(server.connect().ok(&format!("DLOCK.RELEASE r stale{number}")), 1);
    }
    let acquired = tokio::time::timeout(LONG_WAIT, waits).await.expect("it leaves that queue");
    acquired.expect("no panic").expect("a majority is free").release().await.expect("the lock is held");
}

/// A master that refuses writes keeps the hold, so the client sends the release again.
#[each_server]
async fn a_refused_release_is_sent_again(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        let client = client(&servers).await;
        let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        for server in &servers {
            server.connect().ok("CONFIG SET min-replicas-to-write 1");
        }
        guard.release().await.expect_err("nobody writes");
        for server in &servers {
            server.connect().ok("CONFIG SET min-replicas-to-write 0");
        }
        until_nothing_is_left(&servers, "r");
    }
}
