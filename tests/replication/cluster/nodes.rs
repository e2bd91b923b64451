//! A cluster of three masters.

use std::process::Command;

use dlock_testkit::{Conn, Server, ServerKind, until};

pub const EQUAL_SLOTS: [&str; 3] = ["0 5460", "5461 10922", "10923 16383"];

/// Starts a cluster with these slots for each node.
pub fn cluster(kind: &ServerKind, slots: [&str; 3]) -> [Server; 3] {
    cluster_with(kind, slots, &["cluster-node-timeout 5000"])
}

/// Starts a cluster with these slots and lines of configuration.
pub fn cluster_with(kind: &ServerKind, slots: [&str; 3], conf: &[&str]) -> [Server; 3] {
    let nodes = [(); 3].map(|()| Server::options(kind).conf("cluster-enabled yes").confs(conf).start());
    for (n, (node, slots)) in nodes.iter().zip(slots).enumerate() {
        let mut conn = node.connect();
        // Each node gets its own epoch, as `redis-cli --cluster create` does.
        conn.ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1));
        conn.ok(&format!("CLUSTER ADDSLOTSRANGE {slots}"));
        conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    }
    until("the cluster is up", || {
        nodes.iter().all(|node| {
            let info = node.connect().ok("CLUSTER INFO").text();
            info.contains("cluster_state:ok") && info.contains("cluster_known_nodes:3")
        })
    });
    nodes
}

pub fn node_id(conn: &mut Conn) -> String {
    conn.ok("CLUSTER MYID").text()
}

/// Begins the migration of a key's slot and returns the slot. Moves no key: the caller sends MIGRATE.
pub fn begin_migration(from: &mut Conn, to: &mut Conn, key: &str) -> i64 {
    let slot = from.ok(&format!("CLUSTER KEYSLOT {key}")).int();
    to.ok(&format!("CLUSTER SETSLOT {slot} IMPORTING {}", node_id(from)));
    from.ok(&format!("CLUSTER SETSLOT {slot} MIGRATING {}", node_id(to)));
    slot
}

/// Moves the `slots` lowest slots from one node to another with `redis-cli`.
pub fn reshard(from: &Server, to: &Server, slots: usize) {
    let [source, target] = [from, to].map(|node| node_id(&mut node.connect()));
    let mut cli = Command::new("redis-cli");
    cli.args(["--cluster", "reshard", &format!("127.0.0.1:{}", from.port()), "--cluster-yes"]);
    cli.args(["--cluster-from", &source, "--cluster-to", &target, "--cluster-slots", &slots.to_string()]);
    let output = cli.output().expect("redis-cli runs");
    let text =
        String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && !text.contains("[ERR]"), "{text}");
}
