//! Notices of holds that are broken, deleted, flushed or expire.

use dlock_client::{Lost, NodeState, now};
use std::time::Duration;

use super::{client, masters, state, until_held_everywhere};
use dlock_testkit::{Server, ServerKind, each_server, until};

#[each_server]
async fn a_hold_that_is_broken_is_lost(kind: &ServerKind) {
    for (count, broken) in [(1, 1), (3, 2), (5, 3)] {
        let servers = masters(kind, count);
        let client = client(&servers).await;
        let guard = client.lock("r").ttl(Duration::from_secs(3)).acquire().await.expect("the lock is free");
        for server in &servers[..broken] {
            let mut conn = server.connect();
            until("the hold is broken", || conn.ok("DLOCK.BREAK r") == 1);
        }
        let why = guard.lost().await;
        assert!(now() < guard.valid_until(), "the loss is reported before the lease ends");
        let Lost::TakenAway(report) = why else { panic!("{why:?}") };
        assert!(servers[..broken].iter().all(|server| *state(&report, server) == NodeState::NotHeld));
    }
}

/// Returns whether the client has queried the hold since the last reset, so that the server tracks it.
fn is_tracked(server: &Server) -> bool {
    server.connect().ok("INFO commandstats").text().to_lowercase().contains("cmdstat_dlock.holds")
}

/// The lease lasts ten minutes, so only a push of the server can report the loss.
#[each_server]
async fn a_removed_hold_is_noticed_at_once_with_and_without_renewal(kind: &ServerKind) {
    for renews in [true, false] {
        for (count, taken) in [(1, 1), (3, 2)] {
            let servers = masters(kind, count);
            let client = client(&servers).await;
            let ways = ["DLOCK.BREAK r", "DEL r", "FLUSHALL", "PEXPIRE r 1", "RENAME r other"];
            for way in ways {
                let ttl = Duration::from_secs(600);
                servers.iter().for_each(|server| assert_eq!(server.connect().ok("CONFIG RESETSTAT"), "OK"));
                let guard =
                    client.lock("r").ttl(ttl).renew(renews).acquire().await.expect("the lock is free");
                until("its masters track it", || servers.iter().all(is_tracked));
                // Each extension ends the tracking, and the client starts it again.
                guard.extend(ttl).await.expect("the lock is held");
                for server in &servers[..taken] {
                    server.connect().ok(way);
                }
                let why = guard.lost().await;
                assert!(matches!(why, Lost::TakenAway(_)), "{way}: {why:?}");
                servers.iter().for_each(|server| assert_eq!(server.connect().ok("FLUSHALL"), "OK"));
            }
        }
    }
}

/// The server pushes only once.
#[each_server]
async fn a_loss_is_noticed_when_its_master_answers_late(kind: &ServerKind) {
    let servers = masters(kind, 1);
    let client = client(&servers).await;
    let guard = client.lock("r").ttl(Duration::from_secs(600)).acquire().await.expect("the lock is free");
    until("its master tracks it", || is_tracked(&servers[0]));
    servers[0].connect().ok("DEL r");
    servers[0].pause();
    // After two node timeouts the query after the push has no reply either.
    for _ in 0..2 {
        client.inspect("r").await;
    }
    servers[0].resume();
    // The next renewal is far away.
    until("the client notices the loss", || matches!(guard.loss(), Some(Lost::TakenAway(_))));
}

#[each_server]
async fn a_break_by_the_same_client_is_noticed(kind: &ServerKind) {
    let servers = masters(kind, 3);
    let client = client(&servers).await;
    let guard = client.lock("r").ttl(Duration::from_secs(600)).acquire().await.expect("the lock is free");
    until_held_everywhere(&servers, "r");
    client.break_holds("r").await;
    assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
}

/// The server forgets the tracking with the connection.
#[each_server]
async fn a_loss_after_a_reconnect_is_noticed_at_once(kind: &ServerKind) {
    for (count, renews) in [(1, true), (1, false), (3, true)] {
        let servers = masters(kind, count);
        let client = client(&servers).await;
        let lock = client.lock("r").ttl(Duration::from_secs(600)).renew(renews);
        let guard = lock.await.expect("the lock is free");
        let until_tracked = |what: &str| until(what, || servers.iter().all(is_tracked));
        until_tracked("its masters track it");
        for server in &servers {
            let mut conn = server.connect();
            conn.ok("CONFIG RESETSTAT");
            assert_eq!(conn.ok("CLIENT KILL TYPE pubsub"), 1);
        }
        until_tracked("they are asked again");
        for server in &servers {
            server.connect().ok("DLOCK.BREAK r");
        }
        assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
    }
}
