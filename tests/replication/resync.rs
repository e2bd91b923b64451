//! Replicas that lose their link under load and resynchronise partially or fully.

use std::sync::atomic::Ordering;

use crate::load::{Load, assert_equal};
use crate::rounds;
use dlock_testkit::{Random, Server, ServerKind, each_server, until};

/// Runs clients that wait, disconnect and bind holds to their connections, while `cut` breaks the replica's
/// link repeatedly. `counter` is the INFO field that counts the resyncs.
fn break_link_under_load(kind: &ServerKind, conf: &str, cut: impl Fn(&Server), counter: &str) {
    let (master, replica) = (Server::options(kind).conf(conf).start(), Server::start(kind));
    replica.replicate(&master);
    let mut random = Random::fresh();
    let mut load = Load::new(&mut random);
    let count = || master.number(counter);
    load.during(
        || master.port(),
        |granted| {
            for _ in 0..2 * rounds() {
                let (before, grants) = (count(), granted.load(Ordering::Relaxed));
                cut(&master);
                until("the replica has resynchronised", || count() > before);
                replica.wait_in_sync(&master);
                until("20 more locks are granted", || granted.load(Ordering::Relaxed) > grants + 20);
            }
        },
    );
    load.drain(&master);
    load.assert_kept(&master);
    assert_equal(&master, &replica);
}

#[each_server]
fn a_replica_equals_its_master_after_a_partial_resync_under_load(kind: &ServerKind) {
    let cut = |master: &Server| assert!(master.connect().ok("CLIENT KILL TYPE replica").int() > 0);
    break_link_under_load(kind, "repl-backlog-size 10mb", cut, "sync_partial_ok");
}

#[each_server]
fn a_replica_equals_its_master_after_a_full_resync_under_load(kind: &ServerKind) {
    for conf in ["repl-diskless-sync yes", "repl-diskless-sync no"] {
        let cut = |master: &Server| {
            let mut conn = master.connect();
            // With another replication id, the master refuses a partial resync.
            assert_eq!(conn.ok("DEBUG CHANGE-REPL-ID"), "OK");
            assert!(conn.ok("CLIENT KILL TYPE replica").int() > 0);
        };
        break_link_under_load(kind, conf, cut, "sync_full");
    }
}
