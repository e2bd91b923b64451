//! Unanswered requests, which a server may execute late, and addresses that lead to another server than
//! before.

use super::proxies::{Address, Loss, Lossy};
use super::*;
use futures_util::FutureExt;
use std::pin::Pin;

const MINUTE: Duration = Duration::from_secs(60);

#[each_server]
async fn a_member_with_an_unanswered_extend_does_not_count_for_a_longer_lease(kind: &ServerKind) {
    let servers = masters(kind, 3);
    // The proxy closes the connection, and forwards the EXTEND only after `deliver`.
    let proxy = Lossy::to(&servers[0], "DLOCK.EXTEND", Loss::ClosesAndLate);
    let client = builder(&servers[1..]).server(proxy.url()).build().await.expect("a client");
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    proxy.lose_the_next();
    guard.extend(MINUTE).await.expect("two of three answer");
    until("the proxy holds the command back", || proxy.has_lost());
    // A majority now needs the member with the unanswered EXTEND.
    servers[2].kill9();
    let extended = guard.extend(LONG).await;
    assert!(matches!(extended, Err(ExtendError::Unconfirmed(_))), "{extended:?}");
    assert!(guard.remaining() <= MINUTE);
    // This lease is not longer than that of the unanswered EXTEND, so the server may execute the two in any
    // order.
    guard.extend(MINUTE / 2).await.expect("two of three answer");
    proxy.deliver();
    let mut conn = servers[0].connect();
    // A lease of more than 30 s is that of the late EXTEND.
    until("the late EXTEND is executed", || (30_001..=60_000).contains(&conn.ok("DLOCK.PTTL r").int()));
}

#[each_server]
async fn an_address_that_leads_to_another_member_does_not_count_in_extend(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let third = Address::of(&servers[2]);
    let client = builder(&servers[..2]).server(third.url()).build().await.expect("a client");
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    servers[1].kill9();
    third.lead_to(&servers[0]);
    // Repeated, because the client may meanwhile try to open a connection to the third address again.
    for _ in 0..5 {
        let Err(ExtendError::Unconfirmed(report)) = guard.extend(MINUTE).await else {
            panic!("one server is no majority of three")
        };
        let node = report.0.iter().find(|node| *node.server == third.url()).expect("each member is reported");
        assert!(matches!(node.state, NodeState::Failed(_) | NodeState::Down(_)), "{report}");
    }
}

/// Runs an operation in which one server could vote twice: the second of three members is down, and the third
/// address now leads to the first server. While the client has a connection to a server under one address, it
/// rejects that server under another. To get past this check, the third address accepts a connection only
/// after the first member has voted and the connection to it is closed.
async fn attempt_double_vote<T: Send + 'static>(
    kind: &ServerKind,
    begin: impl FnOnce(Client, Guard) -> Pin<Box<dyn Future<Output = T> + Send>>,
    has_voted: fn(&mut Conn) -> bool,
) -> T {
    let servers = masters(kind, 3);
    let (first, third) = (Address::of(&servers[0]), Address::of(&servers[2]));
    let urls = [first.url(), url(&servers[1]), third.url()];
    let client = Client::builder().servers(urls).node_timeout(Duration::from_secs(30));
    let client = client.build().await.expect("a client");
    let guard = client.lock("held").ttl(LONG).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "held");
    servers[1].kill9();
    third.set_accepts(false);
    third.lead_to(&servers[0]);
    let operation = tokio::spawn(begin(client, guard));
    let mut conn = servers[0].connect();
    until("the first member has voted", || has_voted(&mut conn));
    until("the client connects to the third address", || third.has_waiting());
    first.close_connections();
    third.set_accepts(true);
    operation.await.expect("no panic")
}

#[each_server]
async fn a_server_under_two_addresses_has_one_vote_in_extend(kind: &ServerKind) {
    let extend = |_, guard: Guard| async move { guard.extend(MINUTE).await }.boxed();
    let extended = attempt_double_vote(kind, extend, |conn| conn.ok("DLOCK.PTTL held").int() <= 60_000).await;
    assert!(matches!(extended, Err(ExtendError::Unconfirmed(_))), "{extended:?}");
}

#[each_server]
async fn a_server_under_two_addresses_has_one_vote_in_acquire(kind: &ServerKind) {
    let acquire = |client: Client, _| async move { client.lock("r").ttl(LONG).try_acquire().await }.boxed();
    let acquired = attempt_double_vote(kind, acquire, |conn| !conn.ok("DLOCK.INSPECT r").is_nil()).await;
    assert!(matches!(acquired, Err(AcquireError::QuorumImpossible { .. })), "{acquired:?}");
}

#[each_server]
async fn a_release_follows_an_acquire_that_stalls_at_one_member(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let proxy = Lossy::to(&servers[0], "DLOCK.ACQUIRE", Loss::Late);
    let client = builder(&servers[1..]).server(proxy.url()).node_timeout(Duration::from_secs(1));
    let client = client.build().await.expect("a client");
    // A first hold opens the connections.
    client.lock("other").await.expect("the lock is free").release().await.expect("the lock is held");
    proxy.lose_the_next();
    let lock = client.lock("r").ttl(LONG).wait(Wait::No).acquire();
    let guard = lock.await.expect("two of three answer");
    until("the proxy holds the command back", || proxy.has_lost());
    let _ = guard.release().await; // on a busy machine, the answers may take longer than 1 s
    client.flush().await;
    proxy.deliver();
    let grants = |server: &Server| server.info("dlock_grants");
    // The first grant was that of `other`.
    until("the late ACQUIRE is executed", || grants(&servers[0]) == "2");
    until_nothing_is_left(&servers, "r");
}

/// Returns the number of RELEASEs that the server has executed.
fn releases(server: &Server) -> u64 {
    let stats = server.connect().ok("INFO commandstats").text().to_lowercase();
    let calls = stats.lines().find_map(|line| line.strip_prefix("cmdstat_dlock.release:calls="));
    calls.map_or(0, |calls| calls.split(',').next().and_then(|calls| calls.parse().ok()).expect("a number"))
}

/// Waits until each server has answered several RELEASEs. Then delivers the ACQUIREs that the proxies hold
/// back, and waits until the lock is free again.
fn until_late_acquires_are_released(servers: &[Server], proxies: &[Lossy]) {
    for server in servers {
        until("the client repeats the RELEASE", || releases(server) >= 4);
    }
    proxies.iter().for_each(Lossy::deliver);
    for server in servers {
        until("the late ACQUIRE is executed", || server.info("dlock_grants") == "1");
    }
    until_nothing_is_left(servers, "r");
}

#[each_server]
async fn a_failed_acquisition_releases_a_hold_that_begins_late_at_a_majority(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let proxies = [0, 1].map(|index| Lossy::to(&servers[index], "DLOCK.ACQUIRE", Loss::ClosesAndLate));
    let client = builder(&servers[2..]).servers(proxies.iter().map(Lossy::url));
    let client = client.retry(Retry::new(0, Duration::ZERO)).build().await.expect("a client");
    proxies.iter().for_each(Lossy::lose_the_next);
    let why = client.lock("r").ttl(LONG).wait(Wait::No).acquire().await.expect_err("one of three answers");
    assert!(matches!(why, AcquireError::QuorumImpossible { .. }), "{why:?}");
    until_late_acquires_are_released(&servers[..2], &proxies);
}

#[each_server]
async fn a_released_hold_is_also_released_where_its_acquire_arrives_late(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let proxies = [Lossy::to(&servers[0], "DLOCK.ACQUIRE", Loss::ClosesAndLate)];
    let client = builder(&servers[1..]).server(proxies[0].url()).build().await.expect("a client");
    proxies[0].lose_the_next();
    let guard = client.lock("r").ttl(LONG).wait(Wait::No).acquire().await.expect("two of three answer");
    until("the proxy holds the command back", || proxies[0].has_lost());
    guard.release().await.expect("two of three answer");
    until_late_acquires_are_released(&servers[..1], &proxies);
}

/// The only reachable member refuses the lock. It is no majority, so the lock is not reported as taken. The
/// client begins to wait in this member's queue, because it has just found the lock taken (`contended`), or
/// because the caller gave the token.
#[each_server]
async fn a_wait_in_the_queue_of_a_minority_ends_with_quorum_impossible(kind: &ServerKind) {
    for contended in [true, false] {
        let (servers, client) = quorum(kind, 3).await;
        let queue_port = queue_master(&servers).port();
        hold_as("other", &servers);
        let lock = || client.lock("r").ttl(LONG).wait(Wait::For(Duration::from_millis(500)));
        if contended {
            let why = lock().await.expect_err("another client holds the lock");
            assert!(matches!(why, AcquireError::Taken { .. }), "{why:?}");
        }
        all_but(&servers, queue_master(&servers)).for_each(Server::kill9);
        let lock =
            if contended { lock() } else { lock().token(Token::new(b"never used before").expect("a token")) };
        let why = lock.await.expect_err("one of three answers");
        let AcquireError::QuorumImpossible { report, .. } = &why else { panic!("{why:?}") };
        for server in &servers {
            let dead = matches!(state(report, server), NodeState::Down(_));
            assert_eq!(dead, server.port() != queue_port, "{report}");
        }
    }
}

/// A member is cut off with a long lease, and the others are then extended to a short one. The release is
/// owed for the long lease.
#[each_server]
async fn a_release_is_owed_for_the_longest_lease_of_the_hold(kind: &ServerKind) {
    const SHORT: Duration = Duration::from_secs(1);
    let servers = masters(kind, 3);
    let third = Address::of(&servers[2]);
    let builder = builder(&servers[..2]).server(third.url()).node_timeout(SHORT / 4);
    let client = builder.build().await.expect("a client");
    let guard = client.lock("r").ttl(SHORT).renew(false).acquire().await.expect("the lock is free");
    guard.extend(LONG).await.expect("all members answer");
    until("every member has the long lease", || {
        servers.iter().all(|server| server.connect().ok("DLOCK.PTTL r").int() > 60_000)
    });
    third.set_accepts(false);
    third.close_connections();
    guard.extend(SHORT).await.expect("two of three answer");
    guard.release().await.expect("two of three answer");
    let short_lease_end = now() + SHORT * 2;
    until("the short lease would have ended", || now() > short_lease_end);
    third.set_accepts(true);
    until_nothing_is_left(&servers, "r");
}
