//! The readers of a master's log are its replicas, and a server that loads its append only file. Wherever a
//! reader starts in the log, it ends with the holds of the master, whatever it held before.
//!
//! The log has effects (`DLOCK._SET` with the new state of a lock), and ACQUIREs logged verbatim. For such an
//! ACQUIRE, a reader derives the hold from the time and the fence in the last effect. An ACQUIRE is logged
//! verbatim only in the same ms as the last effect, so the tests freeze the clock of the server that logs.
//! After each snapshot by a child process, the next grant is logged as an effect, because new readers start
//! at that snapshot.

use super::{grant, grant_both, skipped, with_frozen_clock, words};
use dlock_testkit::{Server, ServerKind, Stream, aof, each_server, locks, locks_without_fence, until};

#[each_server(shimmed)]
fn replicas_and_the_append_only_file_equal_the_master(kind: &ServerKind) {
    let master = with_frozen_clock(kind).synced().start();
    // The replicas' clocks are not frozen: the times of their holds must come from the log.
    let replica = Server::options(kind).conf("appendonly yes").start();
    let sub_replica = Server::start(kind);
    replica.replicate(&master);
    sub_replica.replicate(&replica);
    let mut conn = master.connect();
    for n in 0..40 {
        conn.ok(&format!("SELECT {}", n % 3));
        grant(&mut conn, &format!("k{n}"));
    }
    conn.ok("SELECT 1");
    (0..40).step_by(5).for_each(|n| drop(conn.ok(&format!("DLOCK.RELEASE k{n} t"))));
    let log = words(&aof::commands(master.dir()));
    assert!(log.iter().filter(|word| word.starts_with("DLOCK.ACQUIRE")).count() > 30, "{log:?}");
    assert!(log.iter().filter(|word| word.starts_with("DLOCK.RELEASE")).count() > 1, "{log:?}");
    replica.wait_in_sync(&master);
    sub_replica.wait_in_sync(&replica);
    let held = locks(&master);
    assert_eq!((locks(&replica), locks(&sub_replica)), (held.clone(), held.clone()));
    for server in [&master, &replica] {
        server.wait_rewritten();
        server.connect().ok("DEBUG LOADAOF");
        assert_eq!((locks(server), skipped(server)), (held.clone(), 0));
    }
}

#[each_server(shimmed)]
fn the_first_grant_after_a_rewrite_is_an_effect(kind: &ServerKind) {
    for preamble in ["yes", "no"] {
        let options = with_frozen_clock(kind).synced();
        let mut server = options.conf(&format!("aof-use-rdb-preamble {preamble}")).start();
        let mut conn = server.connect();
        grant_both(&mut conn, ["a", "b"]);
        conn.ok("BGREWRITEAOF");
        server.wait_rewritten();
        grant_both(&mut conn, ["c", "d"]);
        conn.ok("DLOCK.RELEASE a t");
        let before = locks_without_fence(&server);
        let log = words(&aof::commands(server.dir()));
        let effect = log.iter().position(|word| word == "effect c").expect("the effect is logged");
        assert_eq!(log[effect..], ["effect c", "DLOCK.ACQUIRE d t 600000", "DLOCK.RELEASE a t"]);
        server.kill_and_restart();
        assert_eq!(locks_without_fence(&server), before, "preamble {preamble}");
        assert_eq!(skipped(&server), 0);
    }
}

/// The replica's snapshot contains the time of the last effect that the replica has read, and the greatest
/// fence. So the replica, and its own replica, can continue with a verbatim ACQUIRE.
#[each_server(shimmed)]
fn a_restarted_replica_and_its_replica_continue_to_read_the_log(kind: &ServerKind) {
    let master = with_frozen_clock(kind).start();
    let mut replica = Server::options(kind).conf("save 3600 1").start();
    replica.replicate(&master);
    let mut conn = master.connect();
    grant_both(&mut conn, ["a", "b"]);
    replica.wait_in_sync(&master);
    replica.connect().ok("SAVE");
    replica.kill9();
    let before = master.number("sync_partial_ok");
    // No replica receives this command yet.
    grant(&mut conn, "c");
    let port = master.port();
    replica.restart_with(|options| options.conf(&format!("replicaof 127.0.0.1 {port}")));
    replica.wait_in_sync(&master);
    assert_eq!(master.number("sync_partial_ok"), before + 1, "the replica continues where it was");
    let sub_replica = Server::start(kind);
    sub_replica.replicate(&replica);
    grant(&mut conn, "d");
    replica.wait_in_sync(&master);
    sub_replica.wait_in_sync(&replica);
    for reader in [&replica, &sub_replica] {
        assert_eq!((locks_without_fence(reader), skipped(reader)), (locks_without_fence(&master), 0));
    }
}

#[each_server(shimmed)]
fn a_promoted_replica_begins_with_an_effect_that_its_old_master_reads(kind: &ServerKind) {
    let (old, new) = (Server::start(kind), with_frozen_clock(kind).start());
    new.replicate(&old);
    assert!(grant(&mut old.connect(), "a") < grant(&mut old.connect(), "b"));
    new.wait_in_sync(&old);
    let mut conn = new.connect();
    new.promote();
    let mut stream = Stream::of(&new);
    old.replicate(&new);
    grant_both(&mut conn, ["c", "d"]);
    assert_eq!(words(&stream.drain()), ["effect c", "DLOCK.ACQUIRE d t 600000"]);
    old.wait_in_sync(&new);
    // Compares c and d only. The clock of `new` stopped before the grants of a and b, so `new` stores earlier
    // times for these two than `old`.
    let of_new = |server: &Server| -> Vec<String> {
        let is_new = |line: &String| line.contains("\"c\"") || line.contains("\"d\"");
        locks_without_fence(server).into_iter().filter(is_new).collect()
    };
    assert_eq!((of_new(&old), skipped(&old)), (of_new(&new), 0));
    assert_eq!(of_new(&new).len(), 2);
}

/// The replica is writable, and its clients have acquired locks. The master then grants the same locks to its
/// own clients.
#[each_server(shimmed)]
fn a_replica_ends_with_the_locks_of_its_master_whatever_it_held_before(kind: &ServerKind) {
    let master = with_frozen_clock(kind).start();
    let replica = Server::options(kind).conf("replica-read-only no").conf("appendonly yes").start();
    replica.replicate(&master);
    let (mut conn, mut replica_conn) = (master.connect(), replica.connect());
    grant(&mut conn, "a");
    replica.wait_in_sync(&master);
    for key in ["b", "c"] {
        assert!(replica_conn.ok(&format!("DLOCK.ACQUIRE {key} stranger 600000 DEPTH 2 LABEL x")).int() > 0);
    }
    grant_both(&mut conn, ["b", "c"]);
    conn.ok("DLOCK.RELEASE c t");
    replica.wait_in_sync(&master);
    assert_eq!(locks_without_fence(&replica), locks_without_fence(&master));
    // The replica's own file, which also has the acquisitions of the replica's clients, gives the same locks.
    replica.wait_rewritten();
    replica_conn.ok("DEBUG LOADAOF");
    assert_eq!((locks_without_fence(&replica), skipped(&replica)), (locks_without_fence(&master), 0));
}

/// The link breaks after an effect. Then a verbatim ACQUIRE arrives, which builds on that effect.
#[each_server(shimmed)]
fn a_briefly_disconnected_replica_continues_to_read_the_log(kind: &ServerKind) {
    let (master, replica) = (with_frozen_clock(kind).start(), Server::start(kind));
    replica.replicate(&master);
    let mut conn = master.connect();
    grant(&mut conn, "a");
    assert_eq!(conn.ok("WAIT 1 0"), 1);
    let before = master.number("sync_partial_ok");
    assert_eq!(conn.ok("CLIENT KILL TYPE replica"), 1);
    grant_both(&mut conn, ["b", "c"]);
    until("the replica has reconnected", || master.number("sync_partial_ok") > before);
    conn.ok("DLOCK.RELEASE b t");
    assert_eq!(conn.ok("WAIT 1 0"), 1);
    assert_eq!((locks(&replica), skipped(&replica)), (locks(&master), 0));
}

/// SAVE writes a snapshot without a child process, so the grant after it is still logged verbatim. The old
/// master restarts from that snapshot, as a replica, and reads this grant from the new master.
#[each_server(shimmed)]
fn an_old_master_reads_on_from_its_snapshot_as_a_replica(kind: &ServerKind) {
    let (mut old, new) = (with_frozen_clock(kind).conf("save 3600 1000").start(), Server::start(kind));
    new.replicate(&old);
    let mut conn = old.connect();
    grant_both(&mut conn, ["a", "b"]);
    // Joins as a replica, with a snapshot by a child process, so the grant of c is logged as an effect.
    let mut stream = Stream::of(&old);
    grant(&mut conn, "c");
    until("no child makes a snapshot", || old.number("rdb_bgsave_in_progress") == 0);
    conn.ok("SAVE");
    grant(&mut conn, "d");
    assert_eq!(words(&stream.drain()), ["effect c", "DLOCK.ACQUIRE d t 600000"]);
    new.wait_in_sync(&old);
    let before = locks_without_fence(&old);
    old.kill9();
    new.promote();
    let port = new.port();
    old.restart_with(|options| options.conf(&format!("replicaof 127.0.0.1 {port}")));
    old.wait_in_sync(&new);
    assert_eq!(new.number("sync_partial_ok"), 1, "the old master continues where its snapshot ends");
    assert_eq!((locks_without_fence(&old), skipped(&old)), (before.clone(), 0));
    assert_eq!(locks_without_fence(&new), before);
}

/// For c, the master's log has a verbatim ACQUIRE, but the replica's own file has an effect.
#[each_server(shimmed)]
fn a_replica_continues_its_masters_log_after_loading_its_file(kind: &ServerKind) {
    let (master, replica) =
        (with_frozen_clock(kind).start(), Server::options(kind).conf("appendonly yes").start());
    replica.replicate(&master);
    let (mut conn, mut replica_conn) = (master.connect(), replica.connect());
    grant_both(&mut conn, ["a", "b"]);
    replica.wait_in_sync(&master);
    replica.wait_rewritten();
    // Moves a and b into the base of the file, so that c is the first command after it.
    replica_conn.ok("BGREWRITEAOF");
    replica.wait_rewritten();
    grant(&mut conn, "c");
    replica.wait_in_sync(&master);
    assert_eq!(words(&aof::commands(replica.dir())), ["effect c"]);
    replica_conn.ok("DEBUG LOADAOF");
    grant(&mut conn, "d");
    replica.wait_in_sync(&master);
    assert_eq!((locks(&replica), skipped(&replica)), (locks(&master), 0));
    replica_conn.ok("DEBUG RELOAD");
    grant(&mut conn, "e");
    replica.wait_in_sync(&master);
    assert_eq!((locks(&replica), skipped(&replica)), (locks(&master), 0));
}
