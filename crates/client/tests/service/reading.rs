//! Functions for operators: reading holders, waiters and lists, and breaking holds.

use super::proxies::{Loss, Lossy};
use super::*;

#[each_server]
async fn holders_and_waiters_of_every_master_are_read(kind: &ServerKind) {
    let (servers, ann, bob) = two_clients(kind, 3).await;
    assert!(ann.inspect("r").await.iter().all(|seen| seen.answer.found() == Some(&None)));
    let lock = ann.lock("r").ttl(LONG).label("nightly").fenced();
    let guard = lock.acquire().await.expect("the lock is free");
    let fence = guard.fence().expect("a fenced hold has a fence").get();
    until_held_everywhere(&servers, "r");
    let waits = tokio::spawn(bob.lock("r").label("bob").wait(Wait::For(LONG)).acquire());
    until_waiting(&servers, 1);

    let seen = ann.inspect("r").await;
    assert_eq!(seen.len(), 3);
    let mut confirmed = 0;
    for (seen, server) in seen.iter().zip(&servers) {
        assert_eq!(*seen.server, *url(server));
        let found = seen.answer.found().expect("an answer").as_ref().expect("the lock is held");
        assert_eq!((found.mode.as_str(), found.permits), ("exclusive", 0));
        let [holder] = found.holders.as_slice() else { panic!("{found:?}") };
        assert_eq!(holder.token.as_bytes(), guard.token().as_bytes());
        assert_eq!((holder.count, holder.fence, holder.label.as_str()), (1, found.fence, "nightly"));
        confirmed += usize::from(holder.fence == fence);
        assert!(holder.left_ms > 300_000 && !holder.ephemeral && holder.client > 0);
    }
    assert!(confirmed >= 2, "a majority has the fence of the hold");
    let waiting: u64 = seen.iter().map(|seen| seen.answer.found().unwrap().as_ref().unwrap().waiters).sum();
    assert_eq!(waiting, 1);
    let queues = ann.waiters("r", 10).await;
    let waiting: Vec<_> = queues.iter().flat_map(|queue| queue.answer.found().expect("an answer")).collect();
    let [waiter] = waiting.as_slice() else { panic!("{waiting:?}") };
    assert_eq!((waiter.mode.as_str(), waiter.label.as_str()), ("exclusive", "bob"));
    assert!(waiter.left_ms.is_some() && waiter.client == 0, "a wait by QUEUE has no connection: client 0");

    let broken = ann.break_holds("r").await;
    assert!(broken.iter().all(|broken| broken.answer.found() == Some(&1)), "{broken:?}");
    let next = waits.await.expect("no panic").expect("there was a handoff");
    next.release().await.expect("the lock is held");
    drop(guard);
}

/// One answer that does not come in time does not end the list.
#[each_server]
async fn a_page_of_the_list_is_asked_for_again(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    for lock in 0..3000 {
        conn.ok(&format!("DLOCK.ACQUIRE {lock} t 600000"));
    }
    let proxy = Lossy::to(&server, "DLOCK.LIST", Loss::Hangs);
    let client = proxy.client(Duration::from_secs(2)).await;
    let mut walk = client.walk(None, false).remove(0);
    let mut locks = walk.next().await.expect("a page").expect("the first locks").len();
    proxy.lose_the_next();
    while let Some(page) = walk.next().await.expect("a page") {
        locks += page.len();
    }
    assert!(proxy.has_lost());
    assert_eq!(locks, 3000);
}

/// A list can be too long for the client, because names of resources have no length limit.
#[each_server]
async fn a_list_that_is_too_long_is_an_error_and_delays_no_lock(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    servers[0].connect().call(&["DLOCK.ACQUIRE", &"n".repeat(9 << 20), "t", "600000"]).int();
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    // Each call reads the list over a connection of its own, which the client closes at the long reply.
    for _ in 0..2 {
        let seen = client.list(None).await.remove(0).answer;
        let Answer::Unanswered(NodeState::Failed(why)) = &seen else { panic!("{seen:?}") };
        assert!(why.text.contains("longer than 8 MiB"), "{why:?}");
        guard.extend(LONG).await.expect("the lock is held");
        assert_eq!(client.ask(&["ECHO", "hello"]).await[0].answer, Answer::Found(vec!["hello".into()]));
    }
    guard.release().await.expect("the lock is held");
}

#[each_server]
async fn an_operator_ends_one_wait(kind: &ServerKind) {
    for count in [1, 3] {
        let (servers, ann, bob) = two_clients(kind, count).await;
        let guard = ann.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
        until_held_everywhere(&servers, "r");
        let (ends, stays) = (Token::new(b"ends").expect("a token"), Token::new(b"stays").expect("a token"));
        let wait = |token: &Token| bob.lock("r").token(token.clone()).wait(Wait::For(LONG)).acquire();
        let (ends_waiting, stays_waiting) = (tokio::spawn(wait(&ends)), tokio::spawn(wait(&stays)));
        until_waiting(&servers, 2);

        let cancelled = ann.cancel("r", &ends).await;
        let removed: u64 = cancelled.iter().map(|seen| *seen.answer.found().expect("an answer")).sum();
        assert_eq!(removed, 1);
        let why = ends_waiting.await.expect("no panic").expect_err("the wait is over");
        assert!(matches!(why, AcquireError::Taken { .. }), "{why}");
        guard.release().await.expect("an operator who ends a wait ends no hold");
        let next = stays_waiting.await.expect("no panic").expect("the other wait goes on");
        next.release().await.expect("the lock is held");
    }
}
