//! A cluster of three masters with a replica each, in a network that can be split, and its faults.

use std::fs;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};

use tokio::runtime::Handle;

use crate::contender::{RESOURCES, Stage};
use crate::gates::{Gate, Gates, source};
use crate::topology::{Topology, is_master, shows, until_nothing_is_missing};
use dlock_testkit::cluster::{EQUAL_SLOTS, assign_and_meet, move_slot, node_id};
use dlock_testkit::{Options, Random, Server, ServerKind, Value, until, until_some};

/// Number of masters. The node of the place n + SHARDS is in the shard of node n.
pub const SHARDS: usize = 3;
const NODES: usize = 2 * SHARDS;
/// A node's bus has the port that is this much higher than that of the clients.
const BUS: u16 = 10_000;
const CONF: [&str; 5] = [
    "cluster-enabled yes",
    "cluster-node-timeout 1000",
    // A replica that was cut off for long is promoted too, and none leaves its master.
    "cluster-replica-validity-factor 0",
    "cluster-allow-replica-migration no",
    "appendonly yes",
];

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// A master is killed and started again at once, with its data or empty. No replica is promoted.
    Restarted,
    /// A master is killed. It is started again as a replica, with its data or empty.
    Killed,
    /// The same, when its replica has not known what the master does for a while.
    KilledAheadOfItsReplica,
    /// CLUSTER FAILOVER.
    Failover,
    FailoverForce,
    FailoverTakeover,
    /// A master is stopped (SIGSTOP) until its replica is promoted.
    Stopped,
    /// The slots of all locks move to another master, key by key.
    SlotsMoved,
    /// A half without a majority has a master, and the other half has its replica.
    Split,
    /// A node is killed and comes back under other ports.
    OtherAddress,
}

pub struct Cluster {
    nodes: Vec<Server>,
    gates: Gates,
    /// The gates of each node, for the clients and for the bus; empty if the nodes are reached directly.
    each: Vec<[Gate; 2]>,
}

impl Cluster {
    /// Starts a cluster without a network between its nodes.
    pub fn start_directly(kind: &ServerKind, network: &Handle) -> Cluster {
        let node = |_| Server::options(kind).confs(&CONF).start();
        let nodes: Vec<Server> = (0..NODES).map(node).collect();
        let cluster = Cluster { nodes, gates: Gates::new(NODES, network), each: Vec::new() };
        cluster.join();
        cluster
    }

    /// Returns the port of each node that the clients use.
    fn ports(&self) -> Vec<u16> {
        match &*self.each {
            [] => self.nodes.iter().map(Server::port).collect(),
            gates => gates.iter().map(|[gate, _]| gate.port).collect(),
        }
    }

    pub fn node(&self, place: usize) -> &Server {
        &self.nodes[place]
    }

    fn join(&self) {
        let port = self.ports()[0];
        let bus_port = self.each.first().map_or(port + BUS, |[_, bus]| bus.port);
        assign_and_meet(&self.nodes, &EQUAL_SLOTS, &format!("{port} {bus_port}"));
        for (master, replica) in self.nodes.iter().zip(&self.nodes[SHARDS..]) {
            let replicate = format!("CLUSTER REPLICATE {}", node_id(&mut master.connect()));
            until("the replica follows its master", || replica.connect().say(&replicate) == "OK");
        }
        self.until_whole();
    }

    fn master(&self, shard: usize) -> usize {
        [shard, shard + SHARDS].into_iter().find(|place| is_master(&self.nodes[*place])).expect("a master")
    }

    /// Returns the other node of the shard.
    fn partner(&self, place: usize) -> usize {
        (place + SHARDS) % NODES
    }

    /// Returns the masters, in the order of their shards.
    fn masters(&self) -> Vec<&Server> {
        (0..SHARDS).map(|shard| &self.nodes[self.master(shard)]).collect()
    }

    /// Returns the shard of the node that serves a key.
    pub fn shard_of(&self, key: &str) -> usize {
        let inspect = format!("DLOCK.INSPECT {key}");
        let serves = |master: &&Server| !matches!(master.connect().say(&inspect), Value::Error(_));
        until_some("the key is served", || self.masters().iter().position(serves))
    }

    fn kill(&self, place: usize) {
        self.nodes[place].kill9();
    }

    /// Starts a killed node, with its data or with the cluster's configuration alone.
    pub fn restart(&mut self, place: usize, empty: bool) {
        if empty {
            fs::remove_dir_all(self.nodes[place].dir().join("appendonlydir")).expect("the node had data");
        }
        self.nodes[place].restart();
    }

    pub fn until_promoted(&self, place: usize) {
        until("the replica is promoted", || is_master(&self.nodes[place]) && serves(&self.nodes[place]));
    }

    /// Cuts the replica of a shard off from its master, until locks are granted that it does not know.
    pub fn outrun_replica(&self, shard: usize, stage: &Stage) {
        let replica = self.partner(self.master(shard));
        self.gates.split(|place| usize::from(place == replica));
        stage.keep_holds.store(false, Relaxed);
        stage.until_more_are_granted(20);
    }

    /// Kills the master of a shard, and connects its replica to the others again. Returns the places of both.
    pub fn kill_master(&self, shard: usize) -> (usize, usize) {
        let master = self.master(shard);
        self.kill(master);
        self.gates.heal();
        (master, self.partner(master))
    }

    /// Makes a replica the master by CLUSTER FAILOVER, which may time out.
    fn fail_over(&self, replica: usize, form: &str) {
        let polls = AtomicUsize::new(0);
        until("the replica has taken over", || {
            if polls.fetch_add(1, Relaxed).is_multiple_of(1_000) {
                let _ = self.nodes[replica].connect().say(&format!("CLUSTER FAILOVER {form}"));
            }
            is_master(&self.nodes[replica])
        });
        self.until_promoted(replica);
    }

    fn move_all_slots(&self, random: &mut Random, stage: &Stage) {
        stage.keep_holds.store(false, Relaxed);
        for resource in RESOURCES {
            let (masters, from) = (self.masters(), self.shard_of(resource));
            let to = (from + 1 + random.below(SHARDS - 1)) % SHARDS;
            move_slot(&masters, masters[from], masters[to], resource, || stage.until_more_are_granted(5));
        }
    }

    fn come_back_elsewhere(&mut self, place: usize) {
        self.kill(place);
        let gates = [self.gates.open(place), self.gates.open(place)];
        self.nodes[place].restart_with(|options| announcing(options, &gates));
        lead_to(&self.nodes[place], &gates);
        self.each[place] = gates;
    }

    /// Returns what is missing until each node knows all others as they are.
    fn unready(&self) -> Option<String> {
        for (place, node) in self.nodes.iter().enumerate() {
            let mut conn = node.connect();
            let (info, known) = (conn.ok("CLUSTER INFO").text(), conn.ok("CLUSTER NODES").text());
            let is_whole = info.contains("cluster_state:ok") && info.contains("cluster_slots_ok:16384");
            let flags: Vec<&str> = known.lines().filter_map(|line| line.split(' ').nth(2)).collect();
            let masters = flags.iter().filter(|flags| flags.contains("master")).count();
            let is_wrong =
                |flags: &&str| ["fail", "handshake", "noaddr"].iter().any(|word| flags.contains(word));
            let knows = |port: &u16| known.contains(&format!(":{port}@"));
            if !is_whole || masters != SHARDS || flags.iter().any(is_wrong) || !self.ports().iter().all(knows)
            {
                return Some(format!("{place}: {known}"));
            }
            if !is_master(node) && !shows(node, "master_link_status", "up") {
                return Some(format!("{place}: no link to its master"));
            }
        }
        None
    }
}

impl Topology for Cluster {
    type Fault = Fault;

    const FAULTS: &[Fault] = &[
        Fault::Restarted,
        Fault::Killed,
        Fault::KilledAheadOfItsReplica,
        Fault::Failover,
        Fault::FailoverForce,
        Fault::FailoverTakeover,
        Fault::Stopped,
        Fault::SlotsMoved,
        Fault::Split,
        Fault::OtherAddress,
    ];

    fn start(kind: &ServerKind, grace: u64, network: &Handle) -> Cluster {
        let gates = Gates::new(NODES, network);
        let (nodes, each): (Vec<_>, Vec<_>) = (0..NODES)
            .map(|place| {
                let own = [gates.open(place), gates.open(place)];
                let grace = format!("dlock.restart-grace {grace}");
                let node = Server::options(kind).confs(&CONF).confs(&[&grace, &source(place)]);
                let node = announcing(node, &own).start();
                lead_to(&node, &own);
                (node, own)
            })
            .unzip();
        let cluster = Cluster { nodes, gates, each };
        cluster.join();
        cluster
    }

    fn url(&self) -> String {
        let nodes: Vec<String> = self.ports().iter().map(|port| format!("127.0.0.1:{port}")).collect();
        format!("redis-cluster://{}?node={}", nodes[0], nodes[1..].join("&node="))
    }

    fn suffer(&mut self, fault: Fault, random: &mut Random, stage: &Stage) {
        let shard = random.below(SHARDS);
        let (empty, master) = (random.once_in(2), self.master(shard));
        let replica = self.partner(master);
        match fault {
            Fault::Restarted => {
                self.kill(master);
                self.restart(master, empty);
            }
            Fault::Killed | Fault::KilledAheadOfItsReplica => {
                if fault == Fault::KilledAheadOfItsReplica {
                    self.outrun_replica(shard, stage);
                }
                self.kill_master(shard);
                self.until_promoted(replica);
                stage.until_all_acquire("after the promotion");
                self.restart(master, empty);
            }
            Fault::Failover => self.fail_over(replica, ""),
            Fault::FailoverForce => self.fail_over(replica, "FORCE"),
            Fault::FailoverTakeover => self.fail_over(replica, "TAKEOVER"),
            Fault::Stopped => {
                self.nodes[master].pause();
                self.until_promoted(replica);
                // One that continued after the grace period would grant beside the new master, for as long as
                // it does not know of it.
                self.nodes[master].resume();
            }
            Fault::SlotsMoved => self.move_all_slots(random, stage),
            Fault::Split => {
                // The other replicas are with the lone master.
                let majority =
                    |place: usize| place == replica || (place != master && is_master(&self.nodes[place]));
                let halves: Vec<usize> = (0..NODES).map(|place| usize::from(majority(place))).collect();
                self.gates.split(|place| halves[place]);
                self.until_promoted(replica);
                stage.until_all_acquire("while the network is split");
                self.gates.heal();
            }
            Fault::OtherAddress => {
                let place = if random.once_in(2) { replica } else { master };
                // A command that begins later finds the cluster at the first node of the address.
                self.come_back_elsewhere(if place == 0 { self.partner(0) } else { place });
            }
        }
    }

    fn until_whole(&self) {
        until_nothing_is_missing(|| self.unready());
        for node in &self.nodes {
            until("the grace period has ended", || shows(node, "dlock_grace_ms_left", "0"));
        }
    }
}

/// Adds the ports of the node's gates.
fn announcing(options: Options, [gate, bus]: &[Gate; 2]) -> Options {
    options
        .conf("cluster-announce-ip 127.0.0.1")
        .conf(&format!("cluster-announce-port {}", gate.port))
        .conf(&format!("cluster-announce-bus-port {}", bus.port))
}

fn lead_to(node: &Server, [gate, bus]: &[Gate; 2]) {
    gate.lead_to(node.port());
    bus.lead_to(node.port() + BUS);
}

/// Returns whether the node's cluster is up.
fn serves(node: &Server) -> bool {
    node.connect().ok("CLUSTER INFO").text().contains("cluster_state:ok")
}
