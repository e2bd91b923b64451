//! Time namespaces: the same boot, and another boot-time clock.

use std::process::Command;

use dlock_testkit::{Server, ServerKind, each_server, until};

/// Two weeks, in seconds.
const AHEAD: &str = "1209600";

/// The same server in a time namespace of its own, whose boot-time clock is ahead. None where none can be
/// made.
fn ahead(kind: &ServerKind) -> Option<ServerKind> {
    let unshare = ["/usr/bin/unshare", "--time", "--boottime", AHEAD];
    let made = Command::new(unshare[0]).args(&unshare[1..]).arg("true").output();
    if !made.is_ok_and(|output| output.status.success()) {
        eprintln!("!! skipped: no time namespace can be made here (as root it can)");
        return None;
    }
    let mut kind = kind.clone();
    kind.command.splice(0..0, unshare.map(str::to_string));
    Some(kind)
}

#[test]
fn a_restart_in_another_time_namespace_ends_no_lease_and_lengthens_none() {
    each_server(|kind| {
        let Some(ahead) = ahead(kind) else { return };
        for aof in [true, false] {
            let conf = if aof { "appendonly yes" } else { "appendonly no" };
            let mut server = Server::options(kind).conf(conf).conf("appendfsync always").start();
            let mut conn = server.connect();
            let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
            conn.ok("DLOCK.ACQUIRE delayed t 1 DELAY 600000");
            until("only its delay is left", || server.info("dlock_expiries") == "1");
            // Into it, within it, and out of it again.
            for kind in [&ahead, &ahead, kind] {
                if !aof {
                    server.connect().ok("SAVE");
                }
                server.kill9();
                server.restart_with(|options| options.on(kind));
                let mut conn = server.connect();
                assert_eq!(conn.ok("DLOCK.ACQUIRE k t 1"), fence, "{conf}");
                let left = conn.ok("DLOCK.PTTL k").int();
                assert!((500_000..=600_000).contains(&left), "{conf}: {left}");
                let delay = conn.ok("DLOCK.INSPECT delayed").field("delay").int();
                assert!((500_000..=600_000).contains(&delay), "{conf}: {delay}");
            }
        }
    });
}

#[test]
fn a_replica_in_another_time_namespace_counts_from_the_arrival() {
    each_server(|kind| {
        let Some(ahead) = ahead(kind) else { return };
        let (master, replica) = (Server::start(kind), Server::start(&ahead));
        let mut conn = master.connect();
        let first = conn.ok("DLOCK.ACQUIRE first t 600000").int();
        replica.replicate(&master);
        conn.ok("DLOCK.ACQUIRE second t 600000");
        replica.wait_in_sync(&master);
        master.kill9();
        let mut conn = replica.connect();
        assert_eq!(conn.ok("REPLICAOF NO ONE"), "OK");
        assert_eq!(conn.ok("DLOCK.ACQUIRE first t 1"), first);
        for key in ["first", "second"] {
            let left = conn.ok(&format!("DLOCK.PTTL {key}")).int();
            assert!((500_000..=600_000).contains(&left), "{key}: {left}");
        }
    });
}
