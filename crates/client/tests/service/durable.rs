//! Durable grants: `durable(n, limit)` acquires only if each master of a majority reports within the limit
//! that n of its replicas have the grant. With n = 0, each must report that its append only file has it.

use super::proxies::{Loss, Lossy};
use super::*;

#[each_server]
async fn a_durable_grant_is_on_the_replicas_of_a_majority(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, client) = quorum(kind, count).await;
        let lock = |timeout| client.lock("r").ttl(LONG).durable(1, timeout);
        let refused = lock(Duration::from_millis(20)).await.expect_err("there is no replica");
        let AcquireError::NotDurable { resource, report } = &refused else { panic!("{refused:?}") };
        assert_eq!(resource, "r");
        assert!(report.0.iter().any(|node| node.state == NodeState::NotDurable(0)), "{refused}");
        client.flush().await;
        until_nothing_is_left(&servers, "r");

        let replicas: Vec<Server> = masters(kind, count / 2 + 1);
        replicas.iter().zip(&servers).for_each(|(replica, master)| replica.replicate(master));
        // Servers reject a WAIT with a timeout this long, so the client must send a shorter one.
        drop(lock(Duration::MAX).await.expect("a majority has replicas"));
        client.flush().await;
        let guard = lock(LONG).await.expect("a majority has replicas");
        for replica in &replicas {
            assert_eq!(holders(replica, "r").len(), 1, "the replica has the hold before acquire returns");
        }
        // A grant after a wait must be on the replicas, too.
        let waits = tokio::spawn(lock(LONG).wait(Wait::Forever).acquire());
        until_waiting(&servers, 1);
        let before = holders(&replicas[0], "r");
        guard.release().await.expect("the lock is held");
        let guard = waits.await.expect("no panic").expect("the first hold is released");
        for replica in &replicas {
            let now = holders(replica, "r");
            assert!(now.len() == 1 && now != before, "the replica has the hold before acquire returns");
        }
        guard.release().await.expect("the lock is held");
        until_nothing_is_left(&servers, "r");
    }
}

/// Redis 7.0 does not have WAITAOF, and the error says so.
#[each_server]
async fn a_durable_grant_is_in_the_append_only_file(kind: &ServerKind) {
    let servers = [Server::options(kind).conf("appendonly yes").start()];
    let client = client(&servers).await;
    let acquired = client.lock("r").ttl(LONG).durable(0, LONG).try_acquire().await;
    if format!("{:?}", servers[0].connect().say("WAITAOF 0 0 1")).contains("unknown command") {
        let why = acquired.expect_err("the server has no WAITAOF").to_string();
        assert!(why.contains("WAITAOF"), "{why}");
        client.flush().await;
    } else {
        drop(acquired.expect("an answer").expect("the lock is free"));
    }
    until_nothing_is_left(&servers, "r");
}

/// To make a grant durable, the client opens a separate connection to each member, and sends EXTEND and then
/// WAIT over it. It goes on when a majority has answered. Here the EXTEND to the third member is delayed.
/// Meanwhile the hold is extended to a longer lease. The delayed EXTEND may still arrive and set the shorter
/// lease. So the third member's answer to the longer extension must not count.
#[each_server]
async fn an_unanswered_extend_of_a_durable_grant_leaves_a_longer_extension_unconfirmed(kind: &ServerKind) {
    let (servers, replicas) = (masters(kind, 3), masters(kind, 2));
    replicas.iter().zip(&servers).for_each(|(replica, master)| replica.replicate(master));
    let proxy = Lossy::to(&servers[2], "DLOCK.EXTEND", Loss::Late);
    let urls = [url(&servers[0]), url(&servers[1]), proxy.url()];
    let client = Client::builder().servers(urls).node_timeout(Duration::from_secs(5));
    let client = client.build().await.expect("a client");
    proxy.lose_the_next();
    // While this replica is paused, only the first member can answer. So the client still waits for a
    // majority when its EXTEND to the third member reaches the proxy.
    replicas[1].pause();
    // Shorter than LONG.
    let ttl = Duration::from_secs(60);
    let acquires = tokio::spawn(client.lock("r").ttl(ttl).durable(1, LONG).acquire());
    until("the proxy holds the EXTEND back", || proxy.has_lost());
    until_held_everywhere(&servers, "r");
    replicas[1].resume();
    let guard = acquires.await.expect("no panic").expect("a majority has replicas");
    // Without the second member, a majority needs the answer of the third member.
    servers[1].kill9();
    let extended = guard.extend(LONG).await;
    assert!(matches!(extended, Err(ExtendError::Unconfirmed(_))), "{extended:?}");
    proxy.deliver();
    let mut conn = servers[2].connect();
    until("the late EXTEND is executed", || conn.ok("DLOCK.PTTL r").int() <= 60_000);
}

/// WAIT blocks its connection, but must not delay requests for other holds, such as renewals.
#[each_server]
async fn other_requests_proceed_while_a_durable_grant_waits(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let waits = tokio::spawn(client.lock("r").ttl(LONG).durable(1, LONG).acquire());
    until_held_everywhere(&servers, "r");
    until("the client waits for replicas", || servers[0].info("blocked_clients") == "1");
    client.lock("other").await.expect("the lock is free").release().await.expect("the lock is held");
    waits.abort();
    until_nothing_is_left(&servers, "r");
}
