//! Waits share one connection of the client, and their positions survive it.

use dlock_client::{AcquireError, Token, Wait};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use super::{LONG, builder, client, head, holders, masters, until_nothing_is_left};
use dlock_testkit::{Conn, Server, ServerKind, TIMEOUT, each_server, queue, until};

/// More waits than a server would accept connections.
const MANY: usize = 1_000;

/// Acquires `r` on every server for another client.
fn held_by_other(servers: &[Server]) {
    for server in servers {
        assert!(server.connect().ok("DLOCK.ACQUIRE r other 600000").int() > 0);
    }
}

fn released_by_other(servers: &[Server]) {
    servers.iter().for_each(|server| assert_eq!(server.connect().ok("DLOCK.RELEASE r other"), 1));
}

fn tokens(server: &Server) -> Vec<String> {
    queue::tokens(&mut server.connect(), "r")
}

/// Returns the number of connections, or of subscribed ones.
fn connections(look: &mut Conn, subscribed: bool) -> usize {
    look.ok(if subscribed { "CLIENT LIST TYPE pubsub" } else { "CLIENT LIST" }).text().lines().count()
}

#[each_server]
async fn a_thousand_waits_share_one_connection_and_are_all_granted(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        let mut looks: Vec<Conn> = servers.iter().map(Server::connect).collect();
        looks.iter_mut().for_each(|look| drop(look.ok("DLOCK.ACQUIRE r other 600000")));
        let client = client(&servers).await;
        let fences = Arc::new(Mutex::new(Vec::new()));
        let waits: Vec<_> = (0..MANY)
            .map(|_| {
                let (lock, fences) = (client.lock("r").ttl(LONG), fences.clone());
                tokio::spawn(async move {
                    let guard = lock.acquire().await.expect("its turn comes");
                    fences.lock().unwrap().push(guard.fence());
                    guard.release().await.expect("the lock is held");
                })
            })
            .collect();
        until("all wait", || {
            let queued = servers.iter().map(|server| server.info("dlock_queued").parse::<usize>());
            queued.map(|queued| queued.expect("a number")).sum::<usize>() == MANY
        });
        for look in &mut looks {
            // One of the connections is the test's own.
            until("one connection", || connections(look, false) <= 2);
            assert_eq!(look.ok("DLOCK.RELEASE r other"), 1);
        }
        for wait in waits {
            wait.await.expect("no panic");
        }
        let fences = fences.lock().unwrap();
        assert!(fences.len() == MANY && (count > 1 || fences.is_sorted()), "in the order of the grants");
        until_nothing_is_left(&servers, "r");
    }
}

#[each_server]
async fn a_reconnect_keeps_the_position(kind: &ServerKind) {
    for count in [1, 3] {
        let servers = masters(kind, count);
        held_by_other(&servers);
        let waits = tokio::spawn(client(&servers).await.lock("r").ttl(LONG).acquire());
        let first = head(&servers);
        until("the client waits", || tokens(first).len() == 1);
        let mine = tokens(first).remove(0);
        let mut rival = queue::waiter(first, "DLOCK.ACQUIRE r rival 600000 BLOCK 0");
        let mut look = first.connect();
        for _ in 0..3 {
            assert_eq!(look.ok("CLIENT KILL TYPE pubsub"), 1);
            until("the client has reconnected", || connections(&mut look, true) == 1);
        }
        assert_eq!(tokens(first), [mine, "rival".into()]);
        // A message without a subscriber is lost.
        let both = ["CLIENT KILL TYPE pubsub", "DLOCK.RELEASE r other"];
        assert!(look.say_together(&both).iter().all(|done| *done == 1));
        servers.iter().filter(|server| server.port() != first.port()).for_each(|server| {
            assert_eq!(server.connect().ok("DLOCK.RELEASE r other"), 1);
        });
        let acquired = tokio::time::timeout(TIMEOUT, waits).await.expect("it is not lost");
        let guard = acquired.expect("no panic").expect("it was the first");
        assert_eq!(tokens(first), ["rival"]);
        guard.release().await.expect("the lock is held");
        queue::granted(&mut rival);
    }
}

/// An unclaimed grant lasts as long as the position; the claim sets the requested lease.
#[each_server]
async fn a_granted_wait_has_the_whole_lease(kind: &ServerKind) {
    for options in [|lock| lock, |lock: dlock_client::Acquire| lock.ephemeral()] {
        let servers = masters(kind, 1);
        held_by_other(&servers);
        let lock = options(client(&servers).await.lock("r")).ttl(LONG).renew(false);
        let waits = tokio::spawn(lock.acquire());
        until("the client waits", || tokens(&servers[0]).len() == 1);
        released_by_other(&servers);
        let guard = waits.await.expect("no panic").expect("a handoff");
        assert!(guard.remaining() > LONG / 2);
        assert!(servers[0].connect().ok("DLOCK.PTTL r").int() > LONG.as_millis() as i64 / 2);
    }
}

#[each_server]
async fn a_user_without_access_to_the_channel_can_wait(kind: &ServerKind) {
    let servers = masters(kind, 3);
    for server in &servers {
        server.connect().ok("ACL SETUSER ann on >pass ~* +@all resetchannels");
    }
    held_by_other(&servers);
    let address = |server: &Server| format!("redis://ann:pass@127.0.0.1:{}", server.port());
    let builder = dlock_client::Client::builder().servers(servers.iter().map(address));
    let client = builder.node_timeout(LONG / 100).build().await.expect("a client");
    let waits = tokio::spawn(client.lock("r").ttl(LONG).acquire());
    until("the client waits", || tokens(head(&servers)).len() == 1);
    assert_eq!(connections(&mut head(&servers).connect(), true), 0, "no connection is subscribed");
    released_by_other(&servers);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    held_by_other(&servers);
    let mut dropped = Box::pin(client.lock("r").acquire());
    tokio::select! {
        _ = &mut dropped => panic!("the lock is held"),
        () = async { tokio::task::spawn_blocking({
            let port = head(&servers).port();
            move || {
                let mut look = Conn::open(port);
                until("the client waits again", || queue::tokens(&mut look, "r").len() == 1);
            }
        }).await.expect("no panic") } => {}
    }
    drop(dropped);
    released_by_other(&servers);
    until_nothing_is_left(&servers, "r");
}

#[each_server]
async fn positions_survive_short_leases(kind: &ServerKind) {
    let servers = masters(kind, 1);
    held_by_other(&servers);
    servers[0].connect().ok("CONFIG SET dlock.max-ttl 2000");
    let lock = client(&servers).await.lock("r").ttl(Duration::from_secs(2)).wait(Wait::For(LONG));
    let waits = tokio::spawn(lock.acquire());
    until("the client waits", || tokens(&servers[0]).len() == 1);
    released_by_other(&servers);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
}

/// A wait goes on after a cancellation: the next request joins the tail. With a given token it ends.
#[each_server]
async fn a_cancelled_waiter_that_asks_again_joins_the_tail(kind: &ServerKind) {
    let servers = masters(kind, 1);
    held_by_other(&servers);
    let waits = tokio::spawn(client(&servers).await.lock("r").ttl(LONG).acquire());
    until("the client waits", || tokens(&servers[0]).len() == 1);
    let before = tokens(&servers[0]).remove(0);
    let _rival = queue::waiter(&servers[0], "DLOCK.ACQUIRE r rival 600000 BLOCK 0");
    let mut conn = servers[0].connect();
    let given = Token::new(&b"given"[..]).expect("a token");
    let cancelled = tokio::spawn(client(&servers).await.lock("r").token(given).acquire());
    until("the client waits", || tokens(&servers[0]).len() == 3);
    assert_eq!(conn.ok("DLOCK.CANCEL r given"), 1);
    let cancelled = tokio::time::timeout(TIMEOUT, cancelled).await.expect("it ends").expect("no panic");
    assert!(matches!(cancelled, Err(AcquireError::Taken { .. })), "{cancelled:?}");
    assert_eq!(conn.ok(&format!("DLOCK.CANCEL r {before}")), 1);
    until("the client waits again", || tokens(&servers[0]).len() == 2);
    assert_eq!(tokens(&servers[0])[0], "rival");
    assert_eq!(conn.ok("DLOCK.RELEASE r rival"), 0);
    released_by_other(&servers);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
}

#[each_server]
async fn waits_survive_a_restart_of_their_queue_master(kind: &ServerKind) {
    for count in [1, 3] {
        let mut servers = masters(kind, count);
        held_by_other(&servers);
        let client = builder(&servers).node_timeout(Duration::from_secs(1)).build().await;
        let client = client.expect("a client");
        let waits: Vec<_> = (0..5)
            .map(|_| {
                let acquired = client.lock("r").ttl(LONG).fenced().acquire();
                tokio::spawn(async {
                    acquired.await.expect("its turn").release().await.expect("the lock is held")
                })
            })
            .collect();
        let port = head(&servers).port();
        until("all wait", || tokens(head(&servers)).len() == 5);
        let first = servers.iter().position(|server| server.port() == port).expect("one of them");
        servers[first].kill9();
        servers[first].restart();
        let left = servers.iter().filter(|server| !holders(server, "r").is_empty());
        left.for_each(|server| drop(server.connect().ok("DLOCK.RELEASE r other")));
        for wait in waits {
            wait.await.expect("no panic");
        }
        until_nothing_is_left(&servers, "r");
    }
}

/// The client outlives the runtime, and no task would claim the grants.
#[each_server]
fn the_end_of_a_runtime_cancels_its_waits(kind: &ServerKind) {
    let servers = masters(kind, 3);
    held_by_other(&servers);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let client = runtime.block_on(client(&servers));
    runtime.spawn(client.lock("r").ttl(LONG).acquire());
    let port = head(&servers).port();
    let waits = async || {
        let look = move || until("the client waits", || queue::tokens(&mut Conn::open(port), "r").len() == 1);
        tokio::task::spawn_blocking(look).await.expect("no panic");
    };
    runtime.block_on(waits());
    drop(runtime);
    until("nobody waits", || tokens(head(&servers)).is_empty());
    assert_eq!(head(&servers).info("dlock_timeouts"), "0", "the waiter has left the queue");
    released_by_other(&servers);
    until_nothing_is_left(&servers, "r");
}
