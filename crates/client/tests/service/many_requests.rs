//! Many requests at one moment: a time limit counts from the last answer of the server.

use super::handoff::calls;
use super::proxies::Slow;
use super::*;
use futures_util::future::join_all;

const HOLDS: usize = 200;

/// The answers to the releases take several times the node timeout in all, but each one comes in time.
#[each_server]
async fn releases_that_are_sent_together_are_confirmed_with_one_request_each(kind: &ServerKind) {
    let server = Server::start(kind);
    let proxy = Slow::to(&server);
    let builder = Client::builder().server(proxy.url()).node_timeout(Duration::from_secs(1));
    let client = builder.build().await.expect("a client");
    let locks = (0..HOLDS).map(|number| client.lock(number.to_string()).ttl(LONG).shared().acquire());
    let guards: Vec<Guard> = join_all(locks).await.into_iter().map(|lock| lock.expect("free")).collect();
    proxy.begin();
    for released in join_all(guards.into_iter().map(Guard::release)).await {
        released.expect("the lock is held");
    }
    assert_eq!(calls(&server, "release"), HOLDS as u64);
}
