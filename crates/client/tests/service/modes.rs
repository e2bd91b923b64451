//! Mode changes of a guard: downgrade and upgrade.

use super::proxies::{Loss, Lossy};
use super::*;
use tokio::task::spawn_blocking;

#[each_server]
async fn a_downgrade_lets_sharers_in_and_keeps_fence_and_validity(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let mut guard = ann.lock("r").ttl(LONG).fenced().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        let (fence, valid_until) = (guard.fence(), guard.valid_until());
        let shares = tokio::spawn(bob.lock("r").ttl(LONG).shared().acquire());
        until_waiting(&servers, 1);
        guard.downgrade().await.expect("the lock is held");
        let second = shares.await.expect("no panic").expect("the lock can be shared");
        assert_eq!((guard.fence(), guard.valid_until()), (fence, valid_until));
        guard.downgrade().await.expect("the hold is shared already");
        assert!(bob.lock("r").try_acquire().await.expect("an answer").is_none());
        second.release().await.expect("the lock is held");
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_hold_that_ended_is_neither_downgraded_nor_upgraded(kind: &ServerKind) {
    for (count, upgrades, taken) in [(1, false, false), (3, false, false), (3, false, true), (1, true, false)]
    {
        let (servers, client) = quorum(kind, count).await;
        let mut guard = client.lock("r").ttl(LONG).shared().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        servers.iter().for_each(|server| assert_eq!(server.connect().ok("DLOCK.BREAK r"), 1));
        hold_as("other", servers.iter().filter(|_| taken));
        if upgrades {
            let lost = guard.upgrade(Wait::No).await;
            assert!(matches!(lost, Err(AcquireError::LostMeanwhile { .. })), "{lost:?}");
        } else {
            let lost = guard.downgrade().await;
            assert!(matches!(lost, Err(ExtendError::Lost(_))), "{lost:?}");
        }
        assert!(matches!(guard.loss(), Some(Lost::TakenAway(_))));
        drop(guard);
        client.flush().await;
        if !taken {
            until_nothing_is_left(&servers, "r");
        }
    }
}

#[each_server]
async fn an_upgrade_waits_ahead_of_other_waiters_until_the_other_sharer_releases(kind: &ServerKind) {
    let (servers, ann, bob) = two_clients(kind, 1).await;
    let mut guard = ann.lock("r").ttl(LONG).shared().await.expect("the lock is free");
    let fence = guard.fence();
    guard.upgrade(Wait::No).await.expect("no other client holds the lock");
    assert!(bob.lock("r").shared().try_acquire().await.expect("an answer").is_none());
    guard.downgrade().await.expect("the lock is held");

    let mut second = bob.lock("r").ttl(LONG).shared().await.expect("the lock can be shared");
    for wait in [Wait::For(Duration::from_millis(20)), Wait::No] {
        let taken = guard.upgrade(wait).await;
        assert!(matches!(taken, Err(AcquireError::Taken { .. })), "{taken:?}");
    }
    let upgrades = tokio::spawn(async move {
        guard.upgrade(Wait::Forever).await.expect("the other sharer releases");
        guard
    });
    until_waiting(&servers, 1);
    let deadlock = second.upgrade(Wait::Forever).await;
    assert!(matches!(deadlock, Err(AcquireError::Deadlock { .. })), "{deadlock:?}");
    let next = tokio::spawn(bob.lock("r").acquire());
    until_waiting(&servers, 2);
    second.release().await.expect("the lock is held");
    let guard = upgrades.await.expect("no panic");
    assert_eq!((guard.fence(), waiters(&servers[0]).len()), (fence, 1));
    guard.release().await.expect("the lock is held");
    drop(next.await.expect("no panic").expect("the lock is free"));
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn a_shared_hold_can_be_released_after_a_refused_upgrade(kind: &ServerKind) {
    let (servers, ann, bob) = two_clients(kind, 1).await;
    for wait in [Wait::No, Wait::For(Duration::from_millis(20))] {
        let mut guard = ann.lock("r").ttl(LONG).shared().await.expect("the lock is free");
        let second = bob.lock("r").ttl(LONG).shared().await.expect("the lock can be shared");
        let taken = guard.upgrade(wait).await;
        assert!(matches!(taken, Err(AcquireError::Taken { .. })), "{taken:?}");
        guard.release().await.expect("the lock is held");
        second.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn an_upgrade_that_is_dropped_leaves_a_shared_hold(kind: &ServerKind) {
    let (servers, ann, bob) = two_clients(kind, 1).await;
    for race in 0..8 {
        let mut guard = ann.lock("r").ttl(LONG).shared().await.expect("the lock is free");
        let second = bob.lock("r").ttl(LONG).shared().await.expect("the lock can be shared");
        let mut upgrade = Box::pin(guard.upgrade(Wait::Forever));
        run_until_waiting(&servers[0], &mut upgrade).await;
        // In every second race, the upgrade is granted while it is dropped.
        if race % 2 == 0 {
            drop(upgrade);
            second.release().await.expect("the lock is held");
        } else {
            release_as(text(second.token()), &servers);
            drop(upgrade);
            let _ = second.release().await;
        }
        let shared = bob.lock("r").shared().wait(Wait::For(LONG)).await.expect("the lock is shared again");
        assert_eq!(holders(&servers[0], "r").len(), 2);
        assert_eq!(guard.loss(), None);
        shared.release().await.expect("the lock is held");
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

/// The BREAK ends both shared holds, and the server grants the lock to the waiting upgrade. This grant is a
/// new hold with another fence, which the guard must not continue.
#[each_server]
async fn a_break_during_a_dropped_upgrade_is_reported(kind: &ServerKind) {
    let (servers, ann, bob) = two_clients(kind, 1).await;
    let mut guard = ann.lock("r").ttl(LONG).shared().await.expect("the lock is free");
    let second = bob.lock("r").ttl(LONG).shared().await.expect("the lock can be shared");
    let mut upgrade = Box::pin(guard.upgrade(Wait::Forever));
    run_until_waiting(&servers[0], &mut upgrade).await;
    assert_eq!(servers[0].connect().ok("DLOCK.BREAK r"), 2);
    drop(upgrade);
    until("the loss is reported", || matches!(guard.loss(), Some(Lost::TakenAway(_))));
    drop((guard, second));
    until_nothing_is_left(&servers, "r");
}

/// If the lost CANCEL were not repeated, the master would grant the dropped upgrade, and the guard would
/// renew an exclusive hold.
#[each_server]
async fn the_cancel_of_a_dropped_upgrade_is_repeated_until_the_master_answers(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let proxy = Lossy::to(&servers[0], "DLOCK.CANCEL", Loss::NeverArrives);
    let (ann, bob) = (proxy.client(Duration::from_secs(5)).await, client(&servers).await);
    let mut guard = ann.lock("r").ttl(LONG).shared().await.expect("the lock is free");
    let second = bob.lock("r").ttl(LONG).shared().await.expect("the lock can be shared");
    let mut upgrade = Box::pin(guard.upgrade(Wait::Forever));
    run_until_waiting(&servers[0], &mut upgrade).await;
    proxy.lose_the_next();
    drop(upgrade);
    until("the CANCEL is lost", || proxy.has_lost());
    second.release().await.expect("the lock is held");
    let wait = Wait::For(Duration::from_secs(20));
    let shared = bob.lock("r").shared().wait(wait).await.expect("the lock is shared again");
    shared.release().await.expect("the lock is held");
    assert_eq!(guard.loss(), None);
}

/// When the unanswered downgrade is executed, the server admits sharers, so the holder must not rely on an
/// exclusive hold.
#[each_server]
async fn a_hold_whose_downgrade_may_still_arrive_does_not_count_as_exclusive(kind: &ServerKind) {
    let server = Server::start(kind);
    let proxy = Lossy::to(&server, "SHARED", Loss::Late);
    let client = proxy.client(Duration::from_secs(1)).await;
    let mut guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    proxy.lose_the_next();
    let downgraded = guard.downgrade().await;
    assert!(matches!(downgraded, Err(ExtendError::Unconfirmed(_))), "{downgraded:?}");
    // After two failures the client uses another connection. The upgrade still fails, because the downgrade
    // may arrive over the first connection later.
    for _ in 0..5 {
        let upgraded = guard.upgrade(Wait::No).await;
        assert!(matches!(upgraded, Err(AcquireError::QuorumImpossible { .. })), "{upgraded:?}");
    }
}

#[each_server]
async fn upgrade_and_downgrade_are_refused_only_where_they_are_impossible(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let (one, three) = (client(&servers[..1]).await, client(&servers).await);
    let mut guard = three.lock("quorum").shared().await.expect("the lock is free");
    assert!(matches!(guard.upgrade(Wait::No).await, Err(AcquireError::Option(_))));
    let mut guard = one.lock("bound").shared().ephemeral().await.expect("the lock is free");
    guard.upgrade(Wait::Forever).await.expect("no other client holds the lock");
    let mut guard = one.lock("permits").permits(2).await.expect("the lock is free");
    assert!(matches!(guard.downgrade().await, Err(ExtendError::Misuse(_))));
    assert!(matches!(guard.upgrade(Wait::No).await, Err(AcquireError::Misuse { .. })));
    let mut first = one.lock("again").reentrant().await.expect("the lock is free");
    let second = one.lock("again").reentrant().await.expect("the lock is reentrant");
    assert!(matches!(first.downgrade().await, Err(ExtendError::Option(_))));
    drop(second);
    first.downgrade().await.expect("no other guard has the hold");
    let again = one.lock("again").reentrant().await;
    assert!(matches!(again, Err(AcquireError::Option(_))), "the hold is shared: {again:?}");
}

fn text(token: &Token) -> &str {
    std::str::from_utf8(token.as_bytes()).expect("text")
}

/// A member has restarted without the hold. The request that restores the hold there, as exclusive, is in
/// flight when the mode changes.
#[each_server]
async fn a_hold_that_a_member_lost_is_restored_in_its_new_mode(kind: &ServerKind) {
    let (mut servers, client) = quorum(kind, 3).await;
    let mut guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    servers[2].kill9();
    servers[2].restart();
    // Waits until the client reaches the restarted member.
    while client.inspect("r").await[2].answer.found().is_none() {}
    let (mut first, mut last) = (servers[0].connect(), servers[2].connect());
    assert_eq!(last.ok("CLIENT PAUSE 600000 WRITE"), "OK");
    guard.extend(LONG).await.expect("a majority has the hold");
    let resuming = spawn_blocking(move || {
        until("the first master has made the change", || {
            first.ok("DLOCK.INSPECT r").field("mode").text() == "shared"
        });
        last.ok("CLIENT UNPAUSE");
    });
    guard.downgrade().await.expect("a majority has the hold");
    resuming.await.expect("no panic");
    // These round trips give the restarted member time to answer the earlier requests.
    for _ in 0..5 {
        client.inspect("r").await;
    }
    guard.extend(LONG).await.expect("the lock is held");
    until_held_everywhere(&servers, "r");
    let mode = servers[2].connect().ok("DLOCK.INSPECT r").field("mode").text();
    assert_eq!(mode, "shared");
    guard.release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");
}

/// The client passes a push about a resource only to the hold that it registered last. Here that hold has
/// ended, so the upgrade must register the earlier hold again.
#[each_server]
async fn an_upgraded_sharer_notices_a_break_at_once(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let mut guard = client.lock("r").ttl(LONG).shared().await.expect("the lock is free");
    let other = client.lock("r").ttl(LONG).shared().await.expect("the lock can be shared");
    other.release().await.expect("the lock is held");
    guard.upgrade(Wait::Forever).await.expect("no other client holds the lock");
    let mut conn = servers[0].connect();
    // After 200 ms the client has the answers to all queries that it sent before the upgrade. From then on,
    // only a push can tell it of the BREAK.
    let begun = now();
    until("the server tracks the hold", || {
        let tracked = servers[0].info("tracking_total_keys") == "1";
        tracked && now() > begun + Duration::from_millis(200)
    });
    assert_eq!(conn.ok("DLOCK.BREAK r"), 1);
    let lost = tokio::time::timeout(LONG / 20, guard.lost()).await.expect("the loss is reported at once");
    assert!(matches!(lost, Lost::TakenAway(_)), "{lost:?}");
}
