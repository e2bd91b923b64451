//! Many clients that fight for one lock as fast as they can: each takes it, frees it at once and wants it again.

use std::io::{Error, Result};
use std::sync::Barrier;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::rivals::{ALL, Rival, Way};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, jain, median, percentile, si, time};

/// The one that the others are compared with.
const BASE: Way = Way::Subscribe;
const CLIENTS: [usize; 2] = [8, 64];

/// One way on its server.
struct Lane {
    way: Way,
    server: Server,
    rivals: Vec<Rival>,
}

/// What one block of a way came to.
pub struct Sample {
    grants_a_second: f64,
    /// Jain's index over the clients' grants.
    fairness: f64,
    /// The share of grants to another client than the one before.
    changes: f64,
    /// Microseconds from the first try until the lock was there, each.
    waited: Vec<f64>,
    /// Microseconds of processor time the server took for a grant.
    cpu_a_grant: f64,
}

/// Somebody who wants the lock.
pub trait Fighter: Send {
    /// Comes back with it.
    fn acquire(&mut self) -> Result<()>;
    fn release(&mut self) -> Result<()>;
}

/// Measures all ways, with few and with many clients.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    CLIENTS.iter().map(|clients| Ok(run.done(compare(run, *clients)?))).collect()
}

fn compare(run: &Run, clients: usize) -> Result<Report> {
    let title = format!("{clients} clients fight for one lock");
    let (rounds, seconds) = run.scale((3, 1), (5, 3));
    let wanted = ALL.into_iter().filter(|way| *way == BASE || run.wants(way.name()));
    let mut lanes: Vec<Lane> = wanted.map(|way| Lane::start(run, way, clients)).collect::<Result<_>>()?;
    let mut samples: Vec<(&str, Vec<Sample>)> =
        lanes.iter().map(|lane| (lane.way.name(), Vec::new())).collect();
    for lane in &mut lanes {
        lane.block(Duration::from_millis(100))?;
    }
    for round in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", round + 1));
        for turn in 0..lanes.len() {
            // Nobody is always behind the same neighbour.
            let at = (turn + round) % lanes.len();
            samples[at].1.push(lanes[at].block(Duration::from_secs(seconds))?);
        }
    }
    Ok(report(title, &samples, BASE.name(), "x Redisson"))
}

impl Lane {
    fn start(run: &Run, way: Way, clients: usize) -> Result<Lane> {
        let server = run.program.start(way == Way::Dlock, &[])?;
        let rivals = (0..clients).map(|number| Rival::new(way, &server, number)).collect::<Result<_>>()?;
        Ok(Lane { way, server, rivals })
    }

    fn block(&mut self, time: Duration) -> Result<Sample> {
        fight(&mut self.rivals, || self.server.cpu(), time)
            .map_err(|why| self.server.explain(self.way.name(), &why))
    }
}

/// What all clients of a block share.
struct Arena {
    start: Barrier,
    /// Who had the lock last: only the holder changes it.
    last: AtomicUsize,
    time: Duration,
}

/// What one client of a block had.
#[derive(Default)]
struct Share {
    grants: usize,
    changes: usize,
    waited: Vec<f64>,
}

/// Lets all fight for so long. `cpu` tells the processor time that the server has used.
pub fn fight<F: Fighter>(
    rivals: &mut [F],
    cpu: impl Fn() -> Option<Duration>,
    time: Duration,
) -> Result<Sample> {
    let arena = Arena { start: Barrier::new(rivals.len()), last: AtomicUsize::new(usize::MAX), time };
    let before = cpu();
    let shares: Vec<Share> = thread::scope(|scope| {
        let enter = |(number, rival)| {
            let arena = &arena;
            scope.spawn(move || arena.fight(number, rival))
        };
        let threads: Vec<_> = rivals.iter_mut().enumerate().map(enter).collect();
        let end = |thread: thread::ScopedJoinHandle<'_, Result<Share>>| {
            thread.join().unwrap_or_else(|_| Err(Error::other("a client panicked")))
        };
        threads.into_iter().map(end).collect::<Result<_>>()
    })?;
    let cpu = cpu().zip(before).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
    let grants: Vec<f64> = shares.iter().map(|share| share.grants as f64).collect();
    let all = grants.iter().sum::<f64>();
    let waited: Vec<f64> = shares.iter().flat_map(|share| &share.waited).copied().collect();
    Ok(Sample {
        grants_a_second: all / time.as_secs_f64(),
        fairness: jain(&grants),
        changes: shares.iter().map(|share| share.changes as f64).sum::<f64>() / all,
        cpu_a_grant: cpu * 1e6 / waited.len() as f64,
        waited,
    })
}

impl Arena {
    /// The last wait is over when its grant comes, though that is late and does not count as one.
    fn fight(&self, number: usize, rival: &mut impl Fighter) -> Result<Share> {
        let mut share = Share::default();
        self.start.wait();
        let start = Instant::now();
        while start.elapsed() < self.time {
            let asked = Instant::now();
            rival.acquire()?;
            let granted = Instant::now();
            let last = self.last.swap(number, Ordering::Relaxed);
            rival.release()?;
            share.waited.push((granted - asked).as_secs_f64() * 1e6);
            if granted - start < self.time {
                share.grants += 1;
                share.changes += usize::from(last != number);
            }
        }
        Ok(share)
    }
}

/// Ratios are of rounds: a block against the base's block in the same round.
pub fn report(title: String, samples: &[(&str, Vec<Sample>)], base: &str, ratio: &str) -> Report {
    let all = |of: &[Sample], field: fn(&Sample) -> f64| of.iter().map(field).collect::<Vec<_>>();
    let base = samples.iter().find(|(name, _)| *name == base).map_or(&[][..], |(_, blocks)| blocks);
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
        let speed = Ratios::of(&all(blocks, |s| s.grants_a_second), &all(base, |s| s.grants_a_second));
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
