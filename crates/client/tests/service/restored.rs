//! Restoring: the client acquires a hold again on a master that restarted without it, but not if an operator
//! broke it there.

use super::*;

/// Lease of the tests. The client renews it every two seconds.
const LEASE: Duration = Duration::from_secs(6);

/// Restarts a server without its data, but with the file of its fence mark, which keeps the next fences above
/// the earlier ones.
fn restart_empty(server: &mut Server) {
    server.kill9();
    server.restart();
}

#[each_server]
async fn a_hold_survives_a_rolling_restart_of_all_masters_without_persistence(kind: &ServerKind) {
    for (grace, shared) in [(0, false), (0, true), (LEASE.as_millis(), false)] {
        let start = || Server::options(kind).conf(&format!("dlock.restart-grace {grace}")).start();
        let mut servers: Vec<Server> = (0..3).map(|_| start()).collect();
        let has_no_grace = |server: &Server| server.info("dlock_grace_ms_left") == "0";
        until("the grace period has ended", || servers.iter().all(has_no_grace));
        let (ann, bob) = (client(&servers).await, client(&servers).await);
        let lock = ann.lock("r").ttl(LEASE).fenced();
        let guard = if shared { lock.shared().acquire() } else { lock.acquire() };
        let guard = guard.await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        // The fourth restart is of a master with a restored hold.
        for restarted in [0, 1, 2, 0] {
            restart_empty(&mut servers[restarted]);
            until("the hold is restored on that master", || !holders(&servers[restarted], "r").is_empty());
            assert_eq!(guard.loss(), None);
            let other = bob.lock("r").ttl(LEASE).try_acquire().await;
            assert!(matches!(other, Ok(None)), "{other:?}");
        }
        let before = guard.valid_until();
        until("the hold is renewed", || guard.valid_until() > before);
        let fence = guard.fence();
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
        let next = bob.lock("r").ttl(LEASE).fenced().acquire().await.expect("the lock is free");
        assert!(next.fence() > fence);
    }
}

/// One renewal must be enough, because an operator may restart masters in turn with one renewal in between.
#[each_server]
async fn a_renewal_restores_the_hold_on_a_master_that_missed_a_renewal(kind: &ServerKind) {
    let mut servers = masters(kind, 3);
    let ann = client(&servers).await;
    // The renewal interval of eight seconds exceeds the pause before a failed master is tried again.
    let guard = ann.lock("r").ttl(LEASE * 4).await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    servers[2].kill9();
    let before = guard.valid_until();
    until("the hold is renewed without the master", || guard.valid_until() > before);
    servers[2].restart();
    let (mut renewals, mut last) = (0, guard.valid_until());
    until("the hold is restored on that master", || {
        if guard.valid_until() > last {
            (renewals, last) = (renewals + 1, guard.valid_until());
        }
        !holders(&servers[2], "r").is_empty()
    });
    assert!(renewals <= 1, "{renewals} renewals");
    assert_eq!(guard.loss(), None);
}

/// `adopt` has no argument for the mode, so the client reads the mode from the masters.
#[each_server]
async fn an_adopted_hold_is_restored_in_its_mode(kind: &ServerKind) {
    for shared in [false, true] {
        let (mut servers, ann, bob) = two_clients(kind, 3).await;
        let lock = ann.lock("r").ttl(LONG);
        let first = forgotten(&servers, if shared { lock.shared() } else { lock }).await;
        let guard = bob.adopt("r", &first.token, LEASE).await.expect("the lock is held");
        let token = holders(&servers[0], "r");
        for server in &mut servers {
            restart_empty(server);
            until("the hold is restored on that master", || holders(server, "r") == token);
        }
        let sharer = ann.lock("r").shared().try_acquire().await.expect("all are up");
        assert_eq!(sharer.is_some(), shared);
        assert_eq!(guard.loss(), None);
        guard.release().await.expect("the lock is held");
    }
}

/// A restarted master grants the lock to a waiter. The waiter has no majority, so it releases the grant.
#[each_server]
async fn a_hold_is_restored_ahead_of_waiters(kind: &ServerKind) {
    let (mut servers, ann, bob) = two_clients(kind, 3).await;
    let guard = ann.lock("r").ttl(LEASE).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    let wait = || {
        let lock = bob.lock("r").wait(Wait::For(LONG));
        tokio::spawn(async move { lock.acquire().await.expect("the lock is free").release().await })
    };
    let waits = [wait(), wait(), wait()];
    until_waiting(&servers, waits.len());
    let token = holders(&servers[0], "r");
    for server in &mut servers {
        restart_empty(server);
        until("the hold is restored on that master", || holders(server, "r") == token);
    }
    assert_eq!(guard.loss(), None);
    guard.release().await.expect("the lock is held");
    for wait in waits {
        wait.await.expect("no panic").expect("the lock is held");
    }
    until_nothing_is_left(&servers, "r");
}

/// An operator may break a hold on one master after another, with renewals in between.
#[each_server]
async fn a_hold_broken_on_one_master_after_another_is_not_restored(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let guard = client.lock("r").ttl(LEASE).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    assert_eq!(servers[0].connect().ok("DLOCK.BREAK r"), 1);
    // Gives several renewals the chance to restore the hold. A renewal makes it valid for at most one lease.
    // So a validity that ends three leases after the BREAK comes from a renewal two leases after the BREAK.
    let (broken, renewed) = (now(), || guard.valid_until());
    until("the hold is renewed", || renewed().saturating_since(broken) > LEASE * 3);
    assert_eq!((held_on(&servers, "r"), guard.loss()), (2, None));
    assert_eq!(servers[1].connect().ok("DLOCK.BREAK r"), 1);
    assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
}

/// The master stops for longer than a lease, so the hold has expired there.
#[each_server]
async fn a_renewal_restores_the_hold_on_a_master_that_was_away_for_a_lease(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = builder(&servers).node_timeout(Duration::from_secs(1)).build().await;
    let guard = client.expect("a client").lock("r").ttl(LEASE).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    for server in &servers {
        let token = holders(server, "r");
        server.pause();
        let before = now();
        until("the lease has ended on that master", || now().saturating_since(before) > LEASE);
        server.resume();
        until("the hold is restored on that master", || holders(server, "r") == token);
    }
    assert_eq!(guard.loss(), None);
    guard.release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");
}
