//! What a lock over several masters costs, all of them on this machine: beside one master's, and beside Redlock libraries
//! on the same five servers.

use std::io::Result;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::json;

use crate::redlocks::{Holder, Way};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, jain, median, percentile, si, time};

const ONE: Way = Way::Dlock { masters: 1, fenced: false };
const FIVE: Way = Way::Dlock { masters: 5, fenced: false };
const FIVE_FENCED: Way = Way::Dlock { masters: 5, fenced: true };

const ALONE: [Way; 6] = [
    ONE,
    Way::Dlock { masters: 3, fenced: false },
    FIVE,
    Way::Dlock { masters: 3, fenced: true },
    FIVE_FENCED,
    Way::Rslock,
];

const FIGHTING: [Way; 3] = [FIVE, FIVE_FENCED, Way::Rslock];
const CLIENTS: usize = 8;

/// Measures all tables, in turns on the same servers.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let servers: Vec<Server> = (0..5).map(|_| run.program.start(true, &[])).collect::<Result<_>>()?;
    let ports: Vec<u16> = servers.iter().map(|server| server.port).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Ok(vec![
            run.done(alone(run, &ports).await?),
            run.done(one_stopped(run, &servers, &ports).await?),
            run.done(fighting(run, &ports).await?),
        ])
    })
}

/// Microseconds of each of so many acquisitions with their releases.
async fn pairs(holder: &mut Holder, resource: &str, times: usize) -> Result<Vec<f64>> {
    let mut taken = Vec::with_capacity(times);
    for _ in 0..times {
        let start = Instant::now();
        holder.acquire(resource).await?;
        holder.release().await?;
        taken.push(start.elapsed().as_secs_f64() * 1e6);
    }
    Ok(taken)
}

async fn alone(run: &Run, ports: &[u16]) -> Result<Report> {
    let title = "Acquire + release over masters on one machine, nobody else wants it";
    let (rounds, times) = run.scale((5, 100), (15, 200));
    let mut lanes = Vec::new();
    for way in ALONE.into_iter().filter(|way| *way == ONE || run.wants(&way.name())) {
        let mut holder = way.client(ports).await?;
        pairs(&mut holder, &way.name(), times / 10).await?;
        lanes.push((way, holder, Vec::new()));
    }
    for round in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", round + 1));
        for turn in 0..lanes.len() {
            // Nobody is always behind the same neighbour.
            let at = (turn + round) % lanes.len();
            let (way, holder, taken) = &mut lanes[at];
            taken.push(pairs(holder, &way.name(), times).await?);
        }
    }
    let p50s = |rounds: &[Vec<f64>]| rounds.iter().map(|round| percentile(round, 0.5)).collect::<Vec<_>>();
    let base = p50s(&lanes[0].2);
    let mut table = Table::new(title, &["", "p50", "p99", "x one master", "(min..max)"]);
    let mut lines = Vec::new();
    for (way, _, rounds) in &lanes {
        let all: Vec<f64> = rounds.iter().flatten().copied().collect();
        let ratio = Ratios::of(&p50s(rounds), &base);
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(&all, share));
        table.row(vec![way.name(), time(p50), time(p99), ratio.middle(), ratio.spread()]);
        lines.push(json!({ "contender": way.name(), "p50_us": p50, "p99_us": p99, "ratio": ratio.json() }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

/// The client's default time limit for one master.
const NODE_LIMIT: Duration = Duration::from_millis(250);

async fn one_stopped(run: &Run, servers: &[Server], ports: &[u16]) -> Result<Report> {
    let title = "Acquire + release over five masters while one of them says nothing (SIGSTOP)";
    let times = run.scale(20, 60);
    let mut table = Table::new(title, &["", "p50", "longest", "of the limit for a master"]);
    let mut lines = Vec::new();
    for way in [FIVE, FIVE_FENCED] {
        run.progress(&format!("{title}: {}", way.name()));
        let mut holder = way.client(ports).await?;
        pairs(&mut holder, "stopped", times).await?;
        servers[2].freeze(true)?;
        let taken = pairs(&mut holder, "stopped", times).await;
        servers[2].freeze(false)?;
        let taken = taken?;
        let (p50, longest) = (percentile(&taken, 0.5), percentile(&taken, 1.0));
        let share = longest / (NODE_LIMIT.as_secs_f64() * 1e6);
        table.row(vec![way.name(), time(p50), time(longest), format!("{share:.2}")]);
        lines
            .push(json!({ "contender": way.name(), "p50_us": p50, "max_us": longest, "node_limits": share }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

/// What one client of a fight had: acquisitions in time, and microseconds waited for each.
type Share = (usize, Vec<f64>);

async fn fight(holder: &mut Holder, time: Duration) -> Result<Share> {
    let (start, mut waited, mut grants) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < time {
        let asked = Instant::now();
        holder.acquire("fought for").await?;
        waited.push(asked.elapsed().as_secs_f64() * 1e6);
        grants += usize::from(start.elapsed() < time);
        holder.release().await?;
    }
    Ok((grants, waited))
}

async fn fighting(run: &Run, ports: &[u16]) -> Result<Report> {
    let title = format!("{CLIENTS} clients fight for one lock over five masters");
    let (rounds, seconds) = run.scale((3, 2), (5, 5));
    let mut lanes = Vec::new();
    for way in FIGHTING.into_iter().filter(|way| *way == FIVE || run.wants(&way.name())) {
        let holders = try_join_all((0..CLIENTS).map(|_| way.client(ports))).await?;
        lanes.push((way, holders, Vec::<(f64, f64)>::new(), Vec::new()));
    }
    for round in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", round + 1));
        for (_, holders, blocks, waited) in &mut lanes {
            let time = Duration::from_secs(seconds);
            let shares = try_join_all(holders.iter_mut().map(|holder| fight(holder, time))).await?;
            let grants: Vec<f64> = shares.iter().map(|(grants, _)| *grants as f64).collect();
            blocks.push((grants.iter().sum::<f64>() / time.as_secs_f64(), jain(&grants)));
            waited.extend(shares.into_iter().flat_map(|(_, waited)| waited));
        }
    }
    let mut table = Table::new(&title, &["", "grants/s", "wait p50", "p99", "max", "Jain", "(min)"]);
    let mut lines = Vec::new();
    for (way, _, blocks, waited) in &lanes {
        let (speeds, fairness): (Vec<f64>, Vec<f64>) = blocks.iter().copied().unzip();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(waited, share));
        let (speed, fair, unfairest) = (median(&speeds), median(&fairness), percentile(&fairness, 0.0));
        let figures = [time(p50), time(p99), time(max), format!("{fair:.4}"), format!("{unfairest:.4}")];
        table.row([way.name(), si(speed)].into_iter().chain(figures).collect());
        lines.push(json!({
            "contender": way.name(), "grants_per_second": speed, "jain": fair, "jain_min": unfairest,
            "wait_us": { "p50": p50, "p99": p99, "max": max },
        }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}
