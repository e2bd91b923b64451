//! Leases that pass from one time namespace to another: by a restart, by replication, or by RESTORE. Servers
//! in both namespaces see the same boot id of the kernel, but different boot-time clocks.

use std::process::Command;

use dlock_testkit::wall_clock::{HOUR, WallClock};
use dlock_testkit::{Conn, Server, ServerKind, aof, each_server, until};

/// Two weeks.
const AHEAD_SECONDS: &str = "1209600";

/// Returns the server in a time namespace with a boot-time clock that is ahead. `None` if this user may not
/// create time namespaces.
fn in_time_namespace(kind: &ServerKind) -> Option<ServerKind> {
    let unshare = ["/usr/bin/unshare", "--time", "--boottime", AHEAD_SECONDS];
    let created = Command::new(unshare[0]).args(&unshare[1..]).arg("true").output();
    if !created.is_ok_and(|output| output.status.success()) {
        eprintln!("!! skipped: this user may not create a time namespace (root may)");
        return None;
    }
    let mut kind = kind.clone();
    kind.command.splice(0..0, unshare.map(str::to_string));
    Some(kind)
}

/// Starts two servers. The first one has a boot-time clock that is ahead, and a wall clock that is an hour
/// behind. The second one has this machine's clocks, and an append only file.
fn two_clocks(kind: &ServerKind) -> Option<(WallClock, Server, Server)> {
    let (ahead, clock) = WallClock::of(&in_time_namespace(kind)?);
    clock.set_offset(-HOUR);
    let synced = Server::options(kind).synced().start();
    let other_clocks = Server::start(&ahead);
    Some((clock, other_clocks, synced))
}

/// Asserts that nearly all of 600,000 ms are left. `hold` is a key, or a key and a token.
#[track_caller]
fn assert_nearly_full_lease(conn: &mut Conn, hold: &str) {
    let left = conn.ok(&format!("DLOCK.PTTL {hold}")).int();
    assert!((500_000..=600_000).contains(&left), "{hold}: {left} ms left");
}

#[each_server]
fn a_restart_in_another_time_namespace_neither_ends_nor_lengthens_a_lease(kind: &ServerKind) {
    let Some(ahead) = in_time_namespace(kind) else { return };
    for aof in [true, false] {
        let conf = if aof { "appendonly yes" } else { "appendonly no" };
        let mut server = Server::options(kind).conf(conf).conf("appendfsync always").start();
        let mut conn = server.connect();
        let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
        conn.ok("DLOCK.ACQUIRE delayed t 1 DELAY 600000");
        until("only the delay is left", || server.number("dlock_expiries") == 1);
        // Restarts into the namespace, within it, and out of it.
        for kind in [&ahead, &ahead, kind] {
            if !aof {
                server.connect().ok("SAVE");
            }
            server.kill9();
            server.restart_with(|options| options.on(kind));
            let mut conn = server.connect();
            // An ACQUIRE by the holder does not shorten the lease.
            assert_eq!(conn.ok("DLOCK.ACQUIRE k t 1"), fence, "{conf}");
            assert_nearly_full_lease(&mut conn, "k");
            let delay = conn.ok("DLOCK.INSPECT delayed").field("delay").int();
            assert!((500_000..=600_000).contains(&delay), "{conf}: {delay}");
        }
    }
}

#[each_server]
fn a_replica_in_another_time_namespace_starts_leases_at_their_arrival(kind: &ServerKind) {
    let Some(ahead) = in_time_namespace(kind) else { return };
    let (master, replica) = (Server::start(kind), Server::start(&ahead));
    let mut conn = master.connect();
    let first = conn.ok("DLOCK.ACQUIRE first t 600000").int();
    replica.replicate(&master);
    conn.ok("DLOCK.ACQUIRE second t 600000");
    replica.wait_in_sync(&master);
    master.kill9();
    replica.promote();
    let mut conn = replica.connect();
    assert_eq!(conn.ok("DLOCK.ACQUIRE first t 1"), first);
    for key in ["first", "second"] {
        assert_nearly_full_lease(&mut conn, key);
    }
}

/// The replica's file used to contain times of the master's clock, which is an hour behind. When the promoted
/// replica restarted, it took the leases for expired and granted the locks to other clients.
#[each_server]
fn leases_from_a_master_with_another_clock_survive_promotion_and_restart(kind: &ServerKind) {
    let Some((_clock, master, mut replica)) = two_clocks(kind) else { return };
    replica.replicate(&master);
    replica.wait_rewritten();
    let mut conn = master.connect();
    let commands = [
        "DLOCK.ACQUIRE one t 600000",
        "DLOCK.ACQUIRE two t 600000",
        "DLOCK.ACQUIRE labelled t 600000 LABEL host",
        "DLOCK.ACQUIRE shared t 600000 SHARED",
        "DLOCK.ACQUIRE shared u 600000 SHARED",
        "DLOCK.ACQUIRE shared gone 600000 SHARED",
        "DLOCK.ACQUIRE permits t 600000 PERMITS 2",
        "DLOCK.ACQUIRE permits u 600000 PERMITS 2",
        "DLOCK.RELEASE shared gone",
    ];
    let answers = conn.say_together(&commands);
    replica.wait_in_sync(&master);
    master.kill9();
    replica.promote();
    let mut conn = replica.kill_and_restart();
    for (command, fence) in commands.iter().zip(answers).filter(|(command, _)| !command.contains(" gone")) {
        let words: Vec<&str> = command.split(' ').collect();
        assert_nearly_full_lease(&mut conn, &words[1..3].join(" "));
        assert_eq!(conn.ok(command), fence, "{command}");
    }
    assert_eq!(conn.ok("DLOCK.HOLDS shared gone"), 0);
}

/// The test moves locks by DUMP and RESTORE, as MIGRATE does between machines.
#[each_server]
fn a_lease_restored_from_another_clock_survives_a_restart(kind: &ServerKind) {
    let Some((_clock, source, mut target)) = two_clocks(kind) else { return };
    let (mut from, mut to) = (source.connect(), target.connect());
    let locks = [("one", ""), ("shared", "SHARED"), ("permits", "PERMITS 2")];
    let fences = locks.map(|(key, mode)| {
        let fence = from.ok(&format!("DLOCK.ACQUIRE {key} t 600000 {mode}")).int();
        let dump = from.ok(&format!("DUMP {key}"));
        to.ok("SELECT 3");
        assert_eq!(to.call(&[b"RESTORE", key.as_bytes(), b"0", dump.bytes()]), "OK");
        fence
    });
    let written = || aof::commands(target.dir()).iter().filter(|words| words[0] == b"DLOCK._SET").count();
    until("the file has a DLOCK._SET for each restored lock", || written() == locks.len());
    target.kill_and_restart();
    let mut to = target.connect();
    to.ok("SELECT 3");
    for ((key, mode), fence) in locks.into_iter().zip(fences) {
        assert_nearly_full_lease(&mut to, &format!("{key} t"));
        assert_eq!(to.ok(&format!("DLOCK.ACQUIRE {key} t 1 {mode}")), fence);
    }
}
