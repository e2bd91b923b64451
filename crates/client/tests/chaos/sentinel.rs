//! A master with two replicas, watched by three sentinels, in a network that can be split, and their faults.

use std::fs;
use std::sync::atomic::Ordering::Relaxed;

use tokio::runtime::Handle;

use crate::contender::Stage;
use crate::gates::{Gate, Gates, source};
use crate::topology::{Topology, is_master, shows, until_nothing_is_missing};
use dlock_testkit::sentinels::{sentinel, until_complete};
use dlock_testkit::{Options, Random, Server, ServerKind, until};

const SERVERS: usize = 3;
const SENTINELS: usize = 3;
/// The sentinels take a server for dead after this time, in ms.
const DOWN_AFTER: u32 = 1_000;
/// A master without a sign of its replicas goes on for this time, in s, and for almost two seconds more: it
/// ages them in whole seconds, and counts them once a second.
pub const MAX_LAG: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Fault {
    /// The master is killed and started again at once, with its data or empty. No replica is promoted.
    Restarted,
    /// The master is killed. It is started again as a replica, with its data or empty.
    Killed,
    /// SENTINEL FAILOVER.
    Failover,
    /// The master is stopped (SIGSTOP) until a replica is promoted.
    Stopped,
    /// All sentinels but one are killed, then the master. All are started again.
    SentinelsKilled,
    /// The master is cut off from the replicas and the sentinels, before or just after a replica is promoted.
    /// Clients reach all of them. Half of them go on with the old master, until it grants nothing; the others
    /// find the new one. Needs longer leases than the other faults.
    Split,
}

pub struct Deployment {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
    gates: Gates,
    /// The gate of each server, and then those of the sentinels, in the order of their start.
    each: Vec<Gate>,
}

impl Deployment {
    /// Returns the place of the server that this sentinel names as the master.
    fn named_by(&self, sentinel: &Server) -> Option<usize> {
        let named = sentinel.connect().ok("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        let port = named.items()[1].text();
        self.each[..SERVERS].iter().position(|gate| gate.port.to_string() == port)
    }

    fn master(&self) -> usize {
        self.named_by(&self.sentinels[0]).expect("one of the servers")
    }

    /// Starts a killed server.
    fn restart(&mut self, place: usize, empty: bool) {
        if empty {
            fs::remove_dir_all(self.servers[place].dir().join("appendonlydir")).expect("the server had data");
        }
        self.servers[place].restart();
    }

    /// Makes a sentinel promote a replica. Repeats an attempt that failed: another sentinel that has just
    /// demoted a former master may take its promotion for the old state, and demote it again.
    fn fail_over(&self, is_done: impl Fn() -> bool) {
        until("SENTINEL FAILOVER has an effect", || {
            let done = is_done();
            if !done {
                let _ = self.sentinels[0].connect().say("SENTINEL FAILOVER locks");
            }
            done
        });
    }

    fn is_replaced(&self, master: usize) -> bool {
        let named = self.named_by(&self.sentinels[0]);
        named.is_some_and(|named| named != master && is_master(&self.servers[named]))
    }

    fn until_replaced(&self, master: usize) {
        until("a sentinel names another master", || self.is_replaced(master));
    }

    /// Closes connections of clients to this server: each `nth` one.
    fn disconnect_clients(&self, server: &Server, nth: usize) {
        let mut conn = server.connect();
        let listed = conn.ok("CLIENT LIST").text();
        let is_client = |line: &&str| !line.contains(" name=sentinel-") && !line.contains(" flags=S");
        let clients = listed.lines().filter(is_client);
        for client in clients.step_by(nth) {
            let id = client.split_once(' ').expect("several fields").0.trim_start_matches("id=");
            conn.ok(&format!("CLIENT KILL ID {id}"));
        }
    }

    /// Returns what is missing until all sentinels and servers know each other as they are.
    fn unready(&self) -> Option<String> {
        let master = self.master();
        for sentinel in &self.sentinels {
            let seen = sentinel.connect().ok("SENTINEL MASTER locks");
            let replicas = sentinel.connect().ok("SENTINEL REPLICAS locks");
            let is_up = |replica| *dlock_testkit::Value::field(replica, "flags") == "slave";
            let all = self.named_by(sentinel) == Some(master)
                && *seen.field("flags") == "master"
                && *seen.field("num-other-sentinels") == "2"
                && replicas.items().len() == 2
                && replicas.items().iter().all(is_up);
            if !all {
                return Some(format!("{seen:?}, {replicas:?}"));
            }
        }
        let port = self.each[master].port.to_string();
        for (place, server) in self.servers.iter().enumerate().filter(|(place, _)| *place != master) {
            if !shows(server, "role", "slave")
                || !shows(server, "master_port", &port)
                || !shows(server, "master_link_status", "up")
            {
                return Some(format!("server {place} does not follow server {master}"));
            }
        }
        None
    }
}

impl Topology for Deployment {
    type Fault = Fault;

    const FAULTS: &[Fault] =
        &[Fault::Restarted, Fault::Killed, Fault::Failover, Fault::Stopped, Fault::SentinelsKilled];

    fn start(kind: &ServerKind, grace: u64, network: &Handle) -> Deployment {
        let gates = Gates::new(SERVERS + SENTINELS, network);
        let each: Vec<Gate> = (0..SERVERS + SENTINELS).map(|place| gates.open(place)).collect();
        let start = |options: Options, place: usize, role: &str| {
            let ip = format!("{role}announce-ip 127.0.0.1");
            let port = format!("{role}announce-port {}", each[place].port);
            let server = options.confs(&[&ip, &port, &source(place)]).start();
            each[place].lead_to(server.port());
            server
        };
        let grace = format!("dlock.restart-grace {grace}");
        let max_lag = format!("min-replicas-max-lag {MAX_LAG}");
        // A master that goes on beside a new one loses its replicas, and then grants nothing.
        let conf = ["appendonly yes", "min-replicas-to-write 1", &max_lag, &grace];
        let server = |place| start(Server::options(kind).confs(&conf), place, "replica-");
        let servers: Vec<Server> = (0..SERVERS).map(server).collect();
        let (master, port) = (&servers[0], each[0].port);
        for replica in &servers[1..] {
            assert_eq!(replica.connect().ok(&format!("REPLICAOF 127.0.0.1 {port}")), "OK");
            replica.wait_in_sync(master);
        }
        let sentinel = |number| start(sentinel(kind, port, DOWN_AFTER), SERVERS + number, "sentinel ");
        let sentinels: Vec<Server> = (0..SENTINELS).map(sentinel).collect();
        until_complete(&sentinels, master);
        Deployment { servers, sentinels, gates, each }
    }

    fn url(&self) -> String {
        let sentinels: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.port())).collect();
        let others = sentinels[1..].join("&node=");
        format!("redis-sentinel://{}?sentinelServiceName=locks&node={others}", sentinels[0])
    }

    fn suffer(&mut self, fault: Fault, random: &mut Random, stage: &Stage) {
        let (empty, master) = (random.once_in(2), self.master());
        match fault {
            Fault::Restarted => {
                self.servers[master].kill9();
                self.restart(master, empty);
            }
            Fault::Killed => {
                self.servers[master].kill9();
                self.until_replaced(master);
                stage.until_all_acquire("after the promotion");
                self.restart(master, empty);
            }
            Fault::Failover => self.fail_over(|| self.is_replaced(master)),
            Fault::Stopped => {
                self.servers[master].pause();
                self.until_replaced(master);
                self.servers[master].resume();
            }
            Fault::SentinelsKilled => {
                let left = random.below(self.sentinels.len());
                self.sentinels.rotate_left(left);
                self.sentinels[1..].iter().for_each(Server::kill9);
                stage.until_all_acquire("with one sentinel");
                self.servers[master].kill9();
                self.restart(master, empty);
                stage.until_all_acquire("with one sentinel, after a restart of the master");
                self.sentinels[1..].iter_mut().for_each(Server::restart);
            }
            Fault::Split => {
                // The replicas know of holds that are older than the split.
                stage.keep_holds.store(false, Relaxed);
                let at_promotion = random.once_in(2);
                if at_promotion {
                    self.fail_over(|| self.servers.iter().filter(|server| is_master(server)).count() == 2);
                }
                self.gates.split(|place| usize::from(place == master));
                self.until_replaced(master);
                let (old, promoted) = (&self.servers[master], &self.servers[self.master()]);
                self.disconnect_clients(old, 2);
                stage.keep_holds.store(true, Relaxed);
                until("the promoted replica grants locks", || shows(promoted, "dlock_grace_ms_left", "0"));
                self.disconnect_clients(old, 1);
                stage.until_all_acquire("while the network is split");
                self.gates.heal();
            }
        }
    }

    fn until_whole(&self) {
        until_nothing_is_missing(|| self.unready());
        for server in &self.servers {
            until("the grace period has ended", || shows(server, "dlock_grace_ms_left", "0"));
        }
    }
}
