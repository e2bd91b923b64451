//! Owners: which deadlocks are real, and positions that an earlier round left.

use super::*;

/// A round that failed can leave a position behind, whose release is under way. The owner does not wait for
/// itself.
#[each_server]
async fn an_owner_does_not_wait_for_a_position_that_is_left_of_it(kind: &ServerKind) {
    for owner in ["x", "a name of more than eight bytes"] {
        let (servers, client) = quorum(kind, 1).await;
        hold_as("other", &servers);
        let mut conn = servers[0].connect();
        let left = ["DLOCK.ACQUIRE", "r", "left", "600000", "QUEUE", "600000", "OWNER", owner];
        assert!(conn.call(&left).is_nil());
        let waits = tokio::spawn(client.lock("r").ttl(LONG).owner(owner).acquire());
        until_waiting(&servers, 2);
        assert_eq!(conn.ok("DLOCK.RELEASE r left"), 0);
        release_as("other", &servers);
        let guard = waits.await.expect("no panic").expect("no deadlock");
        // Here the owner would really wait for itself.
        let again = client.lock("r").owner(owner).acquire().await;
        assert!(matches!(again, Err(AcquireError::Deadlock { .. })), "{again:?}");
        guard.release().await.expect("the lock is held");
    }
}

/// An answer like NOREPLICAS says nothing about the position, which the server keeps.
#[each_server]
async fn a_waiter_keeps_its_token_while_the_server_refuses_for_the_moment(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    hold_as("other", &servers);
    let waits = tokio::spawn(client.lock("r").ttl(LONG).owner("x").acquire());
    until_waiting(&servers, 1);
    let before = waiters(&servers[0]);
    let mut conn = servers[0].connect();
    conn.ok("CONFIG SET min-replicas-to-write 1");
    until("the server has refused requests", || failover::refused_acquires(&servers[0]) > 2);
    conn.ok("CONFIG SET min-replicas-to-write 0");
    assert_eq!(waiters(&servers[0]), before);
    release_as("other", &servers);
    let guard = waits.await.expect("no panic").expect("a handoff");
    assert_eq!(guard.token().as_bytes(), before[0].as_bytes());
    guard.release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");
}
