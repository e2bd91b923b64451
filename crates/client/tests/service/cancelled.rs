//! An acquisition that is dropped at any point leaves no hold and no waiter.

use dlock_client::{Acquire, Wait};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use tokio::task::spawn_blocking;

use super::{LONG, client, masters, until_nothing_is_left};
use dlock_testkit::queue;
use dlock_testkit::{Server, ServerKind, each_server, until};

/// Polls a future until it is ready or the number of polls is reached.
struct Polls<F> {
    future: Pin<Box<F>>,
    left: usize,
}

impl<F: Future> Future for Polls<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            return Poll::Ready(None);
        }
        self.left -= 1;
        self.future.as_mut().poll(cx).map(Some)
    }
}

/// Drops the acquisition after one poll, two polls, .. until one succeeds.
async fn cancel_everywhere(kind: &ServerKind, count: usize, options: fn(Acquire) -> Acquire) {
    let servers = masters(kind, count);
    let client = client(&servers).await;
    let mut cancelled = 0;
    for left in 0.. {
        let lock = options(client.lock("r").ttl(LONG));
        let acquired = Polls { future: Box::pin(lock.acquire()), left }.await;
        match acquired {
            None => cancelled += 1,
            Some(guard) => guard.expect("nobody else wants it").release().await.expect("the lock is held"),
        }
        until_nothing_is_left(&servers, "r");
        // The runtime decides the number of polls: some more tries reach the last points too.
        if left > 40 && left > 2 * cancelled {
            break;
        }
    }
    assert!(cancelled > 0);
}

#[each_server]
async fn an_acquisition_cancelled_while_it_asks_leaves_no_hold(kind: &ServerKind) {
    for count in [1, 3] {
        cancel_everywhere(kind, count, |lock| lock.wait(Wait::No)).await;
    }
}

#[each_server]
async fn an_acquisition_cancelled_while_it_confirms_leaves_no_hold(kind: &ServerKind) {
    cancel_everywhere(kind, 3, |lock| lock.fenced()).await;
}

#[each_server]
async fn an_ephemeral_acquisition_that_is_cancelled_leaves_no_hold(kind: &ServerKind) {
    cancel_everywhere(kind, 1, |lock| lock.ephemeral()).await;
}

/// Number of masters, and options.
type InLine = (usize, fn(Acquire) -> Acquire);

/// The kinds of waits.
const WAITS: [InLine; 5] = [
    (1, |lock| lock),
    (1, |lock| lock.ephemeral()),
    (3, |lock| lock),
    (3, |lock| lock.fenced()),
    (5, |lock| lock.shared()),
];

#[each_server]
async fn a_wait_cancelled_at_its_grant_leaves_no_hold(kind: &ServerKind) {
    for (count, options) in WAITS {
        let servers = Arc::new(masters(kind, count));
        let client = client(&servers).await;
        let (mut cancelled, mut came_through) = (0, 0);
        // The runtime decides the number of polls: ends when a second try succeeds.
        for (tries, left) in (0..12).chain(0..).enumerate() {
            hold_as_other(&servers);
            let over = Arc::new(AtomicBool::new(false));
            let other = spawn_blocking({
                let (servers, over) = (servers.clone(), over.clone());
                move || {
                    until("somebody waits, or it has ended", || {
                        waits_somewhere(&servers) || over.load(Ordering::Relaxed)
                    });
                    release_as_other(&servers);
                }
            });
            let lock = options(client.lock("r").ttl(LONG));
            let acquired = Polls { future: Box::pin(lock.acquire()), left }.await;
            over.store(true, Ordering::Relaxed);
            match acquired {
                None => cancelled += 1,
                Some(guard) => {
                    came_through += 1;
                    guard.expect("there was a handoff").release().await.expect("the lock is held");
                }
            }
            other.await.expect("no panic");
            until_nothing_is_left(&servers, "r");
            if tries >= 24 && came_through > 0 {
                break;
            }
        }
        assert!(cancelled > 0);
    }
}

#[each_server]
async fn a_wait_cancelled_in_the_queue_leaves_no_waiter(kind: &ServerKind) {
    for (count, options) in WAITS {
        let servers = Arc::new(masters(kind, count));
        let client = client(&servers).await;
        for race in 0..16 {
            hold_as_other(&servers);
            let mut acquires = Box::pin(options(client.lock("r").ttl(LONG)).acquire());
            // Every second try is dropped during a handoff.
            let seen = spawn_blocking({
                let servers = servers.clone();
                move || {
                    until("the client waits", || waits_somewhere(&servers));
                    if race % 2 == 1 {
                        release_as_other(&servers);
                    }
                }
            });
            tokio::select! {
                acquired = &mut acquires => drop(acquired.expect("there was a handoff")),
                seen = seen => seen.expect("no panic"),
            }
            drop(acquires);
            if race % 2 == 0 {
                until("nobody waits any more", || !waits_somewhere(&servers));
                release_as_other(&servers);
            }
            until_nothing_is_left(&servers, "r");
        }
    }
}

fn hold_as_other(servers: &[Server]) {
    for server in servers {
        assert!(server.connect().ok("DLOCK.ACQUIRE r other 600000").int() > 0);
    }
}

fn release_as_other(servers: &[Server]) {
    for server in servers {
        assert_eq!(server.connect().ok("DLOCK.RELEASE r other"), 1);
    }
}

fn waits_somewhere(servers: &[Server]) -> bool {
    servers.iter().any(|server| !queue::clients(&mut server.connect(), "r").is_empty())
}
