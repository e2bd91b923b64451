//! Holds while their runtime is blocked, after it has ended, and after their validity has ended.

use super::*;
use futures_util::FutureExt;
use tokio::runtime::{Builder, Runtime};

const TTL: Duration = Duration::from_secs(6);

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

async fn client(servers: &[Server]) -> Client {
    Client::builder().servers(servers.iter().map(url)).build().await.expect("a client")
}

#[each_server]
fn a_hold_is_renewed_while_its_runtime_is_blocked_and_between_block_ons(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        let runtime = runtime();
        let (client, guard) = runtime.block_on(async {
            let client = client(&servers).await;
            let guard = client.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
            outlast_lease(&guard, TTL);
            (client, guard)
        });
        outlast_lease(&guard, TTL);
        until_held_everywhere(&servers, "r");
        runtime.block_on(guard.release()).expect("the lock is held");
        runtime.block_on(client.close());
        assert_eq!(held_on(&servers, "r"), 0);
    }
}

/// A reentrant acquisition shares the hold of an earlier one, but not if that hold is lost.
#[each_server]
fn a_hold_that_ends_while_its_runtime_is_blocked_is_lost_and_not_shared(kind: &ServerKind) {
    let servers = masters(kind, 1);
    runtime().block_on(async {
        let client = client(&servers).await;
        let lock = || client.lock("r").ttl(Duration::from_secs(2)).renew(false).reentrant();
        let guard = lock().acquire().await.expect("the lock is free");
        let cancellation = guard.cancellation();
        until("the validity has ended", || now() > guard.valid_until());
        let again = lock().acquire().await.expect("the lock is free");
        assert_ne!(again.token(), guard.token(), "the two guards have separate holds");
        assert_eq!(guard.loss(), Some(Lost::Ended));
        assert!(cancellation.is_cancelled() && guard.cancellation().is_cancelled());
        assert_eq!(guard.lost().await, Lost::Ended);
        again.release().await.expect("the lock is held");
    });
}

#[each_server]
fn a_guard_outlives_its_runtime_and_is_renewed_and_released(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        let acquire = |ttl| {
            let runtime = runtime();
            let lock = async { client(&servers).await.lock("r").ttl(ttl).acquire().await };
            runtime.block_on(lock).expect("the lock is free")
        };
        let guard = acquire(TTL);
        outlast_lease(&guard, TTL);
        until_held_everywhere(&servers, "r");
        drop(guard);
        until_nothing_is_left(&servers, "r");
        drop(acquire(LONG));
        until_nothing_is_left(&servers, "r");
    }
}

/// With renewals, the extension sets a short lease, and the renewals wait for the extension. Without
/// renewals, the extension sets a long lease. In both cases it must complete while the runtime is blocked.
#[each_server]
fn a_hold_outlasts_its_lease_when_its_runtime_is_blocked_during_an_extension(kind: &ServerKind) {
    for (count, renews, ttl) in [(1, true, TTL), (3, true, TTL), (1, false, LONG), (3, false, LONG)] {
        let servers = masters(kind, count);
        runtime().block_on(async {
            let client = builder(&servers).node_timeout(LONG).build().await.expect("a client");
            let guard = client.lock("r").ttl(TTL).renew(renews).await.expect("the lock is free");
            let end = guard.valid_until() + TTL;
            let extended = {
                let mut extending = Box::pin(guard.extend(ttl));
                // Polls the extension once. The client's thread may already have received the answer.
                let early = extending.as_mut().now_or_never();
                outlast(&guard, end);
                if let Some(early) = early { early } else { extending.await }
            };
            extended.expect("the lock is held");
            guard.release().await.expect("the lock is held");
        });
    }
}

/// The request to the silent member outlives the runtime that started it.
#[each_server]
fn a_request_that_outlives_its_runtime_does_not_end_the_renewals(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let runtime = runtime();
    let client = runtime.block_on(client(&servers));
    servers[2].pause();
    let guard = runtime.block_on(client.lock("r").ttl(TTL).acquire()).expect("a majority is enough");
    runtime.block_on(guard.extend(TTL)).expect("a majority is enough");
    drop(runtime);
    outlast_lease(&guard, TTL);
    servers[2].resume();
    drop(guard);
    until_nothing_is_left(&servers, "r");
}

#[each_server]
fn a_dropped_client_leaves_no_hold_and_no_connection(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let clients = || servers[0].info("connected_clients");
    let before = clients();
    let runtime = runtime();
    let client = runtime.block_on(client(&servers));
    let guard = runtime.block_on(client.lock("r").ttl(LONG).acquire()).expect("the lock is free");
    drop(client);
    drop(guard);
    until_nothing_is_left(&servers, "r");
    until("the connections of the client close", || clients() == before);
}

/// Once the server has granted the last lock, the runtime is blocked until the first hold is lost.
/// `notice(ttl / 2)` declares an unrenewed hold lost half a ttl before its validity ends. When the runtime
/// runs again, chance decides whether the client polls the grant or the loss first.
#[each_server]
fn lock_all_returns_no_lost_hold_when_the_runtime_blocks_before_the_last_grant(kind: &ServerKind) {
    let servers = masters(kind, 1);
    runtime().block_on(async {
        let client = client(&servers).await;
        let ttl = Duration::from_secs(2);
        for attempt in 0..6 {
            let names = [format!("a{attempt}"), format!("b{attempt}")];
            let locks = client.lock_all(&names).each(|lock| lock.ttl(ttl).renew(false).notice(ttl / 2));
            let mut acquiring = std::pin::pin!(locks.acquire());
            let begun = now();
            let early = loop {
                tokio::select! {
                    biased;
                    early = &mut acquiring => break Some(early),
                    () = tokio::task::yield_now() => {}
                }
                if held_on(&servers, &names[1]) == 1 {
                    break None;
                }
            };
            if early.is_some() {
                continue;
            }
            // The loss is due at half of the ttl.
            until("the first hold is lost", || now().saturating_since(begun) > ttl * 3 / 4);
            match acquiring.await {
                Ok(guards) => assert_eq!(guards.loss(), None),
                Err(AcquireError::LostMeanwhile { resource, .. }) => assert_eq!(resource, names[0]),
                Err(AcquireError::TooLate { .. }) => {}
                Err(why) => panic!("{why}"),
            }
        }
    });
}
