//! Acquire + release pairs per second, each on a key of its own and uncontended. One thread drives all
//! connections, so the bench needs one processor and the server another.

use std::io::Result;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::contenders::{ALL, Pair, TOKEN, Way};
use crate::resp::{Command, Conn};
use crate::run::{Report, Run, contains_any};
use crate::server::Server;
use crate::table::{Ratios, Table, median, si};

/// The load on the server.
struct Load {
    /// Its name in `--variant`.
    short: &'static str,
    name: &'static str,
    connections: usize,
    /// Commands that a connection sends before it reads replies.
    depth: usize,
}

const LOADS: [Load; 4] = [
    Load { short: "deep", name: "depth 32, 50 connections", connections: 50, depth: 32 },
    Load { short: "long", name: "depth 32, 1 connection", connections: 1, depth: 32 },
    Load { short: "wide", name: "depth 1, 50 connections", connections: 50, depth: 1 },
    Load { short: "lone", name: "depth 1, 1 connection", connections: 1, depth: 1 },
];

/// Persistence or replication of each change.
struct Persistence {
    /// Its name in `--variant`.
    short: &'static str,
    name: &'static str,
    options: &'static [&'static str],
    replica: bool,
}

const PERSISTENCES: [Persistence; 4] = [
    Persistence { short: "plain", name: "no persistence", options: &[], replica: false },
    Persistence {
        short: "aof",
        name: "append only file, fsync every second",
        options: &["appendonly yes", "appendfsync everysec"],
        replica: false,
    },
    Persistence {
        short: "always",
        name: "append only file, fsync always",
        options: &["appendonly yes", "appendfsync always"],
        replica: false,
    },
    Persistence { short: "replica", name: "one replica", options: &[], replica: true },
];

/// One contender on its server.
struct Contender {
    way: Way,
    pair: Pair,
    server: Server,
    connections: Vec<Conn>,
    _replica: Option<Server>,
}

/// The result of one block, a period in which the bench drives one contender.
#[derive(Clone, Copy, Default)]
struct Sample {
    pairs_per_second: f64,
    /// Microseconds of the server's processor time per pair.
    cpu_per_pair: f64,
    /// Share of the time in which the server was busy.
    busy: f64,
}

/// Measures all contenders in every variant with one of the words of `variants` in its name. If there are
/// no words, measures them in every variant.
pub fn run(run: &Run, variants: &[String]) -> Result<Vec<Report>> {
    let mut reports = Vec::new();
    for persistence in &PERSISTENCES {
        for load in &LOADS {
            if contains_any(&format!("{}-{}", load.short, persistence.short), variants) {
                reports.push(run.print(compare(run, persistence, load)?));
            }
        }
    }
    Ok(reports)
}

/// Servers are restarted several times, because the layout of their memory, and so their speed, is a matter
/// of chance.
const STARTS: usize = 3;

fn compare(run: &Run, persistence: &Persistence, load: &Load) -> Result<Report> {
    let title = format!("Pairs, {}, {}", load.name, persistence.name);
    let (rounds, block_ms) = run.quick_or_full((6, 150), (15, 300));
    // SetDel is the baseline of the ratios, so it is always measured.
    let wanted = ALL.into_iter().filter(|way| *way == Way::SetDel || run.wants(way.name()));
    let wanted: Vec<Way> = wanted.collect();
    let mut samples: Vec<(Way, Vec<Sample>)> = wanted.iter().map(|way| (*way, Vec::new())).collect();
    let mut missing = Vec::new();
    let mut next_key = 0;
    for start in 0..STARTS {
        let mut contenders = Vec::new();
        for &way in &wanted {
            match Contender::start(run, way, persistence, load)? {
                Some(contender) => contenders.push(contender),
                None if start == 0 => missing.push(format!("Not on this server: {}", way.name())),
                None => {}
            }
        }
        // A warm-up, which is not counted.
        for contender in &mut contenders {
            measure(contender, load.depth, &mut next_key, Duration::from_millis(50))?;
        }
        let title = format!("{title}, start {} of {STARTS}", start + 1);
        for index in run.turns(&title, rounds / STARTS, contenders.len()) {
            let contender = &mut contenders[index];
            let sample = measure(contender, load.depth, &mut next_key, Duration::from_millis(block_ms))?;
            samples.iter_mut().filter(|(way, _)| *way == contender.way).for_each(|(_, all)| all.push(sample));
        }
    }
    samples.retain(|(_, all)| !all.is_empty());
    Ok(report(title, &samples, missing))
}

impl Contender {
    /// Returns `None` if the server lacks a command that this way to lock needs.
    fn start(run: &Run, way: Way, persistence: &Persistence, load: &Load) -> Result<Option<Contender>> {
        let server = run.program.start(way.needs_module(), persistence.options)?;
        let Some(pair) = way.prepare(&mut server.connect()?, TOKEN)? else { return Ok(None) };
        let replica = if persistence.replica {
            let replica = run.program.start(way.needs_module(), &[])?;
            replica.replicate(&server);
            Some(replica)
        } else {
            None
        };
        let connections = (0..load.connections).map(|_| server.connect()).collect::<Result<_>>()?;
        Ok(Some(Contender { way, pair, server, connections, _replica: replica }))
    }
}

fn measure(contender: &mut Contender, depth: usize, next_key: &mut u64, time: Duration) -> Result<Sample> {
    drive(contender, depth, next_key, time)
        .map_err(|why| contender.server.explain(contender.way.name(), &why))
}

/// Drives one contender for this time.
fn drive(contender: &mut Contender, depth: usize, next_key: &mut u64, time: Duration) -> Result<Sample> {
    let Contender { pair, server, connections, .. } = contender;
    let mut batch = Vec::new();
    let mut pairs = 0;
    let cpu = server.cpu();
    let start = Instant::now();
    // The batch that each connection waits for: the number of its first key, and whether it acquires. `None`
    // once the connection has finished.
    let mut batches: Vec<Option<(u64, bool)>> = Vec::new();
    for conn in connections.iter_mut() {
        batches.push(Some((*next_key, true)));
        send(conn, &pair.acquire, *next_key, depth, &mut batch)?;
        *next_key += depth as u64;
    }
    while batches.iter().any(Option::is_some) {
        let time_is_up = start.elapsed() >= time;
        for (conn, outstanding) in connections.iter_mut().zip(&mut batches) {
            let Some((first, acquiring)) = *outstanding else { continue };
            let expected = if acquiring { pair.acquired } else { pair.released };
            for _ in 0..depth {
                expected.check(conn.line()?)?;
            }
            *outstanding = if acquiring {
                send(conn, &pair.release, first, depth, &mut batch)?;
                Some((first, false))
            } else {
                pairs += depth;
                if time_is_up {
                    None
                } else {
                    send(conn, &pair.acquire, *next_key, depth, &mut batch)?;
                    *next_key += depth as u64;
                    Some((*next_key - depth as u64, true))
                }
            };
        }
    }
    let seconds = start.elapsed().as_secs_f64();
    let cpu = server.cpu().zip(cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
    let pairs = pairs as f64;
    Ok(Sample { pairs_per_second: pairs / seconds, cpu_per_pair: cpu * 1e6 / pairs, busy: cpu / seconds })
}

fn send(conn: &mut Conn, command: &Command, first: u64, depth: usize, batch: &mut Vec<u8>) -> Result<()> {
    batch.clear();
    (first..first + depth as u64).for_each(|number| command.push(batch, number));
    conn.send(batch)
}

/// Makes the table and the JSON. A ratio compares a block with the baseline's block in the same round.
fn report(title: String, samples: &[(Way, Vec<Sample>)], notes: Vec<String>) -> Report {
    let blocks_of = |way: Way| samples.iter().find(|(other, _)| *other == way).map(|(_, all)| all.as_slice());
    let baseline = blocks_of(Way::SetDel).unwrap_or_default();
    let values = |blocks: &[Sample], field: fn(&Sample) -> f64| blocks.iter().map(field).collect::<Vec<_>>();
    let mut table = Table::new(
        &title,
        &["", "pairs/s", "x SET + DEL", "(min..max)", "server us/pair", "x SET + DEL", "(min..max)", "busy"],
    );
    let mut lines = Vec::new();
    for (way, blocks) in samples {
        let speed =
            Ratios::of(&values(blocks, |s| s.pairs_per_second), &values(baseline, |s| s.pairs_per_second));
        // Inverted, so that a contender that is better than the baseline has a ratio above 1 here, too.
        let cpu = Ratios::of(&values(baseline, |s| s.cpu_per_pair), &values(blocks, |s| s.cpu_per_pair));
        let pairs_per_second = median(&values(blocks, |s| s.pairs_per_second));
        let cpu_per_pair = median(&values(blocks, |s| s.cpu_per_pair));
        let busy = median(&values(blocks, |s| s.busy));
        table.row(vec![
            way.name().into(),
            si(pairs_per_second),
            speed.median(),
            speed.spread(),
            format!("{cpu_per_pair:.2}"),
            cpu.median(),
            cpu.spread(),
            format!("{:.0} %", busy * 100.0),
        ]);
        lines.push(json!({
            "contender": way.name(), "pairs_per_second": pairs_per_second, "ratio": speed.json(),
            "server_us_per_pair": cpu_per_pair, "server_time_ratio": cpu.json(), "server_busy": busy,
        }));
    }
    Report { table, notes, json: json!({ "title": title, "contenders": lines }) }
}
