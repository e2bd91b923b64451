//! EPHEMERAL holds, which end with their connection, over a failover and a failback.

use dlock_testkit::{Server, ServerKind, Value, each_server, until};

/// Returns the fields `ephemeral` and `client` of the first hold. `None` if the lock is free.
fn hold_fields(server: &Server, key: &str) -> Option<(i64, i64)> {
    match server.connect().ok(&format!("DLOCK.INSPECT {key}")) {
        Value::Nil => None,
        lock => {
            let hold = &lock.field("holders").items()[0];
            Some((hold.field("ephemeral").int(), hold.field("client").int()))
        }
    }
}

/// Neither the new master nor, after the failback, the old one knows the connection of the hold.
#[each_server]
fn an_ephemeral_hold_outlives_its_connection_after_a_failover_and_a_failback(kind: &ServerKind) {
    let (first, second) = Server::with_replica(kind);
    let acquire = |key: &str| {
        let mut conn = first.connect();
        assert!(conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000 EPHEMERAL LABEL host")).int() > 0);
        conn
    };
    let [early, late] = ["early", "late"].map(acquire);
    assert!(hold_fields(&first, "early").is_some_and(|(_, client)| client > 0));
    second.wait_in_sync(&first);
    first.fail_over(&second);
    first.wait_in_sync(&second);
    assert_eq!(
        [hold_fields(&first, "early"), hold_fields(&second, "early")],
        [Some((1, 0)); 2],
        "no server knows the connection"
    );
    drop(early);
    assert_new_hold_ends_with_its_connection(&second);
    second.fail_over(&first);
    second.wait_in_sync(&first);
    drop(late);
    assert_new_hold_ends_with_its_connection(&first);
    for key in ["early", "late"] {
        assert_eq!([hold_fields(&first, key), hold_fields(&second, key)], [Some((1, 0)); 2], "{key}");
        assert_eq!(first.connect().ok(&format!("DLOCK.EXTEND {key} t 600000")), 1);
    }
    second.wait_in_sync(&first);
    assert_eq!(dlock_testkit::locks(&first), dlock_testkit::locks(&second));
    assert_eq!(first.number("dlock_disconnects"), 1, "only the fresh hold ended with its connection");
}

/// The background job handles closed connections in their order: it ends the new hold after it has handled
/// the connections that closed earlier.
fn assert_new_hold_ends_with_its_connection(master: &Server) {
    let mut conn = master.connect();
    assert!(conn.ok("DLOCK.ACQUIRE fresh t 600000 EPHEMERAL").int() > 0);
    drop(conn);
    until("the fresh hold has ended", || master.connect().ok("EXISTS fresh") == 0);
}

/// A connection closes during the failover. The old master must not end the hold of this connection later,
/// when it is master again.
#[each_server]
fn a_demoted_master_does_not_end_an_ephemeral_hold_when_it_is_master_again(kind: &ServerKind) {
    let (first, second) = Server::with_replica(kind);
    let mut conn = first.connect();
    let mut holder = first.connect();
    assert!(holder.ok("DLOCK.ACQUIRE closing t 600000 EPHEMERAL").int() > 0);
    second.wait_in_sync(&first);
    second.pause();
    // The failover waits until the paused replica has this grant. Meanwhile the module must not
    // write, so the master does not end the hold when its connection closes.
    conn.ok("DLOCK.ACQUIRE other t 600000");
    conn.ok("FAILOVER");
    let id = holder.client_id();
    conn.ok(&format!("CLIENT KILL ID {id}"));
    until("the connection of the holder closes", || holder.closed());
    assert_eq!(first.info("master_failover_state"), "waiting-for-sync");
    second.resume();
    first.wait_failed_over(&second);
    first.wait_in_sync(&second);
    second.fail_over(&first);
    second.wait_in_sync(&first);
    assert_new_hold_ends_with_its_connection(&first);
    assert_eq!(hold_fields(&first, "closing"), Some((1, 0)));
}
