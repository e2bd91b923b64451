//! A hold from its acquisition to its end.

use super::*;
use tokio::time::timeout;

#[each_server]
async fn a_hold_is_on_all_masters_and_another_client_is_refused(kind: &ServerKind) {
    for count in [1, 3, 5] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let guard = ann.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        assert!(guard.remaining() > LONG / 2 && guard.remaining() < LONG);
        assert!(guard.valid_until() > now());
        assert_eq!(guard.fence().is_some(), count == 1, "a quorum gives a fence only on request: fenced()");
        let token = String::from_utf8(guard.token().as_bytes().to_vec()).expect("text");
        // 20 random bytes in base64.
        assert_eq!(token.len(), 27);
        for server in &servers {
            until("the server has the hold", || holders(server, "r") == [token.clone()]);
        }
        assert!(bob.lock("r").try_acquire().await.expect("an answer").is_none());
        let waited = bob.lock("r").wait(Wait::For(Duration::from_secs(1))).acquire().await;
        assert!(matches!(waited, Err(AcquireError::Taken { .. })), "{waited:?}");
        guard.release().await.expect("the lock is held");
        // `release` waits for a majority, `flush` for every member.
        ann.flush().await;
        let guard = bob.lock("r").try_acquire().await.expect("an answer").expect("the lock is free");
        until_held_everywhere(&servers, "r");
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn the_error_of_a_timeout_says_who_holds_the_lock(kind: &ServerKind) {
    for count in [1, 3] {
        let (_servers, ann, bob) = two_clients(kind, count).await;
        let guard = ann.lock("r").ttl(LONG).label("nightly").fenced().await.expect("the lock is free");
        // Until the last member has the fence of the hold, too.
        ann.flush().await;
        let wait = |lock: Acquire| lock.wait(Wait::For(Duration::from_secs(1)));
        let one = wait(bob.lock("r")).await.expect_err("ann holds the lock");
        let several = bob.lock_all(["q", "r"]).each(wait).await.expect_err("ann holds the lock");
        for why in [one, several] {
            let AcquireError::Taken { holder: Some(holder), .. } = &why else { panic!("{why:?}") };
            assert_eq!(holder.label, "nightly");
            // Over a quorum it is 0 if a majority did not answer in time.
            let fences = [guard.fence().expect("it is fenced").get(), 0];
            assert!(fences[..count.min(2)].contains(&holder.fence), "{holder:?}, of {fences:?}");
            assert!(holder.address.starts_with("127.0.0.1:") && holder.held_ms > 0, "{holder:?}");
            let shown = format!("r is taken: held by \"nightly\" at {} for ", holder.address);
            assert!(why.to_string().starts_with(&shown), "{why}");
        }
    }
}

/// Over a quorum, the lock is closed until a majority of the members is open.
#[each_server]
async fn the_error_of_a_timeout_says_for_how_long_the_lock_is_closed(kind: &ServerKind) {
    for seconds in [&[500][..], &[100, 500, 900]] {
        let (servers, client) = quorum(kind, seconds.len()).await;
        for (server, seconds) in servers.iter().zip(seconds) {
            let mut conn = server.connect();
            conn.ok("DLOCK.ACQUIRE r other 600000");
            conn.ok(&format!("DLOCK.RELEASE r other DELAY {}", seconds * 1000));
        }
        let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("the lock is closed");
        let AcquireError::Taken { holder: None, closed, .. } = &why else { panic!("{why:?}") };
        assert!((100_001..=500_000).contains(&closed.as_millis()), "{closed:?}");
        let shown = format!("r is taken: closed for another {closed:?} (");
        assert!(why.to_string().starts_with(&shown), "{why}");
    }
}

#[each_server]
async fn the_error_names_a_sharer_of_a_closed_lock_and_the_rest_of_its_delay(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let mut conn = servers[0].connect();
    conn.ok("DLOCK.ACQUIRE r one 600000 SHARED LABEL nightly");
    conn.ok("DLOCK.ACQUIRE r two 600000 SHARED");
    conn.ok("DLOCK.RELEASE r two DELAY 600000");
    let why = client.lock("r").shared().wait(Wait::No).acquire().await.expect_err("the lock is closed");
    let shown = why.to_string();
    assert!(shown.starts_with("r is taken: held by \"nightly\" at "), "{shown}");
    assert!(shown.contains("; closed for another "), "{shown}");
}

/// The lock is refused as before if the user may not inspect it.
#[each_server]
async fn a_holder_that_may_not_be_read_changes_no_error(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    hold_as("other", &servers);
    assert_eq!(servers[0].connect().ok("ACL SETUSER default -dlock.inspect"), "OK");
    let why = client.lock("r").wait(Wait::No).await.expect_err("another client holds the lock");
    assert!(matches!(why, AcquireError::Taken { holder: None, .. }), "{why:?}");
}

#[each_server]
async fn a_dropped_guard_releases_and_flush_waits_for_the_release(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        drop(client.lock("r").ttl(LONG).acquire().await.expect("the lock is free"));
        client.flush().await;
        assert_eq!(held_on(&servers, "r"), 0);
        let guard = client.lock("r").ttl(LONG).try_acquire().await.expect("an answer");
        // A drop outside any runtime works too.
        std::thread::spawn(move || drop(guard)).join().expect("no panic");
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_loss_of_an_unrenewed_hold_is_reported_before_its_lease_ends(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let short = client.lock("r").ttl(Duration::from_secs(6)).notice(Duration::from_secs(3));
        let guard = short.renew(false).acquire().await.expect("the lock is free");
        let cancelled = guard.cancellation();
        assert_eq!(guard.lost().await, Lost::Ended);
        assert!(now() < guard.valid_until(), "the loss is reported before the lease ends");
        assert!(cancelled.is_cancelled());
        assert_eq!(guard.remaining(), Duration::ZERO);
        until_nothing_is_left(&servers, "r");
        assert!(matches!(guard.release().await, Err(ReleaseError::NotHeld(_))));
    }
}

#[each_server]
async fn a_hold_is_renewed_until_its_maximum_time(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let lock = client.lock("r").ttl(Duration::from_secs(6)).max_hold(Duration::from_secs(9));
    let guard = lock.acquire().await.expect("the lock is free");
    let first = guard.valid_until();
    assert_eq!(guard.lost().await, Lost::Ended);
    assert!(guard.valid_until() > first, "the hold was renewed before its maximum time");
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn a_hold_is_lost_at_its_maximum_time_before_its_lease_ends(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    for renews in [true, false] {
        let lock = client.lock("r").ttl(LONG).renew(renews).max_hold(Duration::from_millis(100));
        let guard = lock.acquire().await.expect("the lock is free");
        let lost = timeout(Duration::from_secs(30), guard.lost());
        assert_eq!(lost.await.expect("the loss is reported before the lease ends"), Lost::Ended);
        assert_eq!(guard.remaining(), Duration::ZERO);
        // A lost hold is not released before its guard is dropped.
        until_held_everywhere(&servers, "r");
        drop(guard);
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn an_extension_makes_a_lease_longer_or_shorter(kind: &ServerKind) {
    for count in [1, 3] {
        let (_servers, client) = quorum(kind, count).await;
        let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        let end = guard.extend(2 * LONG).await.expect("the lock is held");
        assert_eq!(end, guard.valid_until());
        assert!(guard.remaining() > LONG);
        // Shorter than before, but long enough for a busy machine to renew it in time.
        let shorter = Duration::from_secs(6);
        let end = guard.extend(shorter).await.expect("the lock is held");
        assert_eq!(end, guard.valid_until());
        // The renewals use the new lease.
        until("the hold is renewed", || guard.valid_until() > end);
        assert!(guard.remaining() <= shorter);
        guard.release().await.expect("the lock is held");
    }
}

#[each_server]
async fn flush_waits_until_the_late_masters_have_a_new_hold(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let late = all_but(&servers, queue_master(&servers)).next().expect("a server");
    late.connect().ok("CLIENT PAUSE 200 WRITE");
    let _guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    client.flush().await;
    assert_eq!(held_on(&servers, "r"), 3);
}

#[each_server]
async fn a_forgotten_guard_leaves_a_hold_that_its_token_releases(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let kept = forgotten(&servers, client.lock("r").ttl(LONG)).await;
        let end = client.extend("r", &kept.token, 2 * LONG).await.expect("the lock is held");
        assert!(end > kept.valid_until);
        client.release("r", &kept.token).await.expect("the lock is held");
        assert!(matches!(client.release("r", &kept.token).await, Err(ReleaseError::NotHeld(_))));
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_renewal_that_waits_for_an_extension_does_not_restore_the_old_lease(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let ttl = Duration::from_secs(6);
    let guard = client.lock("r").ttl(ttl).acquire().await.expect("the lock is free");
    let end = guard.valid_until();
    let mut conn = servers[0].connect();
    assert_eq!(conn.ok("CLIENT PAUSE 600000 WRITE"), "OK");
    let resuming = tokio::task::spawn_blocking(move || {
        // A renewal is due after a third of the lease, and here half of the lease has passed.
        until("a renewal is due", || now() + ttl / 2 > end);
        conn.ok("CLIENT UNPAUSE")
    });
    let extended = guard.extend(LONG).await.expect("the lock is held");
    resuming.await.expect("no panic");
    until("the hold is renewed", || guard.valid_until() != extended);
    assert!(guard.valid_until() > extended, "the renewal uses the new lease");
    guard.release().await.expect("the lock is held");
}
