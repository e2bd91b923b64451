//! An acquisition that is dropped leaves nothing behind, at whichever point that happens.

use dlock_client::{Acquire, Wait};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};

use super::{LONG, client, each_kind, masters, until_nothing_is_left};
use crate::harness::{Server, ServerKind, until};
use crate::line;

/// Drives a future until it is ready or has been polled so many times, whichever is first.
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

/// Drops the acquisition after the first, the second, ... poll, until one comes through.
async fn cancel_everywhere(kind: &ServerKind, count: usize, options: fn(Acquire) -> Acquire) {
    let servers = masters(kind, count);
    let client = client(&servers).await;
    let mut cancelled = 0;
    for left in 0.. {
        let lock = options(client.lock("r").ttl(LONG));
        let acquired = Polls { future: Box::pin(lock.acquire()), left }.await;
        match acquired {
            None => cancelled += 1,
            Some(guard) => guard.expect("nobody else wants it").release().await.expect("it is held"),
        }
        until_nothing_is_left(&servers, "r");
        // How often it is polled is up to the runtime: a few more tries make sure that the last points are met too.
        if left > 40 && left > 2 * cancelled {
            break;
        }
    }
    assert!(cancelled > 0);
}

#[test]
fn cancelled_while_asking() {
    each_kind(async |kind| {
        for count in [1, 3] {
            cancel_everywhere(kind, count, |lock| lock.wait(Wait::No)).await;
        }
    });
}

#[test]
fn cancelled_while_confirming() {
    each_kind(async |kind| cancel_everywhere(kind, 3, |lock| lock.fenced()).await);
}

#[test]
fn cancelled_ephemeral() {
    each_kind(async |kind| cancel_everywhere(kind, 1, |lock| lock.ephemeral()).await);
}

#[test]
fn cancelled_while_waiting() {
    each_kind(async |kind| {
        for count in [1, 3] {
            for options in [|lock: Acquire| lock, |lock: Acquire| lock.fenced()] {
                cancel_in_line(kind, count, options).await;
            }
        }
        cancel_in_line(kind, 1, |lock| lock.ephemeral()).await;
    });
}

/// Somebody else holds it, and releases it as soon as the acquisition is in line.
async fn cancel_in_line(kind: &ServerKind, count: usize, options: fn(Acquire) -> Acquire) {
    let servers = Arc::new(masters(kind, count));
    let client = client(&servers).await;
    let (mut in_line, mut dropped_there) = (0, 0);
    for left in 0..60 {
        for server in servers.iter() {
            assert!(server.connect().ok("DLOCK.ACQUIRE r other 600000").int() > 0);
        }
        let over = Arc::new(AtomicBool::new(false));
        let other = {
            let (servers, over) = (servers.clone(), over.clone());
            tokio::task::spawn_blocking(move || release_when_somebody_waits(&servers, &over))
        };
        let lock = options(client.lock("r").ttl(LONG));
        let acquired = Polls { future: Box::pin(lock.acquire()), left }.await;
        over.store(true, Ordering::Relaxed);
        let was_in_line = other.await.expect("no panic");
        in_line += usize::from(was_in_line);
        match acquired {
            None => dropped_there += usize::from(was_in_line),
            Some(guard) => guard.expect("it was handed over").release().await.expect("it is held"),
        }
        until_nothing_is_left(&servers, "r");
    }
    assert!(in_line > dropped_there && dropped_there > 0, "{in_line} in line, {dropped_there} dropped");
}

/// True if somebody came in line before it was over.
fn release_when_somebody_waits(servers: &[Server], over: &AtomicBool) -> bool {
    let mut waited = false;
    until("somebody waits, or it is over", || {
        waited = servers.iter().any(|server| !line::clients(&mut server.connect(), "r").is_empty());
        waited || over.load(Ordering::Relaxed)
    });
    for server in servers {
        assert_eq!(server.connect().ok("DLOCK.RELEASE r other"), 1);
    }
    waited
}
