//! A cluster: mostly of three masters, with replicas if a test adds them.

use std::borrow::Borrow;
use std::process::Command;

use crate::conn::Conn;
use crate::kinds::ServerKind;
use crate::server::Server;
use crate::wait::until;

pub const EQUAL_SLOTS: [&str; 3] = ["0 5460", "5461 10922", "10923 16383"];

/// Starts a cluster with these slots for each node.
pub fn cluster(kind: &ServerKind, slots: [&str; 3]) -> [Server; 3] {
    cluster_with(kind, slots, &["cluster-node-timeout 5000"])
}

/// Starts a cluster with these slots and lines of configuration.
pub fn cluster_with(kind: &ServerKind, slots: [&str; 3], conf: &[&str]) -> [Server; 3] {
    let nodes = [(); 3].map(|()| Server::options(kind).conf("cluster-enabled yes").confs(conf).start());
    join(&nodes, &slots);
    nodes
}

/// Makes a cluster of these nodes, each a master with its slots, such as `0 5460`.
pub fn join(nodes: &[impl Borrow<Server>], slots: &[impl AsRef<str>]) {
    join_at(nodes, slots, nodes[0].borrow().port());
}

/// As [`join`], if the other nodes must meet the first one at another port than its own, such as that for
/// TLS.
pub fn join_at(nodes: &[impl Borrow<Server>], slots: &[impl AsRef<str>], first: u16) {
    assign_and_meet(nodes, slots, &first.to_string());
    let is_up = |node: &Server| node.connect().ok("CLUSTER INFO").text().contains("cluster_state:ok");
    until("the cluster is up", || nodes.iter().map(Borrow::borrow).all(is_up));
}

/// Gives slots to as many of the nodes, and makes all nodes know each other. `first`: the port of the first
/// one, and that of its bus if it is not 10000 higher.
pub fn assign_and_meet(nodes: &[impl Borrow<Server>], slots: &[impl AsRef<str>], first: &str) {
    let nodes: Vec<&Server> = nodes.iter().map(Borrow::borrow).collect();
    for (n, node) in nodes.iter().enumerate() {
        let mut conn = node.connect();
        // Each node gets its own epoch, as `redis-cli --cluster create` does.
        conn.ok(&format!("CLUSTER SET-CONFIG-EPOCH {}", n + 1));
        if let Some(slots) = slots.get(n) {
            conn.ok(&format!("CLUSTER ADDSLOTSRANGE {}", slots.as_ref()));
        }
    }
    let (others, known) = (&nodes[1..], format!("cluster_known_nodes:{}\r", nodes.len()));
    let info = |node: &Server| node.connect().ok("CLUSTER INFO").text();
    until("all nodes know each other", || {
        // A node forgets a handshake that takes longer than its `cluster-node-timeout`. So each look begins
        // one if it is missing.
        for node in others.iter().filter(|node| info(node).contains("cluster_known_nodes:1\r")) {
            node.connect().ok(&format!("CLUSTER MEET 127.0.0.1 {first}"));
        }
        nodes.iter().all(|node| info(node).contains(&known))
    });
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

/// Adds a replica to the cluster, and waits until it is in sync, and every node knows it.
pub fn add_replica(kind: &ServerKind, nodes: &[Server], master: &Server, conf: &[&str]) -> Server {
    let replica = Server::options(kind).conf("cluster-enabled yes").confs(conf).start();
    let (mut conn, id) = (replica.connect(), node_id(&mut master.connect()));
    conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", master.port()));
    until("the replica knows the master", || conn.ok("CLUSTER NODES").text().contains(&id));
    assert_eq!(conn.ok(&format!("CLUSTER REPLICATE {id}")), "OK");
    replica.wait_in_sync(master);
    let (line, role) = (node_id(&mut conn), format!("slave {id}"));
    until("every node knows the replica", || {
        nodes.iter().all(|node| {
            let known = node.connect().ok("CLUSTER NODES").text();
            known.lines().any(|known| known.starts_with(&line) && known.contains(&role))
        })
    });
    replica
}

/// Adds a master without slots, and waits until every node knows it.
pub fn add_master(kind: &ServerKind, nodes: &[Server], conf: &[&str]) -> Server {
    meet(nodes, Server::options(kind).conf("cluster-enabled yes").confs(conf).start())
}

/// As [`add_master`], for a node that runs already.
pub fn meet(nodes: &[impl Borrow<Server>], added: Server) -> Server {
    let nodes: Vec<&Server> = nodes.iter().map(Borrow::borrow).collect();
    let mut conn = added.connect();
    conn.ok(&format!("CLUSTER MEET 127.0.0.1 {}", nodes[0].port()));
    let id = node_id(&mut conn);
    let known = format!("cluster_known_nodes:{}\r", nodes.len() + 1);
    until("every node knows the new one, and it knows them", || {
        let knows = |node: &&Server| node.connect().ok("CLUSTER NODES").text().contains(&id);
        let info = conn.ok("CLUSTER INFO").text();
        nodes.iter().all(knows) && info.contains(&known) && info.contains("cluster_state:ok")
    });
    added
}

/// Returns the node that serves the slot of a key.
pub fn owner<'a>(nodes: &'a [Server], key: &str) -> &'a Server {
    let slot = nodes[0].connect().ok(&format!("CLUSTER KEYSLOT {key}")).int();
    let ranges = nodes[0].connect().ok("CLUSTER SLOTS");
    let range = ranges
        .items()
        .iter()
        .find(|range| (range.items()[0].clone().int()..=range.items()[1].clone().int()).contains(&slot));
    let port = range.expect("the slot is served").items()[2].items()[1].clone().int();
    nodes.iter().find(|node| i64::from(node.port()) == port).expect("one of the nodes")
}

/// Moves the slot of a key with everything in it, as `redis-cli --cluster` does. `moving` is called when some
/// requests get ASK: after the keys have moved, and before the slot has.
pub fn move_slot(
    nodes: &[impl Borrow<Server>],
    from: &Server,
    to: &Server,
    key: &str,
    moving: impl FnOnce(),
) {
    let (mut source, mut target) = (from.connect(), to.connect());
    let slot = begin_migration(&mut source, &mut target, key);
    for key in source.ok(&format!("CLUSTER GETKEYSINSLOT {slot} 1000")).items() {
        let key = key.text();
        source.ok(&format!("MIGRATE 127.0.0.1 {} {key} 0 5000", to.port()));
    }
    moving();
    let id = node_id(&mut target);
    target.ok(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
    source.ok(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
    let others =
        nodes.iter().map(Borrow::borrow).filter(|node| ![from.port(), to.port()].contains(&node.port()));
    for node in others {
        node.connect().ok(&format!("CLUSTER SETSLOT {slot} NODE {id}"));
    }
}
