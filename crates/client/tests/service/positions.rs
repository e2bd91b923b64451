//! The waits of a client share one connection, and keep their positions in the queue when the connection
//! closes.

use super::*;
use std::sync::{Arc, Mutex};

/// Number of waits of one client.
const WAITS: usize = 1_000;

/// Returns the number of connections, or of subscribed ones.
fn connections(conn: &mut Conn, subscribed: bool) -> usize {
    conn.ok(if subscribed { "CLIENT LIST TYPE pubsub" } else { "CLIENT LIST" }).text().lines().count()
}

#[each_server]
async fn a_thousand_waits_share_one_connection_and_are_all_granted(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        hold_as("other", &servers);
        let client = client(&servers).await;
        let fences = Arc::new(Mutex::new(Vec::new()));
        let waits: Vec<_> = (0..WAITS)
            .map(|_| {
                let (lock, fences) = (client.lock("r").ttl(LONG), fences.clone());
                tokio::spawn(async move {
                    let guard = lock.acquire().await.expect("the waiter is granted");
                    fences.lock().unwrap().push(guard.fence());
                    guard.release().await.expect("the lock is held");
                })
            })
            .collect();
        until("all wait", || {
            let queued = servers.iter().map(|server| server.info("dlock_queued").parse::<usize>());
            queued.map(|queued| queued.expect("a number")).sum::<usize>() == WAITS
        });
        for server in &servers {
            let mut conn = server.connect();
            // One of the connections is the test's own.
            until("the client has one connection", || connections(&mut conn, false) <= 2);
        }
        release_as("other", &servers);
        for wait in waits {
            wait.await.expect("no panic");
        }
        let fences = fences.lock().unwrap();
        // In a quorum, only guards of `fenced` locks have a fence.
        assert!(fences.len() == WAITS && (count > 1 || fences.is_sorted()), "fences rise from hold to hold");
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_reconnect_keeps_the_position(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        hold_as("other", &servers);
        let waits = tokio::spawn(client(&servers).await.lock("r").ttl(LONG).acquire());
        let master = queue_master(&servers);
        until_waiting(&servers, 1);
        let mine = waiters(master).remove(0);
        let mut rival = queue::waiter(master, "DLOCK.ACQUIRE r rival 600000 BLOCK 0");
        let mut conn = master.connect();
        for _ in 0..3 {
            assert_eq!(conn.ok("CLIENT KILL TYPE pubsub"), 1);
            until("the client has reconnected", || connections(&mut conn, true) == 1);
        }
        assert_eq!(waiters(master), [mine, "rival".into()]);
        // The message of this release is lost, because no connection is subscribed.
        let both = ["CLIENT KILL TYPE pubsub", "DLOCK.RELEASE r other"];
        assert!(conn.say_together(&both).iter().all(|done| *done == 1));
        release_as("other", all_but(&servers, master));
        let acquired = tokio::time::timeout(TIMEOUT, waits).await.expect("the wait ends");
        let guard = acquired.expect("no panic").expect("the waiter is the head of the queue");
        assert_eq!(waiters(master), ["rival"]);
        guard.release().await.expect("the lock is held");
        queue::granted(&mut rival);
    }
}

/// A QUEUE position expires if its client does not repeat the ACQUIRE. The lease of a grant to the position
/// ends when the position would have expired. The client claims the grant by another ACQUIRE, which sets the
/// requested lease.
#[each_server]
async fn a_granted_waiter_gets_the_whole_lease(kind: &ServerKind) {
    for with_options in [|lock| lock, |lock: Acquire| lock.ephemeral()] {
        let servers = masters(kind, 1);
        hold_as("other", &servers);
        let lock = with_options(client(&servers).await.lock("r")).ttl(LONG).renew(false);
        let waits = tokio::spawn(lock.acquire());
        until_waiting(&servers, 1);
        release_as("other", &servers);
        let guard = waits.await.expect("no panic").expect("a handoff");
        until("the client has claimed the grant", || guard.remaining() > LONG / 2);
        assert!(servers[0].connect().ok("DLOCK.PTTL r").int() > LONG.as_millis() as i64 / 2);
    }
}

#[each_server]
async fn a_user_without_access_to_the_channel_can_wait(kind: &ServerKind) {
    let servers = masters(kind, 3);
    for server in &servers {
        server.connect().ok("ACL SETUSER ann on >pass ~* +@all resetchannels");
    }
    hold_as("other", &servers);
    let address = |server: &Server| format!("redis://ann:pass@127.0.0.1:{}", server.port());
    let builder = Client::builder().servers(servers.iter().map(address));
    // A busy machine may need seconds for one reply.
    let client = builder.node_timeout(LONG / 100).build().await.expect("a client");
    let waits = tokio::spawn(client.lock("r").ttl(LONG).acquire());
    until_waiting(&servers, 1);
    assert_eq!(connections(&mut queue_master(&servers).connect(), true), 0, "no connection is subscribed");
    release_as("other", &servers);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    hold_as("other", &servers);
    // A dropped wait leaves the queue, too.
    let mut dropped = Box::pin(client.lock("r").acquire());
    run_until_waiting(queue_master(&servers), &mut dropped).await;
    drop(dropped);
    release_as("other", &servers);
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn a_client_can_wait_when_max_ttl_is_short(kind: &ServerKind) {
    let servers = masters(kind, 1);
    hold_as("other", &servers);
    // A client asks a master to keep the queue position for 10 s, longer than this limit of 6 s.
    servers[0].connect().ok("CONFIG SET dlock.max-ttl 6000");
    let lock = client(&servers).await.lock("r").ttl(Duration::from_secs(6)).wait(Wait::For(LONG));
    let waits = tokio::spawn(lock.acquire());
    until_waiting(&servers, 1);
    release_as("other", &servers);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
}

/// After its wait was cancelled (DLOCK.CANCEL), a client asks again with a fresh token. If the caller gave
/// the token, the client does not ask again, and the acquisition fails.
#[each_server]
async fn a_cancelled_waiter_that_asks_again_joins_the_tail(kind: &ServerKind) {
    let servers = masters(kind, 1);
    hold_as("other", &servers);
    let waits = tokio::spawn(client(&servers).await.lock("r").ttl(LONG).acquire());
    until_waiting(&servers, 1);
    let before = waiters(&servers[0]).remove(0);
    let _rival = queue::waiter(&servers[0], "DLOCK.ACQUIRE r rival 600000 BLOCK 0");
    let mut conn = servers[0].connect();
    let given = Token::new(&b"given"[..]).expect("a token");
    let cancelled = tokio::spawn(client(&servers).await.lock("r").token(given).acquire());
    until_waiting(&servers, 3);
    assert_eq!(conn.ok("DLOCK.CANCEL r given"), 1);
    let cancelled = tokio::time::timeout(TIMEOUT, cancelled).await.expect("the wait ends").expect("no panic");
    assert!(matches!(cancelled, Err(AcquireError::Taken { .. })), "{cancelled:?}");
    assert_eq!(conn.ok(&format!("DLOCK.CANCEL r {before}")), 1);
    until_waiting(&servers, 2);
    assert_eq!(waiters(&servers[0])[0], "rival");
    // RELEASE also removes a waiter from the queue.
    assert_eq!(conn.ok("DLOCK.RELEASE r rival"), 0);
    release_as("other", &servers);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
}

#[each_server]
async fn waits_survive_a_restart_of_their_queue_master(kind: &ServerKind) {
    for count in [1, 3] {
        let mut servers = masters(kind, count);
        hold_as("other", &servers);
        let builder = builder(&servers).node_timeout(Duration::from_secs(1));
        let client = builder.build().await.expect("a client");
        let waits: Vec<_> = (0..5)
            .map(|_| {
                let acquired = client.lock("r").ttl(LONG).fenced().acquire();
                tokio::spawn(async {
                    acquired.await.expect("the waiter is granted").release().await.expect("the lock is held")
                })
            })
            .collect();
        let port = queue_master(&servers).port();
        until_waiting(&servers, 5);
        let index = servers.iter().position(|server| server.port() == port).expect("one of the servers");
        servers[index].kill9();
        servers[index].restart();
        release_as("other", all_but(&servers, &servers[index]));
        for wait in waits {
            wait.await.expect("no panic");
        }
        until_nothing_is_left(&servers, "r");
    }
}

/// The client outlives the runtime, but no task is left to claim the grants.
#[each_server]
fn the_end_of_a_runtime_cancels_its_waits(kind: &ServerKind) {
    let servers = masters(kind, 3);
    hold_as("other", &servers);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(client(&servers));
    runtime.spawn(client.lock("r").ttl(LONG).acquire());
    runtime.block_on(run_until_waiting(queue_master(&servers), std::future::pending::<()>()));
    drop(runtime);
    until_waiting(&servers, 0);
    assert_eq!(queue_master(&servers).info("dlock_timeouts"), "0", "no position expired");
    release_as("other", &servers);
    until_nothing_is_left(&servers, "r");
}
