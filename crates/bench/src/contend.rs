//! Many clients contending for one lock as fast as they can: each acquires it, releases it at once and asks
//! again.

use std::io::{Error, Result};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::clients::{Client, Way};
use crate::queued::Process;
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, jain, median, percentile, si, time};

const BASELINE: Kind = Kind::Each(Way::Subscribe);
const ALL: [Kind; 4] = [BASELINE, Kind::Each(Way::Dlock), Kind::Queued, Kind::Each(Way::Poll)];
const CLIENTS: [usize; 2] = [8, 64];

/// How clients wait.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// Each in a thread, with connections of its own.
    Each(Way),
    /// By QUEUE: all in one thread, over one connection.
    Queued,
}

enum Clients {
    Each(Vec<Client>),
    Queued(Process),
}

/// One kind on its server.
struct Contender {
    kind: Kind,
    server: Server,
    clients: Clients,
}

/// The result of one block.
pub struct Sample {
    grants_a_second: f64,
    /// Jain's index over the clients' grants.
    fairness: f64,
    /// The share of grants to another client than the one before.
    changes: f64,
    /// Microseconds from the first try to the grant, one for each wait.
    waited: Vec<f64>,
    /// Microseconds of the server's processor time per grant.
    cpu_a_grant: f64,
}

/// A client contending for the lock.
pub trait LockClient: Send {
    /// Returns once it holds the lock.
    fn acquire(&mut self) -> Result<()>;
    fn release(&mut self) -> Result<()>;
}

/// Measures all contenders, with few and with many clients.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    CLIENTS.iter().map(|clients| Ok(run.done(compare(run, *clients)?))).collect()
}

fn compare(run: &Run, clients: usize) -> Result<Report> {
    let title = format!("{clients} clients contending for one lock");
    let (rounds, seconds) = run.scale((3, 1), (5, 3));
    let wanted = ALL.into_iter().filter(|kind| *kind == BASELINE || run.wants(kind.name()));
    let mut contenders: Vec<Contender> =
        wanted.map(|kind| Contender::start(run, kind, clients)).collect::<Result<_>>()?;
    let mut samples: Vec<(&str, Vec<Sample>)> =
        contenders.iter().map(|contender| (contender.kind.name(), Vec::new())).collect();
    for contender in &mut contenders {
        contender.block(Duration::from_millis(100))?;
    }
    for at in run.turns(&title, rounds, contenders.len()) {
        samples[at].1.push(contenders[at].block(Duration::from_secs(seconds))?);
    }
    Ok(report(title, &samples, BASELINE.name(), "x Redisson"))
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Each(way) => way.name(),
            Kind::Queued => "dlock QUEUE, one connection for all",
        }
    }
}

impl Contender {
    fn start(run: &Run, kind: Kind, clients: usize) -> Result<Contender> {
        let server = run.program.start(matches!(kind, Kind::Each(Way::Dlock) | Kind::Queued), &[])?;
        let clients = match kind {
            Kind::Each(way) => {
                let each = (0..clients).map(|number| Client::new(way, &server, number));
                Clients::Each(each.collect::<Result<_>>()?)
            }
            Kind::Queued => Clients::Queued(Process::start(&server, clients, 1)?),
        };
        Ok(Contender { kind, server, clients })
    }

    fn block(&mut self, time: Duration) -> Result<Sample> {
        let cpu = || self.server.cpu();
        let sample = match &mut self.clients {
            Clients::Each(clients) => contend(clients, cpu, time),
            Clients::Queued(process) => contend_queued(process, cpu, time),
        };
        sample.map_err(|why| self.server.explain(self.kind.name(), &why))
    }
}

/// What the clients of a block share.
struct Arena {
    start: Barrier,
    /// Who held the lock last; only the holder writes it.
    last: AtomicUsize,
    time: Duration,
}

/// What one client got in a block.
#[derive(Default)]
struct Share {
    grants: usize,
    changes: usize,
    waited: Vec<f64>,
}

/// Lets all clients contend for this long. `cpu` returns the processor time that the server has used.
pub fn contend<F: LockClient>(
    clients: &mut [F],
    cpu: impl Fn() -> Option<Duration>,
    time: Duration,
) -> Result<Sample> {
    let arena = Arena { start: Barrier::new(clients.len()), last: AtomicUsize::new(usize::MAX), time };
    let before = cpu();
    let shares: Vec<Share> = thread::scope(|scope| {
        let spawn = |(number, client)| {
            let arena = &arena;
            scope.spawn(move || arena.contend(number, client))
        };
        let threads: Vec<_> = clients.iter_mut().enumerate().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<Share>>| {
            thread.join().unwrap_or_else(|_| Err(Error::other("a client panicked")))
        };
        threads.into_iter().map(join).collect::<Result<_>>()
    })?;
    Ok(sample(&shares, time, cpu().zip(before)))
}

fn contend_queued(
    process: &mut Process,
    cpu: impl Fn() -> Option<Duration>,
    time: Duration,
) -> Result<Sample> {
    let (before, start) = (cpu(), Instant::now());
    let grants = process.work(|_| start.elapsed() < time)?;
    let cpu = cpu().zip(before);
    let (mut shares, mut last) = (Vec::new(), usize::MAX);
    shares.resize_with(process.tasks(), Share::default);
    for grant in grants {
        shares[grant.task].add(grant.waited, grant.at - start < time, last != grant.task);
        last = grant.task;
    }
    Ok(sample(&shares, time, cpu))
}

/// `cpu`: the processor time that the server had used after the block, and before it.
fn sample(shares: &[Share], time: Duration, cpu: Option<(Duration, Duration)>) -> Sample {
    let cpu = cpu.map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
    let grants: Vec<f64> = shares.iter().map(|share| share.grants as f64).collect();
    let all = grants.iter().sum::<f64>();
    let waited: Vec<f64> = shares.iter().flat_map(|share| &share.waited).copied().collect();
    Sample {
        grants_a_second: all / time.as_secs_f64(),
        fairness: jain(&grants),
        changes: shares.iter().map(|share| share.changes as f64).sum::<f64>() / all,
        cpu_a_grant: cpu * 1e6 / waited.len() as f64,
        waited,
    }
}

impl Share {
    /// The last grant comes after the end: its wait counts, the grant does not.
    fn add(&mut self, waited: Duration, in_time: bool, changed: bool) {
        self.waited.push(waited.as_secs_f64() * 1e6);
        if in_time {
            self.grants += 1;
            self.changes += usize::from(changed);
        }
    }
}

impl Arena {
    fn contend(&self, number: usize, client: &mut impl LockClient) -> Result<Share> {
        let mut share = Share::default();
        self.start.wait();
        let start = Instant::now();
        while start.elapsed() < self.time {
            let asked = Instant::now();
            client.acquire()?;
            let granted = Instant::now();
            let last = self.last.swap(number, Ordering::Relaxed);
            client.release()?;
            share.add(granted - asked, granted - start < self.time, last != number);
        }
        Ok(share)
    }
}

/// Ratios are of rounds: a block against the baseline's block in the same round.
pub fn report(title: String, samples: &[(&str, Vec<Sample>)], baseline: &str, ratio: &str) -> Report {
    let all = |of: &[Sample], field: fn(&Sample) -> f64| of.iter().map(field).collect::<Vec<_>>();
    let baseline = samples.iter().find(|(name, _)| *name == baseline).map_or(&[][..], |(_, blocks)| blocks);
    let head = [
        "",
        "grants/s",
        ratio,
        "(min..max)",
        "changed hands",
        "wait p50",
        "p99",
        "max",
        "Jain",
        "(min)",
        "server us/grant",
    ];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for (name, blocks) in samples {
        let speed = Ratios::of(&all(blocks, |s| s.grants_a_second), &all(baseline, |s| s.grants_a_second));
        let waited: Vec<f64> = blocks.iter().flat_map(|block| &block.waited).copied().collect();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(&waited, share));
        let middle = |field: fn(&Sample) -> f64| median(&all(blocks, field));
        let (grants, changes) = (middle(|s| s.grants_a_second), middle(|s| s.changes));
        let (fairness, cpu) = (middle(|s| s.fairness), middle(|s| s.cpu_a_grant));
        let unfairest = percentile(&all(blocks, |s| s.fairness), 0.0);
        table.row(vec![
            (*name).into(),
            si(grants),
            speed.middle(),
            speed.spread(),
            format!("{:.1} %", changes * 100.0),
            time(p50),
            time(p99),
            time(max),
            format!("{fairness:.4}"),
            format!("{unfairest:.4}"),
            format!("{cpu:.2}"),
        ]);
        lines.push(json!({
            "contender": name, "grants_per_second": grants, "ratio": speed.json(),
            "changed_hands": changes, "wait_us": { "p50": p50, "p99": p99, "max": max },
            "jain": fairness, "jain_min": unfairest, "server_us_per_grant": cpu,
        }));
    }
    Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) }
}
