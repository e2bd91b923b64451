//! Many clients contending for one lock: each client acquires the lock, releases it at once and asks again.

use std::io::{Error, Result};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::lock_client::{Client, Waiting};
use crate::queue_process::Process;
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, jain, median, percentile, si, time};

/// The clients that publish a message at each release, and retry at each message.
const BASELINE: Kind = Kind::Threads(Waiting::Subscribe);
const ALL: [Kind; 4] = [BASELINE, Kind::Threads(Waiting::Block), Kind::Queue, Kind::Threads(Waiting::Poll)];
const CLIENTS: [usize; 2] = [8, 64];

/// A kind of contending clients.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    /// One thread for each client, with connections of its own.
    Threads(Waiting),
    /// Waits by QUEUE: all clients in one thread, over one connection.
    Queue,
}

enum Clients {
    Threads(Vec<Client>),
    Queue(Process),
}

/// The clients of one kind, with their server.
struct Contender {
    kind: Kind,
    server: Server,
    clients: Clients,
}

/// The result of one block, a period in which the clients of one contender compete for the lock.
struct Sample {
    grants_per_second: f64,
    /// Jain's index over the clients' grants.
    fairness: f64,
    /// Share of grants to a client other than the previous holder.
    changes: f64,
    /// Microseconds from the first try to the grant, one figure for each wait.
    waits_us: Vec<f64>,
    /// Microseconds of the server's processor time per grant.
    cpu_per_grant: f64,
}

/// The grants and waits of one client in a block.
#[derive(Default)]
struct ClientResult {
    grants: usize,
    changes: usize,
    waits_us: Vec<f64>,
}

/// Measures all contenders, with 8 and with 64 clients.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    CLIENTS.iter().map(|clients| Ok(run.print(compare(run, *clients)?))).collect()
}

fn compare(run: &Run, clients: usize) -> Result<Report> {
    let title = format!("{clients} clients contending for one lock");
    let (rounds, seconds) = run.quick_or_full((3, 1), (5, 3));
    let wanted = ALL.into_iter().filter(|kind| *kind == BASELINE || run.wants(kind.name()));
    let mut contenders: Vec<Contender> =
        wanted.map(|kind| Contender::start(run, kind, clients)).collect::<Result<_>>()?;
    let mut samples: Vec<(Kind, Vec<Sample>)> =
        contenders.iter().map(|contender| (contender.kind, Vec::new())).collect();
    // A warm-up, which is not counted.
    for contender in &mut contenders {
        contender.run_block(Duration::from_millis(100))?;
    }
    for index in run.turns(&title, rounds, contenders.len()) {
        samples[index].1.push(contenders[index].run_block(Duration::from_secs(seconds))?);
    }
    Ok(report(title, &samples))
}

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Threads(waiting) => waiting.name(),
            Kind::Queue => "dlock QUEUE, one connection for all",
        }
    }
}

impl Contender {
    fn start(run: &Run, kind: Kind, clients: usize) -> Result<Contender> {
        let server = run.program.start(matches!(kind, Kind::Threads(Waiting::Block) | Kind::Queue), &[])?;
        let clients = match kind {
            Kind::Threads(waiting) => {
                let clients = (0..clients).map(|number| Client::new(waiting, &server, number));
                Clients::Threads(clients.collect::<Result<_>>()?)
            }
            Kind::Queue => Clients::Queue(Process::start(&server, clients)?),
        };
        Ok(Contender { kind, server, clients })
    }

    /// Runs a block of this length.
    fn run_block(&mut self, time: Duration) -> Result<Sample> {
        let before = self.server.cpu();
        let results = match &mut self.clients {
            Clients::Threads(clients) => contend_in_threads(clients, time),
            Clients::Queue(process) => contend_by_queue(process, time),
        };
        let results = results.map_err(|why| self.server.explain(self.kind.name(), &why))?;
        let cpu =
            self.server.cpu().zip(before).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        Ok(Sample::new(&results, time, cpu))
    }
}

fn contend_in_threads(clients: &mut [Client], time: Duration) -> Result<Vec<ClientResult>> {
    let start = Barrier::new(clients.len());
    // Only the holder writes this number.
    let last_holder = AtomicUsize::new(usize::MAX);
    let contend = |number: usize, client: &mut Client| -> Result<ClientResult> {
        let mut result = ClientResult::default();
        start.wait();
        let start = Instant::now();
        while start.elapsed() < time {
            let asked = Instant::now();
            client.acquire()?;
            let granted = Instant::now();
            let last = last_holder.swap(number, Ordering::Relaxed);
            client.release()?;
            result.add(granted - asked, granted - start < time, last != number);
        }
        Ok(result)
    };
    thread::scope(|scope| {
        let spawn = |(number, client)| scope.spawn(move || contend(number, client));
        let threads: Vec<_> = clients.iter_mut().enumerate().map(spawn).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<ClientResult>>| {
            thread.join().unwrap_or_else(|_| Err(Error::other("a client panicked")))
        };
        threads.into_iter().map(join).collect()
    })
}

fn contend_by_queue(process: &mut Process, time: Duration) -> Result<Vec<ClientResult>> {
    let start = Instant::now();
    let grants = process.contend(time)?;
    let (mut results, mut last_holder) = (Vec::new(), usize::MAX);
    results.resize_with(process.tasks(), ClientResult::default);
    for grant in grants {
        results[grant.task].add(grant.waited, grant.at - start < time, last_holder != grant.task);
        last_holder = grant.task;
    }
    Ok(results)
}

impl ClientResult {
    /// Counts a wait, and its grant if the grant came before the end of the block.
    fn add(&mut self, waited: Duration, in_time: bool, changed: bool) {
        self.waits_us.push(waited.as_secs_f64() * 1e6);
        if in_time {
            self.grants += 1;
            self.changes += usize::from(changed);
        }
    }
}

impl Sample {
    /// `cpu`: seconds of the server's processor time in the block.
    fn new(results: &[ClientResult], time: Duration, cpu: f64) -> Sample {
        let grants: Vec<f64> = results.iter().map(|result| result.grants as f64).collect();
        let sum = grants.iter().sum::<f64>();
        let waits_us: Vec<f64> = results.iter().flat_map(|result| &result.waits_us).copied().collect();
        Sample {
            grants_per_second: sum / time.as_secs_f64(),
            fairness: jain(&grants),
            changes: results.iter().map(|result| result.changes as f64).sum::<f64>() / sum,
            cpu_per_grant: cpu * 1e6 / waits_us.len() as f64,
            waits_us,
        }
    }
}

/// A ratio compares a block with the baseline's block in the same round.
fn report(title: String, samples: &[(Kind, Vec<Sample>)]) -> Report {
    let values = |blocks: &[Sample], field: fn(&Sample) -> f64| blocks.iter().map(field).collect::<Vec<_>>();
    let baseline = samples.iter().find(|(kind, _)| *kind == BASELINE).map_or(&[][..], |(_, blocks)| blocks);
    let head = [
        "",
        "grants/s",
        "x publish + retry",
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
    for (kind, blocks) in samples {
        let speed =
            Ratios::of(&values(blocks, |s| s.grants_per_second), &values(baseline, |s| s.grants_per_second));
        let waits_us: Vec<f64> = blocks.iter().flat_map(|block| &block.waits_us).copied().collect();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(&waits_us, share));
        let median_of = |field: fn(&Sample) -> f64| median(&values(blocks, field));
        let (grants, changes) = (median_of(|s| s.grants_per_second), median_of(|s| s.changes));
        let (fairness, cpu) = (median_of(|s| s.fairness), median_of(|s| s.cpu_per_grant));
        let min_fairness = percentile(&values(blocks, |s| s.fairness), 0.0);
        table.row(vec![
            kind.name().into(),
            si(grants),
            speed.median(),
            speed.spread(),
            format!("{:.1} %", changes * 100.0),
            time(p50),
            time(p99),
            time(max),
            format!("{fairness:.4}"),
            format!("{min_fairness:.4}"),
            format!("{cpu:.2}"),
        ]);
        lines.push(json!({
            "contender": kind.name(), "grants_per_second": grants, "ratio": speed.json(),
            "changed_hands": changes, "wait_us": { "p50": p50, "p99": p99, "max": max },
            "jain": fairness, "jain_min": min_fairness, "server_us_per_grant": cpu,
        }));
    }
    Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) }
}
