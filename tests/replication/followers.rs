//! An effect is an entry of a server's log (its replication stream and append only file) with the changed
//! state of a lock. Outside a cluster, the server writes effects only while it has a follower: a replica, the
//! replication backlog or the append only file. A new follower must miss no change. The first grant that it
//! reads must be an effect. A later grant may be logged as an ACQUIRE, which contains neither fence nor time:
//! the follower derives both from the effects and ACQUIREs before it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use dlock_testkit::workers::SetAtTheEnd;
use dlock_testkit::{Server, ServerKind, Stream, Value, aof, each_server, locks, until};

fn server_without_followers(kind: &ServerKind) -> Server {
    let server = Server::start(kind);
    until("the server has no follower", || server.number("dlock_followed") == 0);
    server
}

/// Runs `act` while connections acquire and release without a pause. Every key is held at the end.
fn under_load<R>(server: &Server, act: impl FnOnce() -> R) -> R {
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let _end = SetAtTheEnd(&stop);
        for n in 0..3 {
            let (mut conn, stop) = (server.connect(), &stop);
            scope.spawn(move || {
                let mut round = 0;
                while !stop.load(Ordering::Relaxed) {
                    for key in 0..8 {
                        conn.ok(&format!("DLOCK.RELEASE {n}:{key} t{round}"));
                        conn.ok(&format!("DLOCK.ACQUIRE {n}:{key} t{} 600000", round + 1));
                    }
                    round += 1;
                }
            });
        }
        act()
    })
}

/// Asserts that a new follower can apply this log: its first grant is an effect, and it has no command that
/// followers do not know.
#[track_caller]
fn assert_readable(log: &[Vec<Vec<u8>>]) {
    let mut words = log.iter().map(|command| String::from_utf8_lossy(&command[0]).to_uppercase());
    let first = words.find(|word| !["SELECT", "DLOCK.RELEASE"].contains(&word.as_str()));
    assert_eq!(first.as_deref(), Some("DLOCK._SET"));
    let known = ["SELECT", "DLOCK._SET", "DLOCK.ACQUIRE", "DLOCK.RELEASE"];
    words.for_each(|word| assert!(known.contains(&word.as_str()), "{word}"));
}

fn digests(server: &Server) -> Vec<String> {
    let mut conn = server.connect();
    let keys: Vec<String> = (0..3).flat_map(|n| (0..8).map(move |key| format!("{n}:{key}"))).collect();
    keys.iter().map(|key| conn.ok(&format!("DEBUG DIGEST-VALUE {key}")).items()[0].text()).collect()
}

#[each_server]
fn a_replica_that_attaches_under_load_misses_no_change(kind: &ServerKind) {
    for diskless in ["yes", "no"] {
        let master = server_without_followers(kind);
        master.connect().ok(&format!("CONFIG SET repl-diskless-sync {diskless}"));
        // Lengthens the time between the replica's request and the snapshot. The replica gets no commands in
        // that time.
        master.connect().ok("CONFIG SET repl-diskless-sync-delay 1");
        let replica = Server::start(kind);
        under_load(&master, || replica.replicate(&master));
        replica.wait_in_sync(&master);
        assert_eq!(master.number("dlock_followed"), 1);
        let on_master = digests(&master);
        assert_eq!(digests(&replica), on_master);
        let is_held = |digest: &String| digest.chars().any(|c| c != '0');
        assert!(on_master.iter().all(is_held), "every lock is held: {on_master:?}");
        assert_eq!(master.number("dlock_fence"), replica.number("dlock_fence"));
    }
}

#[each_server]
fn a_stream_started_under_load_begins_with_an_effect(kind: &ServerKind) {
    let master = server_without_followers(kind);
    let sent = under_load(&master, || {
        let mut stream = Stream::of(&master);
        (0..500).map(|_| stream.read()).collect::<Vec<_>>()
    });
    assert_readable(&sent);
}

#[each_server]
fn an_append_only_file_switched_on_under_load_misses_no_change(kind: &ServerKind) {
    let mut server = server_without_followers(kind);
    under_load(&server, || {
        server.connect().ok("CONFIG SET appendfsync always");
        server.connect().ok("CONFIG SET appendonly yes");
        until("the file is on", || server.number("aof_enabled") == 1);
        server.wait_rewritten();
    });
    let before = digests(&server);
    assert_readable(&aof::commands(server.dir()));
    server.kill9();
    server.restart_with(|options| options.conf("appendonly yes"));
    assert_eq!(digests(&server), before);
}

/// The replica continues from its position in the log, so it must read the entries that the master wrote
/// during the disconnect.
#[each_server]
fn a_reconnected_replica_misses_no_change(kind: &ServerKind) {
    let (master, replica) = (Server::options(kind).conf("hz 100").start(), Server::start(kind));
    replica.replicate(&master);
    let mut conn = master.connect();
    conn.ok("DLOCK.ACQUIRE early t 600000");
    replica.wait_in_sync(&master);
    replica.pause();
    conn.ok("CLIENT KILL TYPE replica");
    until("the replica is disconnected", || master.number("connected_slaves") == 0);
    // In this tick, the module looks for followers. The replication backlog still counts as a follower.
    master.wait_for_tick();
    conn.ok("DLOCK.ACQUIRE late t 600000");
    conn.ok("DLOCK.RELEASE early t");
    replica.resume();
    replica.wait_in_sync(&master);
    assert_eq!(master.number("sync_partial_ok"), 1);
    // The replica could apply every effect.
    assert_eq!((locks(&replica), replica.number("dlock_effects_skipped")), (locks(&master), 0));
}

#[each_server]
fn a_replica_of_a_promoted_replica_misses_no_change(kind: &ServerKind) {
    let (master, middle) = Server::with_replica(kind);
    let last = Server::start(kind);
    last.replicate(&middle);
    drop(master);
    middle.promote();
    let fence = middle.connect().ok("DLOCK.ACQUIRE k a 60000").int();
    last.wait_in_sync(&middle);
    assert_eq!(last.connect().ok("DLOCK.INSPECT k").field("fence"), &fence);
}

/// A replica ends no hold by itself: a waiter would wait for ever, and an EPHEMERAL hold would outlast its
/// connection.
#[each_server]
fn a_writable_replica_refuses_waits_and_ephemeral_holds(kind: &ServerKind) {
    let (master, replica) = (Server::start(kind), Server::options(kind).conf("replica-read-only no").start());
    replica.replicate(&master);
    let mut conn = replica.connect();
    assert!(conn.ok("DLOCK.ACQUIRE k a 60000").int() > 0);
    for option in ["BLOCK 0", "QUEUE 1000", "EPHEMERAL"] {
        let command = format!("DLOCK.ACQUIRE k b 60000 {option}");
        assert!(conn.say(&command).error().starts_with("ERR this server is a replica"), "{option}");
    }
    assert_eq!(conn.ok("DLOCK.ACQUIRE k b 60000"), Value::Nil);
    conn.ok("REPLICAOF NO ONE");
    assert!(conn.ok("DLOCK.ACQUIRE l b 60000 EPHEMERAL").int() > 0);
}

#[each_server]
fn a_change_without_followers_counts_for_save_points(kind: &ServerKind) {
    let server = server_without_followers(kind);
    let before = server.number("rdb_changes_since_last_save");
    server.connect().ok("DLOCK.ACQUIRE k a 60000");
    assert!(server.number("rdb_changes_since_last_save") > before);
}
