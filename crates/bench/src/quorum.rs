//! What a lock over several masters costs, all of them on this machine, compared with one master and with
//! Redlock libraries on the same five servers.

use std::io::Result;
use std::time::{Duration, Instant};

use futures_util::future::try_join_all;
use serde_json::json;

use crate::processors::{Processors, Side};
use crate::redlocks::{Holder, Way};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, jain, median, percentile, si, time};

const ONE: Way = Way::Dlock { masters: 1, fenced: false };
const FIVE: Way = Way::Dlock { masters: 5, fenced: false };
const FIVE_FENCED: Way = Way::Dlock { masters: 5, fenced: true };

const UNCONTENDED: [Way; 7] = [
    ONE,
    Way::Dlock { masters: 3, fenced: false },
    FIVE,
    Way::Dlock { masters: 3, fenced: true },
    FIVE_FENCED,
    Way::Rslock,
    Way::Redlock,
];

const CONTENDED: [Way; 4] = [FIVE, FIVE_FENCED, Way::Rslock, Way::Redlock];
const CLIENTS: usize = 8;

/// Measures all tables, in turns on the same servers. The clients get one processor and the servers the
/// others. Left to itself, the scheduler now and then puts a client and a server onto the same processor,
/// where they need not wake another one and are five times as fast.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let processors = Processors::mine()?;
    processors.go(Side::Others)?;
    let servers = (0..5).map(|_| run.program.start(true, &[])).collect::<Result<Vec<Server>>>();
    let reports = processors.go(Side::First).and_then(|()| measure(run, &servers?));
    processors.leave()?;
    reports
}

fn measure(run: &Run, servers: &[Server]) -> Result<Vec<Report>> {
    let ports: Vec<u16> = servers.iter().map(|server| server.port()).collect();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        Ok(vec![
            run.done(uncontended(run, &ports).await?),
            run.done(one_stopped(run, servers, &ports).await?),
            run.done(contended(run, &ports).await?),
        ])
    })
}

/// Microseconds of each acquire + release pair.
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

async fn uncontended(run: &Run, ports: &[u16]) -> Result<Report> {
    let title = "Acquire + release over masters on one machine, uncontended";
    let (rounds, times) = run.scale((5, 100), (15, 200));
    let mut contenders = Vec::new();
    for way in UNCONTENDED.into_iter().filter(|way| *way == ONE || run.wants(&way.name())) {
        let mut holder = way.client(ports).await?;
        pairs(&mut holder, &way.name(), times / 10).await?;
        contenders.push((way, holder, Vec::new()));
    }
    for at in run.turns(title, rounds, contenders.len()) {
        let (way, holder, taken) = &mut contenders[at];
        taken.push(pairs(holder, &way.name(), times).await?);
    }
    let p50s = |rounds: &[Vec<f64>]| rounds.iter().map(|round| percentile(round, 0.5)).collect::<Vec<_>>();
    let baseline = p50s(&contenders[0].2);
    let mut table = Table::new(title, &["", "p50", "p99", "x one master", "(min..max)"]);
    let mut lines = Vec::new();
    for (way, _, rounds) in &contenders {
        let all: Vec<f64> = rounds.iter().flatten().copied().collect();
        let ratio = Ratios::of(&p50s(rounds), &baseline);
        let [p50, p99] = [0.5, 0.99].map(|share| percentile(&all, share));
        table.row(vec![way.name(), time(p50), time(p99), ratio.middle(), ratio.spread()]);
        lines.push(json!({ "contender": way.name(), "p50_us": p50, "p99_us": p99, "ratio": ratio.json() }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

/// The client's default timeout for one master.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

async fn one_stopped(run: &Run, servers: &[Server], ports: &[u16]) -> Result<Report> {
    let title = "Acquire + release over five masters, one of them silent (SIGSTOP)";
    let times = run.scale(20, 60);
    let mut table = Table::new(title, &["", "p50", "longest", "of the node timeout"]);
    let mut lines = Vec::new();
    for way in [FIVE, FIVE_FENCED] {
        run.progress(&format!("{title}: {}", way.name()));
        let mut holder = way.client(ports).await?;
        pairs(&mut holder, "stopped", times).await?;
        servers[2].pause();
        let taken = pairs(&mut holder, "stopped", times).await;
        servers[2].resume();
        let taken = taken?;
        let (p50, longest) = (percentile(&taken, 0.5), percentile(&taken, 1.0));
        let share = longest / (NODE_TIMEOUT.as_secs_f64() * 1e6);
        table.row(vec![way.name(), time(p50), time(longest), format!("{share:.2}")]);
        lines
            .push(json!({ "contender": way.name(), "p50_us": p50, "max_us": longest, "node_limits": share }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) })
}

/// What one contending client got: grants within the time, and microseconds waited for each.
type Share = (usize, Vec<f64>);

async fn contend(holder: &mut Holder, time: Duration) -> Result<Share> {
    let (start, mut waited, mut grants) = (Instant::now(), Vec::new(), 0);
    while start.elapsed() < time {
        let asked = Instant::now();
        holder.acquire("contended").await?;
        waited.push(asked.elapsed().as_secs_f64() * 1e6);
        grants += usize::from(start.elapsed() < time);
        holder.release().await?;
    }
    Ok((grants, waited))
}

async fn contended(run: &Run, ports: &[u16]) -> Result<Report> {
    let title = format!("{CLIENTS} clients contending for one lock over five masters");
    let (rounds, seconds) = run.scale((3, 2), (5, 5));
    let mut contenders = Vec::new();
    for way in CONTENDED.into_iter().filter(|way| *way == FIVE || run.wants(&way.name())) {
        let holders = try_join_all((0..CLIENTS).map(|_| way.client(ports))).await?;
        contenders.push((way, holders, Vec::<(f64, f64)>::new(), Vec::new()));
    }
    for at in run.turns(&title, rounds, contenders.len()) {
        let (_, holders, blocks, waited) = &mut contenders[at];
        let time = Duration::from_secs(seconds);
        let shares = try_join_all(holders.iter_mut().map(|holder| contend(holder, time))).await?;
        let grants: Vec<f64> = shares.iter().map(|(grants, _)| *grants as f64).collect();
        blocks.push((grants.iter().sum::<f64>() / time.as_secs_f64(), jain(&grants)));
        waited.extend(shares.into_iter().flat_map(|(_, waited)| waited));
    }
    let mut table = Table::new(&title, &["", "grants/s", "wait p50", "p99", "max", "Jain", "(min)"]);
    let mut lines = Vec::new();
    for (way, _, blocks, waited) in &contenders {
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
