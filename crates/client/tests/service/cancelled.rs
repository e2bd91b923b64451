//! An acquisition that is dropped at any point leaves no hold and no waiter.

use super::*;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::Poll;
use tokio::task::spawn_blocking;

/// Polls a future until it is ready, but at most `times` times, and then drops it.
async fn poll_times<F: Future>(times: usize, future: F) -> Option<F::Output> {
    let (mut future, mut left) = (Box::pin(future), times);
    poll_fn(move |context| {
        if left == 0 {
            return Poll::Ready(None);
        }
        left -= 1;
        future.as_mut().poll(context).map(Some)
    })
    .await
}

/// Number of masters, and options.
type Case = (usize, fn(Acquire) -> Acquire);

#[each_server]
async fn an_acquisition_cancelled_while_it_asks_or_confirms_leaves_no_hold(kind: &ServerKind) {
    let cases: [Case; 4] = [
        (1, |lock| lock.wait(Wait::No)),
        (3, |lock| lock.wait(Wait::No)),
        (3, |lock| lock.fenced()),
        (1, |lock| lock.ephemeral()),
    ];
    for (count, options) in cases {
        let (servers, client) = quorum(kind, count).await;
        let mut cancelled = 0;
        for polls in 0.. {
            let lock = options(client.lock("r").ttl(LONG));
            match poll_times(polls, lock.acquire()).await {
                None => cancelled += 1,
                Some(guard) => guard.expect("the lock is free").release().await.expect("the lock is held"),
            }
            until_nothing_is_left(&servers, "r");
            // The number of polls that an acquisition needs varies; `cancelled` is close to it. The tries go
            // on to twice this number, so that an acquisition is cancelled at each of its polls.
            if polls > 40 && polls > 2 * cancelled {
                break;
            }
        }
        assert!(cancelled > 0);
    }
}

const WAITS: [Case; 5] = [
    (1, |lock| lock),
    (1, |lock| lock.ephemeral()),
    (3, |lock| lock),
    (3, |lock| lock.fenced()),
    (5, |lock| lock.shared()),
];

#[each_server]
async fn a_wait_cancelled_at_its_grant_leaves_no_hold(kind: &ServerKind) {
    for (count, options) in WAITS {
        let (servers, client) = quorum(kind, count).await;
        let servers = Arc::new(servers);
        let (mut cancelled, mut acquired) = (0, 0);
        // Drops the future after 0, 1, .. polls, until a try has acquired the lock. Tries the first twelve
        // numbers twice.
        for (tries, polls) in (0..12).chain(0..).enumerate() {
            hold_as("other", &*servers);
            let ended = Arc::new(AtomicBool::new(false));
            let other = spawn_blocking({
                let (servers, ended) = (servers.clone(), ended.clone());
                move || {
                    until("the client waits, or its wait has ended", || {
                        waits_somewhere(&servers) || ended.load(Ordering::Relaxed)
                    });
                    release_as("other", &*servers);
                }
            });
            let lock = options(client.lock("r").ttl(LONG));
            let guard = poll_times(polls, lock.acquire()).await;
            ended.store(true, Ordering::Relaxed);
            match guard {
                None => cancelled += 1,
                Some(guard) => {
                    acquired += 1;
                    guard.expect("there was a handoff").release().await.expect("the lock is held");
                }
            }
            other.await.expect("no panic");
            until_nothing_is_left(&servers, "r");
            if tries >= 24 && acquired > 0 {
                break;
            }
        }
        assert!(cancelled > 0);
    }
}

#[each_server]
async fn a_wait_cancelled_in_the_queue_leaves_no_waiter(kind: &ServerKind) {
    for (count, options) in WAITS {
        let (servers, client) = quorum(kind, count).await;
        let servers = Arc::new(servers);
        for race in 0..16 {
            hold_as("other", &*servers);
            let mut acquires = Box::pin(options(client.lock("r").ttl(LONG)).acquire());
            // Every second acquisition is dropped during a handoff.
            let watcher = spawn_blocking({
                let servers = servers.clone();
                move || {
                    until("the client waits", || waits_somewhere(&servers));
                    if race % 2 == 1 {
                        release_as("other", &*servers);
                    }
                }
            });
            tokio::select! {
                acquired = &mut acquires => drop(acquired.expect("there was a handoff")),
                watched = watcher => watched.expect("no panic"),
            }
            drop(acquires);
            if race % 2 == 0 {
                until_waiting(&servers, 0);
                release_as("other", &*servers);
            }
            until_nothing_is_left(&servers, "r");
        }
    }
}

fn waits_somewhere(servers: &[Server]) -> bool {
    servers.iter().any(|server| !waiters(server).is_empty())
}
