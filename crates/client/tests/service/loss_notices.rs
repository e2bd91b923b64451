//! The client notices at once that a hold was broken, deleted or flushed, or has expired.

use super::*;

/// Returns whether the client has queried the hold since the last CONFIG RESETSTAT. The query makes the
/// server track the key, so that it pushes the next change of the key (CLIENT TRACKING).
fn is_tracked(server: &Server) -> bool {
    server.connect().ok("INFO commandstats").text().to_lowercase().contains("cmdstat_dlock.holds")
}

/// The lease lasts ten minutes, so only a push of the server can report the loss.
#[each_server]
async fn a_removed_hold_is_noticed_at_once_with_and_without_renewal(kind: &ServerKind) {
    for renews in [true, false] {
        for (count, removed_on) in [(1, 1), (3, 2)] {
            let (servers, client) = quorum(kind, count).await;
            let removals = ["DLOCK.BREAK r", "DEL r", "FLUSHALL", "PEXPIRE r 1", "RENAME r other"];
            for removal in removals {
                servers.iter().for_each(|server| assert_eq!(server.connect().ok("CONFIG RESETSTAT"), "OK"));
                let guard =
                    client.lock("r").ttl(LONG).renew(renews).acquire().await.expect("the lock is free");
                until("the masters track the hold", || servers.iter().all(is_tracked));
                // The EXTEND changes the key, which ends the tracking. The client sends HOLDS after the
                // EXTEND, to start the tracking again.
                guard.extend(LONG).await.expect("the lock is held");
                for server in &servers[..removed_on] {
                    server.connect().ok(removal);
                }
                let why = guard.lost().await;
                let Lost::TakenAway(report) = why else { panic!("{removal}: {why:?}") };
                let mut states = servers[..removed_on].iter().map(|server| state(&report, server));
                assert!(states.all(|state| *state == NodeState::NotHeld), "{removal}: {report}");
                servers.iter().for_each(|server| assert_eq!(server.connect().ok("FLUSHALL"), "OK"));
            }
        }
    }
}

/// The server pushes a change only once, so the client must repeat the query that follows the push.
#[each_server]
async fn a_loss_is_noticed_if_the_server_answers_late(kind: &ServerKind) {
    let (servers, client) = quorum(kind, 1).await;
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    until("the master tracks the hold", || is_tracked(&servers[0]));
    servers[0].connect().ok("DEL r");
    servers[0].pause();
    // Each inspection of the paused server lasts for the node timeout. After two of them, the query that
    // follows the push has failed.
    for _ in 0..2 {
        client.inspect("r").await;
    }
    servers[0].resume();
    // The next renewal is minutes away, so only the repeated query can show the loss.
    until("the client notices the loss", || matches!(guard.loss(), Some(Lost::TakenAway(_))));
}

/// The server's tracking ends with the connection, so the client must query the hold again after a reconnect.
#[each_server]
async fn a_loss_after_a_reconnect_is_noticed_at_once(kind: &ServerKind) {
    for (count, renews) in [(1, true), (1, false), (3, true)] {
        let (servers, client) = quorum(kind, count).await;
        let lock = client.lock("r").ttl(LONG).renew(renews);
        let guard = lock.await.expect("the lock is free");
        let until_tracked = |what: &str| until(what, || servers.iter().all(is_tracked));
        until_tracked("the masters track the hold");
        for server in &servers {
            let mut conn = server.connect();
            conn.ok("CONFIG RESETSTAT");
            // The connection that tracks the keys also subscribes to a channel, so its type is pubsub.
            assert_eq!(conn.ok("CLIENT KILL TYPE pubsub"), 1);
        }
        until_tracked("the client queries its masters again");
        for server in &servers {
            server.connect().ok("DLOCK.BREAK r");
        }
        assert!(matches!(guard.lost().await, Lost::TakenAway(_)));
    }
}
