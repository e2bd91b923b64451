//! A partial hold, which only one master of a quorum has, delays no client. All clients queue at the master
//! with the smallest run id; the next queue is that of the next run id.

use super::*;

/// Time limit of waits that need several tries.
const LONG_WAIT: Duration = Duration::from_secs(30);

#[each_server]
async fn a_newcomer_acquires_past_a_hold_on_one_master(kind: &ServerKind) {
    for (count, fenced) in [(3, false), (5, true)] {
        let servers = masters(kind, count);
        hold_as("stale", [queue_master(&servers)]);
        let client = client(&servers).await;
        let mut last = None;
        for _ in 0..3 {
            let lock = client.lock("r").ttl(LONG);
            let acquired = (if fenced { lock.fenced() } else { lock }).acquire();
            let guard = tokio::time::timeout(LONG_WAIT, acquired).await.expect("the client does not wait");
            let guard = guard.expect("a majority is free");
            assert_eq!(holders(queue_master(&servers), "r"), ["stale"], "the partial hold is still there");
            assert!(guard.fence().is_some() == fenced && (guard.fence() > last || !fenced));
            last = guard.fence();
            guard.release().await.expect("the lock is held");
        }
        release_as("stale", [queue_master(&servers)]);
        until_nothing_is_left(&servers, "r");
    }
}

/// The clients queue before the hold becomes partial. They move to the next queue, and all acquire the lock.
#[each_server]
async fn a_waiter_behind_a_hold_on_one_master_moves_to_the_next_queue(kind: &ServerKind) {
    for count in [3, 5] {
        let servers = masters(kind, count);
        hold_as("stale", &servers);
        let mut queue = Vec::new();
        for position in 1..=3 {
            let lock = client(&servers).await.lock("r").fenced();
            queue.push(tokio::spawn(async move {
                let guard = lock.acquire().await.expect("a majority is free");
                guard.release().await.expect("the lock is held");
            }));
            until_waiting(&servers, position);
        }
        release_as("stale", all_but(&servers, queue_master(&servers)));
        for next in queue {
            tokio::time::timeout(LONG_WAIT, next).await.expect("the waiter is granted").expect("no panic");
            assert_eq!(holders(queue_master(&servers), "r"), ["stale"], "the partial hold is still there");
        }
        until_waiting(&servers, 0);
        release_as("stale", [queue_master(&servers)]);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_newcomer_overtakes_no_waiter_behind_a_hold_on_one_master(kind: &ServerKind) {
    let servers = masters(kind, 3);
    hold_as("stale", [queue_master(&servers)]);
    let mut rival = queue::waiter(queue_master(&servers), "DLOCK.ACQUIRE r rival 600000 BLOCK 0");
    let tried = client(&servers).await.lock("r").ttl(LONG).wait(Wait::For(Duration::from_millis(1)));
    tried.acquire().await.expect_err("the rival queued first");
    release_as("stale", [queue_master(&servers)]);
    assert!(queue::granted(&mut rival) > 0);
    release_as("rival", [queue_master(&servers)]);
    until_nothing_is_left(&servers, "r");
}

/// Each master has the hold of a different token. So no waiter can get a majority until the holds on the
/// first two masters end.
#[each_server]
async fn a_waiter_behind_a_hold_on_the_last_master_returns_to_the_first(kind: &ServerKind) {
    let mut servers = masters(kind, 3);
    servers.sort_by_cached_key(|server| server.info("run_id"));
    for (server, token) in servers.iter().zip(["first", "second", "last"]) {
        hold_as(token, [server]);
    }
    let lock = client(&servers).await.lock("r").ttl(LONG);
    let waits = tokio::spawn(lock.acquire());
    until("the client has joined the last queue", || !waiters(&servers[2]).is_empty());
    release_as("first", [&servers[0]]);
    release_as("second", [&servers[1]]);
    let acquired = tokio::time::timeout(LONG_WAIT, waits).await.expect("the client leaves the last queue");
    acquired.expect("no panic").expect("a majority is free").release().await.expect("the lock is held");
}

/// A master that refuses writes keeps the hold, so the client sends the release again.
#[each_server]
async fn a_refused_release_is_sent_again(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        for server in &servers {
            server.connect().ok("CONFIG SET min-replicas-to-write 1");
        }
        guard.release().await.expect_err("no server writes");
        for server in &servers {
            server.connect().ok("CONFIG SET min-replicas-to-write 0");
        }
        until_nothing_is_left(&servers, "r");
    }
}
