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

/// The sentinels name the new master at once, and make the old one a replica about ten seconds later: here it
/// refuses. The grace period protects no hold that goes on at the old master.
#[each_server]
async fn holds_and_waits_leave_an_old_master_that_goes_on(kind: &ServerKind) {
    let ttl = Duration::from_secs(8);
    for grace in [Duration::ZERO, ttl] {
        let grace = format!("dlock.restart-grace {}", grace.as_millis());
        let refuses = ["rename-command SLAVEOF \"\"", "rename-command REPLICAOF \"\"", &grace];
        let master = Server::options(kind).confs(&refuses).start();
        let replica = Server::options(kind).conf(&grace).start();
        replica.replicate(&master);
        let sentinels = sentinels(kind, &master, 30_000);
        let (ann, bob) = (client_of(&sentinels).await, client_of(&sentinels).await);
        // These clients are at the first sentinel. When it is silent, they subscribe at another one.
        until("both clients are subscribed", || subscribers(&sentinels[0]) == 2);
        sentinels[0].pause();
        until_within(SENTINEL_TIMEOUT, "both are subscribed at another sentinel", || {
            subscribers(&sentinels[1]) + subscribers(&sentinels[2]) == 2
        });
        let guard = ann.lock("r").ttl(ttl).acquire().await.expect("the lock is free");
        let ephemeral = ann.lock("e").ttl(ttl).ephemeral().await.expect("the lock is free");
        let waits = tokio::spawn(take_turn(bob, ttl));
        until("the waiter is queued", || waiters(&master).len() == 1);
        replica.wait_in_sync(&master);
        until_within(SENTINEL_TIMEOUT, "a sentinel begins the failover", || {
            sentinels[1].connect().say("SENTINEL FAILOVER locks") == "OK"
        });
        until_named(&sentinels[1], &replica);
        let competes = tokio::spawn(take_turn(client_of(&sentinels[1..]).await, ttl));
        until_within(SENTINEL_TIMEOUT, "the hold is renewed at the new master", || {
            assert!(!competes.is_finished(), "two holders: {:?}", guard.loss());
            let stats = replica.connect().ok("INFO commandstats").text().to_lowercase();
            stats.contains("cmdstat_dlock.extend:")
        });
        until("both wait at the new master", || waiters(&replica).len() == 2);
        assert_eq!((guard.loss(), master.info("role").as_str()), (None, "master"));
        assert_eq!(ephemeral.lost().await, Lost::Disconnected);
        guard.release().await.expect("the new master has the hold");
        for turn in [waits, competes] {
            turn.await.expect("no panic");
        }
        until_nothing_is_left(&[replica], "r");
        drop((ann, ephemeral));
        until("no subscription is left", || sentinels[1..].iter().all(|sentinel| subscribers(sentinel) == 0));
    }
}

async fn take_turn(client: Client, ttl: Duration) {
    let guard = client.lock("r").ttl(ttl).acquire().await.expect("a handoff");
    guard.release().await.expect("the lock is held");
}

/// For example, a sentinel on the wrong side of a split names a former master.
#[each_server]
async fn a_sentinel_that_names_no_successor_is_not_followed(kind: &ServerKind) {
    let (master, other) = (Server::start(kind), Server::start(kind));
    let lone = |server: &Server| {
        let monitor = format!("sentinel monitor locks 127.0.0.1 {} 1", server.port());
        Server::options(kind).sentinel().conf(&monitor).start()
    };
    let sentinels = [lone(&master), lone(&other)];
    let client = client_of(&sentinels).await;
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    until("the client is subscribed", || subscribers(&sentinels[0]) == 1);
    let mut conn = sentinels[1].connect();
    let mut connections = || {
        let stats = conn.ok("INFO stats").text().to_owned();
        let count = stats.split_once("total_connections_received:").expect("a count").1.lines().next();
        count.expect("a line").parse::<u64>().expect("a number")
    };
    let before = connections();
    sentinels[0].kill9();
    until_within(SENTINEL_TIMEOUT, "the client has asked the other sentinel twice", || {
        connections() >= before + 2
    });
    assert_eq!(guard.loss(), None);
    guard.release().await.expect("the master has the hold");
    let stats = other.connect().ok("INFO commandstats").text().to_lowercase();
    assert!(!stats.contains("cmdstat_dlock."), "{stats}");
}

/// Returns the number of clients that are subscribed at this sentinel.
fn subscribers(sentinel: &Server) -> usize {
    sentinel.connect().ok("CLIENT LIST TYPE pubsub").text().lines().count()
}
