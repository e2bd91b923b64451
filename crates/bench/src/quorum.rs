//! Acquire + release over several masters, all on this machine, compared with one master.
//!
//! The client runs on one processor, and the servers on the others. Otherwise the scheduler would sometimes
//! put the client and a server onto the same processor. There, an acquire + release takes a fifth of the
//! time, because no message has to wake another processor.

use std::io::{Error, Result};
use std::time::{Duration, Instant};

use dlock_client::{Client, Guard};
use futures_util::future::try_join_all;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use serde_json::json;

use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, jain, median, percentile, si, time};

/// A number of masters, with or without a fence.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Setup {
    masters: usize,
    fenced: bool,
}

const ONE: Setup = Setup { masters: 1, fenced: false };
const FIVE: Setup = Setup { masters: 5, fenced: false };
const FIVE_FENCED: Setup = Setup { masters: 5, fenced: true };
const UNCONTENDED: [Setup; 5] =
    [ONE, Setup { masters: 3, fenced: false }, FIVE, Setup { masters: 3, fenced: true }, FIVE_FENCED];

const CLIENTS: usize = 8;
const TTL: Duration = Duration::from_secs(30);
/// The client's default timeout for one master.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// Measures all tables on the same servers.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let processors = Processors::available()?;
    processors.use_others()?;
    // Each server starts with the module.
    let servers = (0..5).map(|_| run.program.start(true, &[])).collect::<Result<Vec<Server>>>();
    let reports = processors.use_first().and_then(|()| measure(run, &servers?));
    processors.use_all()?;
    reports
}

fn measure(run: &Run, servers: &[Server]) -> Result<Vec<Report>> {
    let ports: Vec<u16> = servers.iter().map(|server| server.port()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Ok(vec![
            run.print(uncontended(run, &ports).await?),
            run.print(one_stopped(run, servers, &ports).await?),
            run.print(contended(run, &ports).await?),
        ])
    })
}

impl Setup {
    fn name(self) -> String {
        match self {
            Setup { masters: 1, .. } => "dlock, one master".into(),
            Setup { masters, fenced: false } => format!("dlock, {masters} masters"),
            Setup { masters, fenced: true } => format!("dlock, {masters} masters, fenced"),
        }
    }

    async fn client(self, ports: &[u16]) -> Result<Client> {
        let servers = ports[..self.masters].iter().map(|port| format!("redis://127.0.0.1:{port}"));
        Client::builder().servers(servers).build().await.map_err(Error::other)
    }

    async fn acquire(self, client: &Client, resource: &str) -> Result<Guard> {
        let lock = client.lock(resource).ttl(TTL);
        let lock = if self.fenced { lock.fenced() } else { lock };
        lock.acquire().await.map_err(Error::other)
    }

    /// Returns the microseconds of each acquire + release pair.
    async fn pairs(self, client: &Client, resource: &str, times: usize) -> Result<Vec<f64>> {
        let mut pairs_us = Vec::with_capacity(times);
        for _ in 0..times {
            let start = Instant::now();
            self.acquire(client, resource).await?.release().await.map_err(Error::other)?;
            pairs_us.push(start.elapsed().as_secs_f64() * 1e6);
        }
        Ok(pairs_us)
    }

    /// Acquires and releases one lock again and again for this time. Returns the number of grants within the
    /// time, and the microseconds of each wait.
    async fn contend(self, client: &Client, time: Duration) -> Result<(usize, Vec<f64>)> {
        let (start, mut waits_us, mut grants) = (Instant::now(), Vec::new(), 0);
        while start.elapsed() < time {
            let asked = Instant::now();
            let guard = self.acquire(client, "contended").await?;
            waits_us.push(asked.elapsed().as_secs_f64() * 1e6);
            grants += usize::from(start.elapsed() < time);
            guard.release().await.map_err(Error::other)?;
        }
        Ok((grants, waits_us))
    }
}

async fn uncontended(run: &Run, ports: &[u16]) -> Result<Report> {
    let title = "Acquire + release over masters on one machine, uncontended";
    let (rounds, times) = run.quick_or_full((5, 100), (15, 200));
    let mut contenders = Vec::new();
    for setup in UNCONTENDED.into_iter().filter(|setup| *setup == ONE || run.wants(&setup.name())) {
        let client = setup.client(ports).await?;
        // A warm-up, which is not counted.
        setup.pairs(&client, &setup.name(), times / 10).await?;
        contenders.push((setup, client, Vec::new()));
    }
    for index in run.turns(title, rounds, contenders.len()) {
        let (setup, client, rounds) = &mut contenders[index];
        rounds.push(setup.pairs(client, &setup.name(), times).await?);
    }
    let p50s = |rounds: &[Vec<f64>]| rounds.iter().map(|round| percentile(round, 0.5)).collect::<Vec<_>>();
    let baseline = p50s(&contenders[0].2);
    let mut table = Table::new(title, &["", "p50", "p99", "x one master", "(min..max)"]);
    let mut lines = Vec::new();
    for (setup, _, rounds) in &contenders {
        let all: Vec<f64> = rounds.iter().flatten().copied().collect();
        let ratio = Ratios::of(&p50s(rounds), &baseline);
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(&all, share));
        table.row(vec![setup.name(), time(p50), time(p99), ratio.median(), ratio.spread()]);
        lines.push(json!({ "contender": setup.name(), "p50_us": p50, "p99_us": p99, "ratio": ratio.json() }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

async fn one_stopped(run: &Run, servers: &[Server], ports: &[u16]) -> Result<Report> {
    let title = "Acquire + release over five masters, one of them silent (SIGSTOP)";
    let times = run.quick_or_full(20, 60);
    let mut table = Table::new(title, &["", "p50", "longest", "x node timeout"]);
    let mut lines = Vec::new();
    for setup in [FIVE, FIVE_FENCED] {
        run.progress(&format!("{title}: {}", setup.name()));
        let client = setup.client(ports).await?;
        // A warm-up, which is not counted.
        setup.pairs(&client, "stopped", times).await?;
        servers[2].pause();
        let pairs = setup.pairs(&client, "stopped", times).await;
        servers[2].resume();
        let pairs = pairs?;
        let (p50, longest) = (percentile(&pairs, 0.5), percentile(&pairs, 1.0));
        let share = longest / (NODE_TIMEOUT.as_secs_f64() * 1e6);
        table.row(vec![setup.name(), time(p50), time(longest), format!("{share:.2}")]);
        lines.push(
            json!({ "contender": setup.name(), "p50_us": p50, "max_us": longest, "node_timeouts": share }),
        );
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

async fn contended(run: &Run, ports: &[u16]) -> Result<Report> {
    let title = format!("{CLIENTS} clients contending for one lock over five masters");
    let (rounds, seconds) = run.quick_or_full((3, 2), (5, 5));
    // Length of a block, a period in which the clients of one contender compete for the lock.
    let block = Duration::from_secs(seconds);
    let mut contenders = Vec::new();
    for setup in [FIVE, FIVE_FENCED] {
        let clients = try_join_all((0..CLIENTS).map(|_| setup.client(ports))).await?;
        // The grants per second and Jain's index of each block, and the microseconds of all waits.
        contenders.push((setup, clients, Vec::<(f64, f64)>::new(), Vec::new()));
    }
    for index in run.turns(&title, rounds, contenders.len()) {
        let (setup, clients, blocks, waits_us) = &mut contenders[index];
        let results = try_join_all(clients.iter().map(|client| setup.contend(client, block))).await?;
        let grants: Vec<f64> = results.iter().map(|(grants, _)| *grants as f64).collect();
        blocks.push((grants.iter().sum::<f64>() / block.as_secs_f64(), jain(&grants)));
        waits_us.extend(results.into_iter().flat_map(|(_, waits_us)| waits_us));
    }
    let mut table = Table::new(&title, &["", "grants/s", "wait p50", "p99", "max", "Jain", "(min)"]);
    let mut lines = Vec::new();
    for (setup, _, blocks, waits_us) in &contenders {
        let (speeds, jains): (Vec<f64>, Vec<f64>) = blocks.iter().copied().unzip();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(waits_us, share));
        let (speed, fairness, min_fairness) = (median(&speeds), median(&jains), percentile(&jains, 0.0));
        let figures =
            [time(p50), time(p99), time(max), format!("{fairness:.4}"), format!("{min_fairness:.4}")];
        table.row([setup.name(), si(speed)].into_iter().chain(figures).collect());
        lines.push(json!({
            "contender": setup.name(), "grants_per_second": speed, "jain": fairness, "jain_min": min_fairness,
            "wait_us": { "p50": p50, "p99": p99, "max": max },
        }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

/// The processors that this process may use. With a single processor, nothing is moved.
struct Processors(Vec<usize>);

impl Processors {
    fn available() -> Result<Processors> {
        let set = sched_getaffinity(Pid::from_raw(0))?;
        Ok(Processors((0..CpuSet::count()).filter(|cpu| set.is_set(*cpu).unwrap_or(false)).collect()))
    }

    /// Moves this thread to the first processor.
    fn use_first(&self) -> Result<()> {
        pin(&self.0[..1.min(self.0.len())])
    }

    /// Moves this thread, and the processes that it starts from now on, to the other processors.
    fn use_others(&self) -> Result<()> {
        pin(if self.0.len() > 1 { &self.0[1..] } else { &self.0 })
    }

    fn use_all(&self) -> Result<()> {
        pin(&self.0)
    }
}

fn pin(processors: &[usize]) -> Result<()> {
    let mut set = CpuSet::new();
    for processor in processors {
        set.set(*processor)?;
    }
    Ok(sched_setaffinity(Pid::from_raw(0), &set)?)
}
