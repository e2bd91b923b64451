//! `make run-quorum`, `make run-cluster` and `make run-sentinel` start the servers that they name, and stop
//! them.

use std::net::TcpStream;
use std::process::{Child, Command};

use dlock_testkit::{Conn, Folder, Port, ServerKind, each_server, until};

use crate::sessions::{COMMON, built_project, logged, run_printed_command, script, start};

const SCRIPTS: [(&str, &str); 5] = [
    ("common.sh", COMMON),
    ("run-several.sh", include_str!("../../scripts/run-several.sh")),
    ("run-quorum.sh", include_str!("../../scripts/run-quorum.sh")),
    ("run-cluster.sh", include_str!("../../scripts/run-cluster.sh")),
    ("run-sentinel.sh", include_str!("../../scripts/run-sentinel.sh")),
];

/// A script that runs several servers in the foreground.
struct Running {
    shell: Child,
    folder: Folder,
    ports: Vec<Port>,
}

impl Running {
    /// Starts a script with this number of servers, and waits until it has printed what to try.
    fn start(kind: &ServerKind, name: &str, servers: usize) -> Running {
        let (folder, ports) = (built_project(), (0..servers).map(|_| Port::claim()).collect::<Vec<_>>());
        let numbers: Vec<String> = ports.iter().map(|port| port.number().to_string()).collect();
        let mut command = script(&folder, kind, name, &SCRIPTS);
        command.env("PORTS", numbers.join(" "));
        let shell = start(&mut command, &folder, || logged(&folder).contains("Ctrl-C stops all."));
        Running { shell, folder, ports }
    }

    fn run_printed_command(&self, part: &str) -> String {
        run_printed_command(&self.folder, part)
    }

    fn is_fence(text: &str) -> bool {
        text.parse::<u64>().is_ok_and(|fence| fence > 1_000_000_000_000_000)
    }

    /// Ends the script as Ctrl-C does. It ends after its servers.
    fn stop(&mut self) {
        let _ = Command::new("kill").arg(self.shell.id().to_string()).status();
        let _ = self.shell.wait();
    }

    fn assert_stops_its_servers(mut self) {
        self.stop();
        for port in &self.ports {
            assert!(TcpStream::connect(("127.0.0.1", port.number())).is_err(), "a server still answers");
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop();
    }
}

#[each_server]
fn make_run_quorum_runs_five_independent_servers(kind: &ServerKind) {
    let run = Running::start(kind, "run-quorum.sh", 5);
    for port in &run.ports {
        assert!(logged(&run.folder).contains(&format!("redis://127.0.0.1:{}", port.number())));
        let mut conn = Conn::open(port.number());
        assert!(conn.ok("DLOCK.ACQUIRE nightly a 60000").int() > 0, "each grants the lock");
    }
    run.assert_stops_its_servers();
}

#[each_server]
fn make_run_cluster_runs_three_masters_that_redirect_to_each_other(kind: &ServerKind) {
    let run = Running::start(kind, "run-cluster.sh", 3);
    let fence = run.run_printed_command("DLOCK.ACQUIRE");
    assert!(Running::is_fence(&fence), "{fence}");
    let shown = run.run_printed_command("DLOCK.INSPECT");
    assert!(shown.contains(&fence), "{shown}");
    let mut redirected = 0;
    for port in &run.ports {
        let reply = Conn::open(port.number()).say("DLOCK.HOLDS nightly a");
        redirected += usize::from(format!("{reply:?}").contains("MOVED"));
    }
    assert_eq!(redirected, 2, "one of the three masters has the slot");
    run.assert_stops_its_servers();
}

#[each_server]
fn make_run_sentinel_runs_a_replica_and_sentinels_that_know_the_master(kind: &ServerKind) {
    let run = Running::start(kind, "run-sentinel.sh", 5);
    let fence = run.run_printed_command("DLOCK.ACQUIRE");
    assert!(Running::is_fence(&fence), "{fence}");
    until("the replica has the hold", || run.run_printed_command("DLOCK.INSPECT").contains(&fence));
    let master = run.run_printed_command("GET-MASTER-ADDR-BY-NAME");
    assert_eq!(master, format!("127.0.0.1\n{}", run.ports[0].number()));
    run.assert_stops_its_servers();
}
