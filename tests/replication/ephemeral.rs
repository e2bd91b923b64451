//! EPHEMERAL holds over a failover and a failback.

use dlock_testkit::{Server, ServerKind, Value, each_server, until};

/// Returns whether the hold is ephemeral and its connection; `None` without a hold.
fn shown(server: &Server, key: &str) -> Option<(i64, i64)> {
    match server.connect().ok(&format!("DLOCK.INSPECT {key}")) {
        Value::Nil => None,
        lock => {
            let hold = &lock.field("holders").items()[0];
            Some((hold.field("ephemeral").int(), hold.field("client").int()))
        }
    }
}

/// The other master kept the hold alive meanwhile, so the closed connection no longer matters.
#[each_server]
fn a_hold_of_the_other_master_survives_the_failback(kind: &ServerKind) {
    let (first, second) = Server::with_replica(kind);
    let take = |key: &str| {
        let mut conn = first.connect();
        assert!(conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000 EPHEMERAL LABEL host")).int() > 0);
        conn
    };
    let [early, late] = ["early", "late"].map(take);
    assert!(shown(&first, "early").is_some_and(|(_, client)| client > 0));
    second.wait_in_sync(&first);
    first.fail_over(&second);
    first.wait_in_sync(&second);
    assert_eq!(
        [shown(&first, "early"), shown(&second, "early")],
        [Some((1, 0)); 2],
        "no server knows the connection"
    );
    drop(early);
    ends_with_its_connection(&second);
    second.fail_over(&first);
    second.wait_in_sync(&first);
    drop(late);
    // A hold acquired here now ends with its connection, after the other pending work.
    ends_with_its_connection(&first);
    for key in ["early", "late"] {
        assert_eq!([shown(&first, key), shown(&second, key)], [Some((1, 0)); 2], "{key}");
        assert_eq!(first.connect().ok(&format!("DLOCK.EXTEND {key} t 600000")), 1);
    }
    second.wait_in_sync(&first);
    assert_eq!(dlock_testkit::locks(&first), dlock_testkit::locks(&second));
    assert_eq!(first.number("dlock_disconnects"), 1);
}

fn ends_with_its_connection(master: &Server) {
    let mut conn = master.connect();
    assert!(conn.ok("DLOCK.ACQUIRE fresh t 600000 EPHEMERAL").int() > 0);
    drop(conn);
    until("the fresh hold has ended", || master.connect().ok("EXISTS fresh") == 0);
}

/// Pending work of the old master belongs to the new one: here the end of a hold whose connection closed
/// during the failover.
#[each_server]
fn a_demoted_master_drops_its_pending_work(kind: &ServerKind) {
    let (first, second) = Server::with_replica(kind);
    let mut conn = first.connect();
    let mut holder = first.connect();
    assert!(holder.ok("DLOCK.ACQUIRE closing t 600000 EPHEMERAL").int() > 0);
    second.wait_in_sync(&first);
    // The master waits for a silent replica and writes nothing meanwhile.
    second.pause();
    conn.ok("DLOCK.ACQUIRE other t 600000");
    conn.ok("FAILOVER");
    let id = holder.client_id();
    conn.ok(&format!("CLIENT KILL ID {id}"));
    until("the holder is closed", || holder.closed());
    assert_eq!(first.info("master_failover_state"), "waiting-for-sync");
    second.resume();
    first.wait_failed_over(&second);
    first.wait_in_sync(&second);
    second.fail_over(&first);
    second.wait_in_sync(&first);
    ends_with_its_connection(&first);
    assert_eq!(shown(&first, "closing"), Some((1, 0)));
}
