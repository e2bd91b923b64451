//! dlock on one server compared with etcd and ZooKeeper, one node of each. Those write every change to the
//! disk before they answer, so dlock is measured that way too.

mod etcd;
mod process;
mod zookeeper;

use std::io::Result;
use std::path::PathBuf;
use std::time::{Duration, Instant};

use clap::Args;
use serde_json::json;

use crate::clients::{Client, Way};
use crate::contend::{self, LockClient, Sample};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, percentile, si, time};

/// Where the peers' programs are.
#[derive(Args, Clone)]
pub struct Programs {
    /// The program etcd
    #[arg(long)]
    etcd: Option<PathBuf>,
    /// A program that starts ZooKeeper with the configuration file it is given
    #[arg(long)]
    zookeeper: Option<PathBuf>,
}

/// A system under measurement.
enum Peer {
    Dlock { name: &'static str, server: Server },
    Etcd(etcd::Etcd),
    Zookeeper(zookeeper::Zookeeper),
}

const CLIENTS: [usize; 2] = [8, 64];
const BASELINE: &str = "dlock, nothing kept";

impl Peer {
    fn name(&self) -> &'static str {
        match self {
            Peer::Dlock { name, .. } => name,
            Peer::Etcd(_) => "etcd",
            Peer::Zookeeper(_) => "ZooKeeper",
        }
    }

    fn client(&self, number: usize) -> Result<Box<dyn LockClient>> {
        Ok(match self {
            Peer::Dlock { server, .. } => Box::new(Client::new(Way::Dlock, server, number)?),
            Peer::Etcd(etcd) => Box::new(etcd.client()?),
            Peer::Zookeeper(zookeeper) => Box::new(zookeeper.client()?),
        })
    }

    fn cpu(&self) -> Option<Duration> {
        match self {
            Peer::Dlock { server, .. } => server.cpu(),
            Peer::Etcd(etcd) => etcd.cpu(),
            Peer::Zookeeper(zookeeper) => zookeeper.cpu(),
        }
    }
}

impl LockClient for Box<dyn LockClient> {
    fn acquire(&mut self) -> Result<()> {
        (**self).acquire()
    }

    fn release(&mut self) -> Result<()> {
        (**self).release()
    }
}

/// Measures all tables, in turns on the same servers.
pub fn run(run: &Run, programs: &Programs) -> Result<Vec<Report>> {
    let always = ["appendonly yes", "appendfsync always"];
    let mut peers = vec![
        Peer::Dlock { name: BASELINE, server: run.program.start(true, &[])? },
        Peer::Dlock { name: "dlock, appendfsync always", server: run.program.start(true, &always)? },
    ];
    let mut notes = Vec::new();
    match &programs.etcd {
        Some(program) => peers.push(Peer::Etcd(etcd::Etcd::start(program)?)),
        None => notes.push("Not measured: etcd, as --etcd names no program".to_owned()),
    }
    match &programs.zookeeper {
        Some(program) => peers.push(Peer::Zookeeper(zookeeper::Zookeeper::start(program)?)),
        None => notes.push("Not measured: ZooKeeper, as --zookeeper names no program".to_owned()),
    }
    let mut reports = vec![run.done(uncontended(run, &peers, notes)?)];
    for clients in CLIENTS {
        reports.push(run.done(compare(run, &peers, clients)?));
    }
    Ok(reports)
}

fn uncontended(run: &Run, peers: &[Peer], notes: Vec<String>) -> Result<Report> {
    let title = "Acquire + release compared with other systems, uncontended";
    let (rounds, times) = run.scale((3, 100), (9, 200));
    let mut clients = peers.iter().map(|peer| peer.client(0)).collect::<Result<Vec<_>>>()?;
    let mut taken = vec![Vec::new(); peers.len()];
    for at in run.turns(title, rounds, peers.len()) {
        taken[at].push(pairs(&mut clients[at], times)?);
    }
    let p50s = |rounds: &[Vec<f64>]| rounds.iter().map(|round| percentile(round, 0.5)).collect::<Vec<_>>();
    let baseline = p50s(&taken[0]);
    let mut table = Table::new(title, &["", "p50", "p99", "x dlock", "(min..max)", "pairs/s"]);
    let mut lines = Vec::new();
    for (peer, rounds) in peers.iter().zip(&taken) {
        let all: Vec<f64> = rounds.iter().flatten().copied().collect();
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(&all, share));
        let (ratio, speed) =
            (Ratios::of(&p50s(rounds), &baseline), 1e6 * all.len() as f64 / all.iter().sum::<f64>());
        table.row(vec![peer.name().into(), time(p50), time(p99), ratio.middle(), ratio.spread(), si(speed)]);
        lines.push(json!({
            "contender": peer.name(), "p50_us": p50, "p99_us": p99, "ratio": ratio.json(), "pairs_per_second": speed,
        }));
    }
    Ok(Report { table, notes, json: json!({ "title": title, "contenders": lines }) })
}

/// Microseconds of each acquire + release pair.
fn pairs(client: &mut dyn LockClient, times: usize) -> Result<Vec<f64>> {
    let pair = |_| {
        let start = Instant::now();
        client.acquire()?;
        client.release()?;
        Ok(start.elapsed().as_secs_f64() * 1e6)
    };
    (0..times).map(pair).collect()
}

fn compare(run: &Run, peers: &[Peer], clients: usize) -> Result<Report> {
    let title = format!("{clients} clients contending for one lock, compared with other systems");
    let (rounds, seconds) = run.scale((2, 2), (4, 4));
    let connect = |peer: &Peer| (0..clients).map(|number| peer.client(number)).collect::<Result<Vec<_>>>();
    let mut contending = peers.iter().map(connect).collect::<Result<Vec<_>>>()?;
    let mut samples: Vec<(&str, Vec<Sample>)> = peers.iter().map(|peer| (peer.name(), Vec::new())).collect();
    for at in run.turns(&title, rounds, peers.len()) {
        let time = Duration::from_secs(seconds);
        samples[at].1.push(contend::contend(&mut contending[at], || peers[at].cpu(), time)?);
    }
    Ok(contend::report(title, &samples, BASELINE, "x dlock"))
}
