//! A lock stays closed after a hold that was released early: `at_least`, `release_with_delay`.

use super::*;
use std::sync::Arc;
use tokio::sync::Notify;

const MINUTE: Duration = Duration::from_secs(60);

/// Returns the rest of the delay in ms on each server.
fn delays(servers: &[Server]) -> Vec<i64> {
    let delay = |server: &Server| {
        let seen = server.connect().ok("DLOCK.INSPECT r");
        if seen.is_nil() { 0 } else { seen.field("delay").int() }
    };
    servers.iter().map(delay).collect()
}

#[each_server]
async fn a_lock_stays_closed_until_at_least_has_passed(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let guard = ann.lock("r").at_least(MINUTE).acquire().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        guard.release().await.expect("the lock is held");
        until("every server delays the next grant", || {
            delays(&servers).iter().all(|delay| (1..=60_000).contains(delay))
        });
        assert!(bob.lock("r").try_acquire().await.expect("an answer").is_none());
        // The time has passed when this hold is released.
        let guard = ann.lock("other").at_least(Duration::from_millis(1)).acquire().await.expect("free");
        let end = now() + Duration::from_millis(5);
        until("the time has passed", || now() > end);
        guard.release().await.expect("the lock is held");
        assert!(bob.lock("other").try_acquire().await.expect("an answer").is_some());
    }
}

#[each_server]
async fn a_lost_hold_keeps_nothing_closed(kind: &ServerKind) {
    let (_servers, client) = quorum(kind, 1).await;
    let lock = client.lock("r").at_least(MINUTE).max_hold(Duration::from_millis(1));
    let guard = lock.acquire().await.expect("the lock is free");
    guard.lost().await;
    _ = guard.release().await;
    let free = client.lock("r").wait(Wait::No).acquire().await;
    assert!(free.is_ok(), "{free:?}");
}

#[each_server]
async fn a_release_with_a_delay_keeps_the_lock_closed(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let guard = client.lock("r").at_least(Duration::ZERO).acquire().await.expect("the lock is free");
    guard.release_with_delay(MINUTE).await.expect("the lock is held");
    assert!(delays(&servers)[0] > 30_000);
}

/// An older server refuses the word DELAY in the same way as this one refuses a delay that is too long.
#[each_server]
async fn a_server_that_refuses_the_delay_is_an_error_before_the_acquisition(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    servers[0].connect().ok("CONFIG SET dlock.max-ttl 30000");
    let why = client.lock("r").at_least(MINUTE).acquire().await.expect_err("the delay is too long");
    assert!(matches!(&why, AcquireError::Option(why) if why.contains("0.1.0")), "{why:?}");
    assert_eq!(servers[0].info("dlock_grants"), "0");
}

/// They refuse or allow the delay, which must be as long as the lease at least.
#[each_server]
async fn servers_that_were_silent_during_the_check_are_asked_after_the_grant(kind: &ServerKind) {
    for (count, is_allowed) in [(1, false), (3, false), (1, true), (3, true)] {
        let servers = masters(kind, count);
        let builder = builder(&servers).node_timeout(Duration::from_secs(1));
        let client = builder.retry(Retry::new(0, Duration::from_millis(10))).build().await.expect("a client");
        let silent = &servers[..count.div_ceil(2)];
        for server in silent.iter().filter(|_| !is_allowed) {
            server.connect().ok("CONFIG SET dlock.max-ttl 30000");
        }
        silent.iter().for_each(Server::pause);
        let begun = Arc::new(Notify::new());
        let hook = begun.clone();
        let lock = client.lock("r").at_least(MINUTE).wait(Wait::For(LONG));
        let acquired = tokio::spawn(lock.on_outage(move |_| hook.notify_one()).acquire());
        begun.notified().await;
        silent.iter().for_each(Server::resume);
        match acquired.await.expect("no panic") {
            Ok(guard) if is_allowed => guard.release().await.expect("the lock is held"),
            Err(AcquireError::Option(why)) if !is_allowed && why.contains("0.1.0") => {
                until_nothing_is_left(&servers, "r");
            }
            other => panic!("{count} {is_allowed}: {other:?}"),
        }
    }
}

/// The delay was allowed when the lock was acquired.
#[each_server]
async fn a_release_with_a_delay_that_only_a_minority_accepts_is_not_confirmed(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let guard = client.lock("r").at_least(MINUTE).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    for server in &servers[1..] {
        server.connect().ok("CONFIG SET dlock.max-ttl 30000");
    }
    let released = guard.release().await;
    assert!(matches!(released, Err(ReleaseError::Unconfirmed(_))), "{released:?}");
}

/// The client has a partial hold at the first member, and could repeat a split vote. Its user may not release
/// it there, so the partial hold stays, and the error must not name it.
#[each_server]
async fn a_try_finds_a_lock_taken_at_once_if_a_majority_is_closed(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let first = queue_master(&servers);
    first.connect().ok("ACL SETUSER worker on >pass ~* &* +@all -dlock.release");
    for server in all_but(&servers, first) {
        server.connect().ok("ACL SETUSER worker on >pass ~* &* +@all");
        hold_as("other", [server]);
        assert_eq!(server.connect().ok("DLOCK.RELEASE r other ALL DELAY 300000"), 1);
    }
    let urls = servers.iter().map(|server| url(server).replace("redis://", "redis://worker:pass@"));
    let client = Client::builder().servers(urls).node_timeout(Duration::from_secs(5)).build().await;
    let client = client.expect("a client");
    let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("a majority is closed");
    let AcquireError::Taken { holder, closed, .. } = &why else { panic!("{why:?}") };
    assert!(holder.is_none() && *closed > MINUTE, "{why}");
    assert_eq!(first.info("dlock_grants"), "1", "one look");
}

/// The caller did nothing under the locks that were acquired.
#[each_server]
async fn locks_of_a_failed_acquisition_of_several_are_not_delayed(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    assert!(servers[0].connect().ok("DLOCK.ACQUIRE s other 600000").int() > 0);
    let both = client.lock_all(["r", "s"]).each(|lock| lock.at_least(MINUTE).wait(Wait::No)).acquire().await;
    assert!(matches!(both, Err(AcquireError::Taken { .. })), "{both:?}");
    until_nothing_is_left(&servers, "r");
}

/// The same if the future of the acquisition is dropped.
#[each_server]
async fn locks_of_a_dropped_acquisition_are_not_delayed(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    assert!(servers[0].connect().ok("DLOCK.ACQUIRE r other 600000").int() > 0);
    let both = client.lock_all(["a", "r"]).each(|lock| lock.at_least(10 * MINUTE).wait(Wait::Forever));
    let waits = tokio::spawn(both.acquire());
    until_waiting(&servers, 1);
    waits.abort();
    until_nothing_is_left(&servers, "a");
    servers[0].connect().ok("DLOCK.RELEASE r other");

    let waits = tokio::spawn(client.lock("r").at_least(10 * MINUTE).durable(1, LONG).acquire());
    until_held_everywhere(&servers, "r");
    waits.abort();
    until_nothing_is_left(&servers, "r");
}
