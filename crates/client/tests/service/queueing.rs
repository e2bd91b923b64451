//! Waits in the queues of a single server and of a quorum.

use super::*;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use std::collections::HashSet;
use std::sync::{Arc, Mutex};
use tokio::task::JoinHandle;

/// Starts an acquisition in a task, and returns when it is queued behind `ahead` waiters.
fn wait_behind(client: &Client, servers: &[Server], ahead: usize) -> JoinHandle<Result<Guard, AcquireError>> {
    let waits = tokio::spawn(client.lock("r").ttl(LONG).wait(Wait::For(LONG)).fenced().acquire());
    until_waiting(servers, ahead + 1);
    waits
}

#[each_server]
async fn the_queue_keeps_its_order_and_fences_rise_with_it(kind: &ServerKind) {
    for count in [1, 3, 5] {
        let servers = masters(kind, count);
        let holder = client(&servers).await;
        let mut guard = holder.lock("r").ttl(LONG).fenced().acquire().await.expect("the lock is free");
        let mut queue = Vec::new();
        for ahead in 0..4 {
            queue.push(wait_behind(&client(&servers).await, &servers, ahead));
        }
        assert_eq!(waiters(queue_master(&servers)).len(), 4, "all wait in one queue");
        for next in queue {
            let fence = guard.fence();
            guard.release().await.expect("the lock is held");
            guard = next.await.expect("no panic").expect("there was a handoff");
            assert!(guard.fence() > fence);
        }
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

/// Clients wait at the first master in the order of run ids. A client acquires the lock by a majority, but a
/// later master refuses, because other clients hold the lock and wait there. All waits of the client move to
/// that queue. Otherwise, the heads of two queues would keep each other from a majority.
#[each_server]
async fn waits_of_one_client_move_together_to_the_queue_of_others(kind: &ServerKind) {
    move_together(kind, |_| {}, |_| {}).await;
}

/// The refusal by the later master arrives only after the client has acquired the lock.
#[each_server]
async fn waits_move_to_the_queue_of_others_after_a_late_answer(kind: &ServerKind) {
    move_together(kind, Server::pause, Server::resume).await;
}

/// Runs `before` and `after` on the later master around the acquisition.
async fn move_together(kind: &ServerKind, before: fn(&Server), after: fn(&Server)) {
    let servers = masters(kind, 3);
    hold_as("other", &servers);
    let client = client(&servers).await;
    let mut queue: Vec<_> = (0..40).map(|ahead| wait_behind(&client, &servers, ahead)).collect();
    // The other clients are at the last master. In the queue of the middle one, this client's waits would not
    // stay: they leave every queue but the last one if the holder there has no majority.
    let mut order: Vec<&Server> = servers.iter().collect();
    order.sort_by_cached_key(|server| server.info("run_id"));
    let [first, middle, later] = order[..] else { panic!("three masters") };
    // The hold is made anew, because clients do not move to the queue behind an old hold without a majority.
    release_as("other", [later]);
    hold_as("other", [later]);
    assert!(later.connect().ok("DLOCK.ACQUIRE r another 600000 QUEUE 600000").is_nil());
    before(later);
    // The middle master is freed before the first one grants the lock to a waiter. Otherwise the middle one
    // could refuse this waiter, and the waits would move to the middle queue.
    release_as("other", [middle, first]);
    let mut guard = queue.remove(0).await.expect("no panic").expect("a majority is free");
    after(later);
    let mut joined = HashSet::new();
    until("all waits have joined the later queue", || {
        joined.extend(waiters(later));
        joined.len() == 40
    });
    assert_eq!(later.connect().ok("DLOCK.CANCEL r another"), 1);
    release_as("other", [later]);
    // The waits may have joined in any order.
    let mut queue: FuturesUnordered<_> = queue.into_iter().collect();
    while !queue.is_empty() {
        guard.release().await.expect("the lock is held");
        guard = queue.next().await.expect("a wait is left").expect("no panic").expect("there was a handoff");
    }
    guard.release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn a_wait_that_times_out_reports_taken_and_leaves_no_waiter(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let guard = ann.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        let waited = bob.lock("r").wait(Wait::For(Duration::from_secs(1))).acquire().await;
        let Err(AcquireError::Taken { report, .. }) = waited else { panic!("{waited:?}") };
        assert!(report.0.iter().any(|node| node.state == NodeState::Taken), "{report}");
        // Checked without delay, because bob's next request must not queue behind the old one.
        assert!(servers.iter().all(|server| waiters(server).is_empty()));
        guard.release().await.expect("the lock is held");
    }
}

#[each_server]
async fn waiters_move_to_the_next_queue_when_their_master_dies_or_falls_silent(kind: &ServerKind) {
    for dies in [true, false] {
        let servers = masters(kind, 3);
        let build = async || builder(&servers).node_timeout(Duration::from_secs(1)).build().await;
        let (ann, bob) = (build().await.expect("a client"), build().await.expect("a client"));
        let guard = ann.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        let waits = wait_behind(&bob, &servers, 0);
        let first = queue_master(&servers);
        if dies {
            first.kill9()
        } else {
            first.pause()
        }
        until("the client waits at another master", || {
            all_but(&servers, first).any(|server| !waiters(server).is_empty())
        });
        guard.release().await.expect("two of three answer");
        let guard = waits.await.expect("no panic").expect("there was a handoff");
        if !dies {
            first.resume();
            let mut conn = first.connect();
            until("the client has left the silent queue", || {
                conn.ok("INFO commandstats").text().to_lowercase().contains("cmdstat_dlock.cancel")
            });
        }
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

/// An outage does not end a wait before its timeout, and is reported once.
#[each_server]
async fn a_wait_survives_the_death_of_servers(kind: &ServerKind) {
    for count in [1, 3] {
        for wait in [Wait::Forever, Wait::For(LONG)] {
            let mut servers = masters(kind, count);
            let retry = Retry::new(1, Duration::from_millis(10));
            let client = builder(&servers).retry(retry).build().await.expect("a client");
            hold_as("other", &servers);
            let outages = Arc::new(Mutex::new(Vec::new()));
            let reported = outages.clone();
            let lock = client.lock("r").wait(wait);
            let lock = lock.on_outage(move |report| reported.lock().unwrap().push(report.clone()));
            let waits = tokio::spawn(lock.acquire());
            until_waiting(&servers, 1);
            servers.iter().for_each(Server::kill9);
            until("the outage is reported", || !outages.lock().unwrap().is_empty());
            assert!(!waits.is_finished());
            servers.iter_mut().for_each(Server::restart);
            let guard = waits.await.expect("no panic").expect("the restarted servers grant the lock");
            guard.release().await.expect("the lock is held");
            let outages = outages.lock().unwrap();
            assert_eq!(outages.len(), 1, "the outage is reported once");
            assert!(outages[0].0.iter().any(|node| matches!(node.state, NodeState::Down(_))));
        }
    }
}

#[each_server]
async fn a_wait_ends_at_its_timeout_when_masters_are_missing(kind: &ServerKind) {
    let in_grace = Server::options(kind).conf("dlock.restart-grace 600000").start();
    let dead = Server::start(kind);
    dead.kill9();
    for server in [in_grace, dead] {
        // The timeout must end the wait long before these retries would.
        let retry = Retry::new(200, LONG);
        let client = builder(std::slice::from_ref(&server)).retry(retry).build().await.expect("a client");
        let lock = client.lock("r").wait(Wait::For(Duration::from_secs(1)));
        let ended = tokio::time::timeout(TIMEOUT / 3, lock.acquire()).await.expect("the wait ends");
        assert!(matches!(ended, Err(AcquireError::QuorumImpossible { .. })), "{ended:?}");
    }
}

#[each_server]
async fn a_waiter_gets_a_report_of_each_position(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let holder = client(&servers).await;
    let guard = holder.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    let first = wait_behind(&client(&servers).await, &servers, 0);
    let reports = Arc::new(Mutex::new(Vec::new()));
    let reported = reports.clone();
    let second =
        client(&servers).await.lock("r").on_position(move |report| reported.lock().unwrap().push(report));
    let second = tokio::spawn(second.acquire());
    until("position 2 is reported", || reports.lock().unwrap().iter().any(|report| report.position == 2));
    guard.release().await.expect("the lock is held");
    let guard = first.await.expect("no panic").expect("there was a handoff");
    until("position 1 is reported", || reports.lock().unwrap().iter().any(|report| report.position == 1));
    guard.release().await.expect("the lock is held");
    second.await.expect("no panic").expect("there was a handoff").release().await.expect("the lock is held");
    let reports = reports.lock().unwrap();
    let positions: Vec<u64> = reports.iter().map(|report| report.position).collect();
    assert_eq!(positions, [2, 1], "each position is reported once");
    assert!(reports.iter().all(|report| *report.server == url(queue_master(&servers))));
}

#[each_server]
async fn try_acquire_fails_in_the_grace_period_and_acquire_waits_for_its_end(kind: &ServerKind) {
    for count in [1, 3] {
        let grace = |_| Server::options(kind).conf("dlock.restart-grace 6000").start();
        let servers: Vec<Server> = (0..count).map(grace).collect();
        let client = client(&servers).await;
        let ttl = Duration::from_secs(6);
        let why = client.lock("r").ttl(ttl).try_acquire().await.expect_err("no server grants");
        let AcquireError::QuorumImpossible { report, .. } = &why else { panic!("{why:?}") };
        assert!(report.0.iter().any(|node| matches!(node.state, NodeState::InGrace(_))), "{why}");
        assert!(why.to_string().contains("in grace for "), "{why}");
        let guard = client.lock("r").ttl(ttl).acquire().await.expect("the grace period ends");
        assert!(held_on(&servers, "r") > count / 2);
        guard.release().await.expect("the lock is held");
    }
}

/// A grace period can end early by `CONFIG SET dlock.restart-grace 0`.
#[each_server]
async fn a_waiter_asks_again_when_the_grace_period_ends(kind: &ServerKind) {
    for count in [1, 3] {
        let grace = |_| Server::options(kind).conf("dlock.restart-grace 600000").start();
        let servers: Vec<Server> = (0..count).map(grace).collect();
        let lock = client(&servers).await.lock("r").ttl(LONG);
        let refused = |server: &Server| {
            let stats = server.connect().ok("INFO commandstats").text();
            stats.lines().any(|line| line.starts_with("cmdstat_DLOCK.ACQUIRE:"))
        };
        let waits = tokio::spawn(lock.acquire());
        until("all servers have refused the request", || servers.iter().all(refused));
        for server in &servers {
            server.connect().ok("CONFIG SET dlock.restart-grace 0");
        }
        let acquired = tokio::time::timeout(TIMEOUT, waits).await.expect("the client asks again");
        acquired.expect("no panic").expect("the lock is free").release().await.expect("the lock is held");
    }
}

#[each_server]
async fn a_full_queue_is_an_error_of_its_own_whatever_the_wait(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        for server in &servers {
            server.connect().ok("CONFIG SET dlock.max-waiters-per-key 1");
        }
        hold_as("other", &servers);
        let _first = wait_behind(&client, &servers, 0);
        for wait in [Wait::Forever, Wait::For(LONG)] {
            let why = client.lock("r").wait(wait).acquire().await.expect_err("the queue is full");
            assert!(matches!(why, AcquireError::QueueFull { .. }), "{why:?}");
        }
    }
}
