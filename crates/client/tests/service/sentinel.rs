//! A master that the client finds by its sentinels, and a failover between the servers.

use super::*;
use dlock_testkit::sentinels::{SENTINEL_TIMEOUT, sentinels};
use dlock_testkit::until_within;

/// Long enough for a failover: the sentinels take a silent master for dead after half a second.
const TTL: Duration = Duration::from_secs(20);

fn address(sentinels: &[Server]) -> String {
    let others: Vec<String> =
        sentinels[1..].iter().map(|sentinel| format!("node=127.0.0.1:{}", sentinel.port())).collect();
    format!(
        "redis-sentinel://127.0.0.1:{}?sentinelServiceName=locks&{}",
        sentinels[0].port(),
        others.join("&")
    )
}

/// Waits until the sentinel names this server.
fn until_named(sentinel: &Server, server: &Server) {
    until_within(SENTINEL_TIMEOUT, "a sentinel names the new master", || {
        let named = sentinel.connect().ok("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        named.items()[1].text() == server.port().to_string()
    });
}

async fn client_of(sentinels: &[Server]) -> Client {
    let builder = Client::builder().server(address(sentinels)).node_timeout(Duration::from_secs(5));
    builder.build().await.expect("a client")
}

#[each_server]
async fn holds_waits_and_releases_follow_a_failover(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let sentinels = sentinels(kind, &master, 500);
    let (ann, bob) = (client_of(&sentinels).await, client_of(&sentinels).await);
    let guard = ann.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
    let permit =
        ann.lock("p").ttl(TTL).permits(2).durable(1, LONG).acquire().await.expect("a permit is free");
    assert_eq!(holders(&master, "r").len(), 1);
    let waits = tokio::spawn(bob.lock("r").ttl(TTL).acquire());
    until("the waiter is queued", || waiters(&master).len() == 1);
    replica.wait_in_sync(&master);
    // One sentinel is gone, too. The others agree without it.
    sentinels[0].kill9();
    master.kill9();
    until_named(&sentinels[1], &replica);
    until("the waiter is queued at the new master", || waiters(&replica).len() == 1);
    outlast_lease(&guard, TTL);
    assert_eq!(permit.loss(), None);
    guard.release().await.expect("the new master has the hold");
    let guard = waits.await.expect("no panic").expect("a handoff");
    guard.release().await.expect("the lock is held");
    permit.release().await.expect("the new master has the permit");
    let server = &ann.inspect("r").await[0].server;
    assert_eq!(**server, *url(&replica), "an answer names the present master");
    until_nothing_is_left(&[replica], "r");
}

/// For programs without a runtime.
#[each_server]
fn the_blocking_client_works_over_sentinels(kind: &ServerKind) {
    let (master, _replica) = Server::with_replica(kind);
    let sentinels = sentinels(kind, &master, 30_000);
    let build = || {
        let builder = Client::builder().server(address(&sentinels)).node_timeout(Duration::from_secs(5));
        builder.build_blocking().expect("a client")
    };
    let (ann, bob) = (build(), build());
    let guard = ann.lock("r").ttl(LONG).acquire().expect("the lock is free");
    let waits = std::thread::spawn(move || bob.lock("r").ttl(LONG).acquire());
    until("the waiter is queued", || waiters(&master).len() == 1);
    guard.release().expect("the lock is held");
    waits.join().expect("no panic").expect("a handoff").release().expect("the lock is held");
}

/// The old master lives on, as a replica.
#[each_server]
async fn a_planned_failover_is_followed(kind: &ServerKind) {
    let (master, replica) = Server::with_replica(kind);
    let sentinels = sentinels(kind, &master, 30_000);
    let client = client_of(&sentinels).await;
    let guard = client.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
    replica.wait_in_sync(&master);
    until_within(SENTINEL_TIMEOUT, "a sentinel begins the failover", || {
        sentinels[1].connect().say("SENTINEL FAILOVER locks") == "OK"
    });
    until_named(&sentinels[1], &replica);
    until_within(SENTINEL_TIMEOUT, "the hold is renewed at the new master", || {
        replica.info("role") == "master" && guard.loss().is_none() && {
            let again = replica.connect().ok("INFO commandstats").text().to_lowercase();
            again.contains("cmdstat_dlock.extend:")
        }
    });
    guard.release().await.expect("the new master has the hold");
    until_nothing_is_left(&[replica], "r");
}
