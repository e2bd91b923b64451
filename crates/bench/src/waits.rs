//! Ten thousand waits of one process over one connection: that none is lost, in which order they are granted,
//! and how evenly the tasks are served.

use std::io::{Error, Result};
use std::time::Instant;

use serde_json::json;

use crate::queued::{Grant, Process};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Table, jain, median, percentile, si, time};

const WAITS: usize = 10_000;
const LOCKS: [usize; 2] = [1, 64];
/// All waits at once, or few tasks that wait again and again.
const TASKS: [usize; 2] = [WAITS, 500];

/// So many tasks, spread over so many locks, on a server of their own.
struct Contender {
    name: String,
    tasks: usize,
    locks: usize,
    server: Server,
    process: Process,
    samples: Vec<Sample>,
}

struct Sample {
    grants_a_second: f64,
    /// Grants made to somebody who had asked later than another task that waited for the same lock.
    out_of_order: usize,
    /// Over the first [`WAITS`] grants, when everybody still contends.
    jain: f64,
    waited: Vec<f64>,
    cpu_a_grant: f64,
}

/// Measures all in turns.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = format!("{} waits of one process over one connection", si(WAITS as f64));
    let rounds = run.scale(1, 5);
    let all = LOCKS.into_iter().flat_map(|locks| TASKS.map(|tasks| (tasks, locks)));
    let mut contenders: Vec<Contender> =
        all.map(|(tasks, locks)| Contender::start(run, tasks, locks)).collect::<Result<_>>()?;
    for at in run.turns(&title, rounds, contenders.len()) {
        let contender = &mut contenders[at];
        let sample = contender.block();
        let sample = sample.map_err(|why| contender.server.explain(&contender.name, &why))?;
        contender.samples.push(sample);
    }
    Ok(vec![run.done(report(title, &contenders))])
}

impl Contender {
    fn start(run: &Run, tasks: usize, locks: usize) -> Result<Contender> {
        let server = run.program.start(true, &[])?;
        let process = Process::start(&server, tasks, locks)?;
        let name = format!("{tasks} tasks, {locks} lock{}", if locks == 1 { "" } else { "s" });
        Ok(Contender { name, tasks, locks, server, process, samples: Vec::new() })
    }

    fn block(&mut self) -> Result<Sample> {
        let (cpu, start) = (self.server.cpu(), Instant::now());
        let grants = self.process.work(|so_far| so_far < WAITS && self.tasks < WAITS)?;
        let (taken, wall) = (self.server.cpu().zip(cpu), start.elapsed());
        let left = self.server.info("dlock_queued");
        if left != "0" {
            return Err(Error::other(format!("{left} positions are left over")));
        }
        let cpu = taken.map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        let mut shares = vec![0.0; self.tasks];
        grants.iter().take(WAITS).for_each(|grant| shares[grant.task] += 1.0);
        Ok(Sample {
            grants_a_second: grants.len() as f64 / wall.as_secs_f64(),
            out_of_order: self.out_of_order(&grants),
            jain: jain(&shares),
            waited: grants.iter().map(|grant| grant.waited.as_secs_f64() * 1e6).collect(),
            cpu_a_grant: cpu * 1e6 / grants.len() as f64,
        })
    }

    fn out_of_order(&self, grants: &[Grant]) -> usize {
        let mut latest = vec![None; self.locks];
        let overtakes = |grant: &&Grant| {
            let asked = Some(grant.at - grant.waited);
            let latest = &mut latest[grant.task % self.locks];
            let overtaken = asked < *latest;
            *latest = asked.max(*latest);
            overtaken
        };
        grants.iter().filter(overtakes).count()
    }
}

fn report(title: String, contenders: &[Contender]) -> Report {
    let head = [
        "",
        "grants",
        "out of order",
        "Jain",
        "(min)",
        "grants/s",
        "wait p50",
        "p99",
        "max",
        "server us/grant",
    ];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for Contender { name, samples, .. } in contenders {
        let all = |field: fn(&Sample) -> f64| samples.iter().map(field).collect::<Vec<_>>();
        let waited: Vec<f64> = samples.iter().flat_map(|sample| &sample.waited).copied().collect();
        let [p50, p99, max] = [0.5, 0.99, 1.0].map(|share| percentile(&waited, share));
        let (jain, unfairest) = (median(&all(|s| s.jain)), percentile(&all(|s| s.jain), 0.0));
        let (speed, cpu) = (median(&all(|s| s.grants_a_second)), median(&all(|s| s.cpu_a_grant)));
        let out_of_order: usize = samples.iter().map(|sample| sample.out_of_order).sum();
        table.row(vec![
            name.clone(),
            waited.len().to_string(),
            out_of_order.to_string(),
            format!("{jain:.4}"),
            format!("{unfairest:.4}"),
            si(speed),
            time(p50),
            time(p99),
            time(max),
            format!("{cpu:.2}"),
        ]);
        lines.push(json!({
            "contender": name, "grants": waited.len(), "out_of_order": out_of_order, "jain": jain,
            "jain_min": unfairest, "grants_per_second": speed, "server_us_per_grant": cpu,
            "wait_us": { "p50": p50, "p99": p99, "max": max },
        }));
    }
    let notes = vec!["A wait that is lost would end the measurement with an error.".to_owned()];
    Report { table, notes, json: json!({ "title": title, "contenders": lines }) }
}
