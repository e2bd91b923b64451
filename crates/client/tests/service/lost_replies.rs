//! Lost messages between a server and its client.

use super::proxies::{Loss, Lossy};
use super::*;

/// The repetition finds no hold. The hold would be valid still, so the release without an answer has ended
/// it.
#[each_server]
async fn a_release_without_an_answer_is_confirmed_by_its_repetition(kind: &ServerKind) {
    let server = Server::start(kind);
    let proxy = Lossy::to(&server, "DLOCK.RELEASE", Loss::Closes);
    let client = proxy.client(Duration::from_secs(5)).await;
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    proxy.lose_the_next();
    guard.release().await.expect("the lock was held");
    until_nothing_is_left(&[server], "r");
}

/// The server forgets the hold before the repetition: it may have crashed before it received the release.
#[each_server]
async fn a_release_without_an_answer_is_not_confirmed_by_another_process(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let proxy = Lossy::to(&server, "DLOCK.RELEASE", Loss::Late);
    let client = proxy.client(Duration::from_secs(5)).await;
    let guard = client.lock("r").ttl(LONG).await.expect("the lock is free");
    proxy.lose_the_next();
    let release = tokio::spawn(guard.release());
    until("the proxy holds the command back", || proxy.has_lost());
    server.kill9();
    server.restart();
    proxy.deliver();
    let why = release.await.expect("no panic").expect_err("the answer is lost");
    assert!(matches!(why, ReleaseError::Unconfirmed(_)), "{why:?}");
    assert!(why.to_string().contains("no answer in time"), "{why}");
}

/// The server grants the lock, but the proxy drops this reply and all later ones on the connection. When the
/// client closes the connection, the first hold ends, because an ephemeral hold ends with its connection.
#[each_server]
async fn an_ephemeral_acquire_without_a_reply_is_repeated_over_another_connection(kind: &ServerKind) {
    let server = Server::start(kind);
    let proxy = Lossy::to(&server, "DLOCK.ACQUIRE", Loss::Hangs);
    let client = proxy.client(Duration::from_secs(1)).await;
    proxy.lose_the_next();
    let lock = client.lock("r").ttl(LONG).ephemeral().wait(Wait::For(LONG));
    let guard = tokio::time::timeout(Duration::from_secs(30), lock).await.expect("the client reconnects");
    guard.expect("the lock is free").release().await.expect("the lock is held");
    until("the server holds nothing", || server.info("dlock_held") == "0");
}
