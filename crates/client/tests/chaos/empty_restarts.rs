//! Three of five masters lose a hold: another client is granted the lock, unless they have restart grace.

use std::time::Duration;

use dlock_client::{Client, Guard, Wait, now};
use tokio::runtime::Builder;

use dlock_testkit::{Server, ServerKind, each_server};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

async fn try_acquire(servers: &[Server]) -> Option<Guard> {
    let urls = servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port()));
    let client = Client::builder().servers(urls).node_timeout(Duration::from_secs(5)).build().await;
    let lock = client.expect("a client").lock("r").ttl(LONG).renew(false).fenced();
    lock.wait(Wait::No).acquire().await.ok()
}

/// Returns whether both clients believe that they hold the lock.
async fn two_hold(kind: &ServerKind, grace: Duration) -> bool {
    let grace = grace.as_millis();
    let start = || {
        let server = Server::options(kind).conf(&format!("dlock.restart-grace {grace}")).start();
        // No lock is held yet.
        for ms in [0, grace] {
            assert_eq!(server.connect().ok(&format!("CONFIG SET dlock.restart-grace {ms}")), "OK");
        }
        server
    };
    let mut servers: Vec<Server> = (0..5).map(|_| start()).collect();
    let first = try_acquire(&servers).await.expect("the lock is free");
    servers[..3].iter().for_each(Server::kill9);
    servers[..3].iter_mut().for_each(Server::restart);
    let second = try_acquire(&servers).await;
    assert!(now() < first.valid_until());
    second.is_some_and(|second| now() < second.valid_until())
}

#[each_server]
fn restart_grace_prevents_a_second_grant_after_a_majority_restarts_empty(kind: &ServerKind) {
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    runtime.block_on(async {
        assert!(two_hold(kind, Duration::ZERO).await, "without grace");
        assert!(!two_hold(kind, LONG).await, "with grace");
    });
}
