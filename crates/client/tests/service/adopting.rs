//! Adoption: given the token, a client takes over a hold that another client left by `forget`.

use super::*;

#[each_server]
async fn an_adopted_hold_is_renewed_and_released(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let kept = forgotten(&servers, ann.lock("r").ttl(LONG)).await;
        let ttl = Duration::from_secs(6);
        let guard = bob.adopt("r", &kept.token, ttl).await.expect("the lock is held");
        assert_eq!(guard.token(), &kept.token);
        // An adopted hold always has a fence. In a quorum, `kept` has none, as `ann` did not ask for one.
        assert!(guard.fence().is_some() && (count == 3 || guard.fence() == kept.fence));
        assert!(guard.remaining() <= ttl);
        outlast_lease(&guard, ttl);
        until_held_everywhere(&servers, "r");
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
        let next = ann.lock("r").fenced().await.expect("the lock is free");
        assert!(next.fence() > kept.fence);
    }
}

#[each_server]
async fn adoption_does_not_lower_the_fence_of_a_hold(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 3).await;
    let kept = forgotten(&servers, client.lock("r").ttl(LONG).fenced()).await;
    client.flush().await;
    let guard = client.adopt("r", &kept.token, LONG).await.expect("the lock is held");
    // The confirm phase of `fenced` raised a majority to one fence. A member that granted the lock later may
    // have a greater fence, to which the adoption raises the hold.
    assert!(guard.fence() >= kept.fence);
    client.break_holds("r").await;
    assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
    let next = client.lock("r").fenced().await.expect("the lock is free");
    assert!(next.fence() > guard.fence());
}

#[each_server]
async fn a_failed_adoption_leaves_the_hold(kind: &ServerKind) {
    for count in [1, 3] {
        let mut servers = masters(kind, count);
        let no_retry = Retry::new(0, Duration::ZERO);
        let client = builder(&servers).retry(no_retry).build().await.expect("a client");
        let held = client.lock("r").ttl(LONG).await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        let other = client.lock("other").await.expect("the lock is free");
        let refused = client.adopt("r", other.token(), LONG).await;
        assert!(matches!(refused, Err(ExtendError::Lost(_))), "{refused:?}");
        assert!(matches!(client.adopt("free", other.token(), LONG).await, Err(ExtendError::Lost(_))));
        // This lease is longer than dlock.max-ttl, which is a day.
        assert!(matches!(
            client.adopt("r", held.token(), 2 * LONG * 1000).await,
            Err(ExtendError::Misuse(_))
        ));
        let kept = held.forget().expect("not lost");
        if count == 3 {
            servers.drain(1..);
            let unknown = client.adopt("r", &kept.token, LONG).await;
            assert!(matches!(unknown, Err(ExtendError::Unconfirmed(_))), "{unknown:?}");
        }
        client.flush().await;
        assert_eq!(held_on(&servers[..1], "r"), 1, "the first master still has the hold");
    }
}

/// Renewals begin when the adoption ends. If the adoption waited for the silent member until the node timeout
/// of 5 s, the lease of 2 s would end before the first renewal.
#[each_server]
async fn an_adopted_hold_is_renewed_when_one_member_is_silent(kind: &ServerKind) {
    let (servers, ann, bob) = two_clients(kind, 3).await;
    let kept = forgotten(&servers, ann.lock("r").ttl(LONG)).await;
    servers[2].pause();
    let ttl = Duration::from_secs(6);
    let guard = bob.adopt("r", &kept.token, ttl).await.expect("the lock is held");
    outlast_lease(&guard, ttl);
    servers[2].resume();
    guard.release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");
}
