//! A master with two replicas, watched by three sentinels, and their faults.

use std::fs;

use tokio::runtime::Handle;

use crate::contender::Stage;
use crate::topology::{Topology, is_master, shows, until_nothing_is_missing};
use dlock_testkit::sentinels::sentinels;
use dlock_testkit::{Random, Server, ServerKind, until};

/// The sentinels take a server for dead after this time, in ms.
const DOWN_AFTER: u32 = 1_000;

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
}

pub struct Deployment {
    servers: Vec<Server>,
    sentinels: Vec<Server>,
}

impl Deployment {
    /// Returns the place of the server that this sentinel names as the master.
    fn named_by(&self, sentinel: &Server) -> Option<usize> {
        let named = sentinel.connect().ok("SENTINEL GET-MASTER-ADDR-BY-NAME locks");
        let port = named.items()[1].text();
        self.servers.iter().position(|server| server.port().to_string() == port)
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

    fn until_replaced(&self, master: usize) {
        until("a sentinel names another master", || {
            let named = self.named_by(&self.sentinels[0]);
            named.is_some_and(|named| named != master && is_master(&self.servers[named]))
        });
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
        let port = self.servers[master].port().to_string();
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

    fn start(kind: &ServerKind, grace: u64, _network: &Handle) -> Deployment {
        let grace = format!("dlock.restart-grace {grace}");
        // A master that goes on beside a new one loses its replicas, and then grants nothing.
        let conf = ["appendonly yes", "min-replicas-to-write 1", "min-replicas-max-lag 10", &grace];
        let servers: Vec<Server> = (0..3).map(|_| Server::options(kind).confs(&conf).start()).collect();
        servers[1..].iter().for_each(|replica| replica.replicate(&servers[0]));
        let sentinels = sentinels(kind, &servers[0], DOWN_AFTER);
        Deployment { servers, sentinels }
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
            Fault::Failover => {
                until("the sentinel begins a failover", || {
                    self.sentinels[0].connect().say("SENTINEL FAILOVER locks") == "OK"
                });
                self.until_replaced(master);
            }
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
        }
    }

    fn until_whole(&self) {
        until_nothing_is_missing(|| self.unready());
        for server in &self.servers {
            until("the grace period has ended", || shows(server, "dlock_grace_ms_left", "0"));
        }
    }
}
