//! Ten million holds: what it takes to acquire them, what a pair costs beside them, and how long the server
//! is busy at a stretch while some of them expire together, and while all do.

use std::io::Result;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::growth::{PAIRS, cpu_of_pairs};
use crate::many::{Many, Way};
use crate::ping::{OWN, Took, ping_for};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, median, si, time};

const HOLDS: u64 = 10_000_000;

/// A pair beside so few is what one beside the many is compared with.
const FEW: u64 = 1_000;

/// How many of them expire together at first.
const SOME: u64 = 100_000;

/// How long a client pings before the server is asked again how many are left.
const WINDOW: Duration = Duration::from_millis(250);

pub fn run(run: &Run) -> Result<Vec<Report>> {
    let holds = run.scale(HOLDS / 10, HOLDS);
    let title = format!("{} holds", si(holds as f64));
    let mut table = Table::new(&title, &["", "server", "a hold"]);
    let mut lines = Vec::new();
    let mut row = |what: &str, figure: String, each: f64, unit: &str| {
        table.row(vec![what.into(), figure, format!("{each:.2} {unit}")]);
        lines.push(json!({ "what": what, "each": each, "unit": unit }));
    };

    run.progress(&format!("{title}: acquiring them"));
    let mut few = Many::start(run, Way::Dlock, FEW)?;
    let mut many = Many::start(run, Way::Dlock, 0)?;
    let (before, cpu, start) = (many.server.memory()?, many.server.cpu(), Instant::now());
    many.take_lasting(0..holds)?;
    let (cpu, took) = (cpu_since(&many.server, cpu), start.elapsed());
    row("acquiring them, with a client", time(took.as_secs_f64() * 1e6), cpu / holds as f64, "us");
    let after = many.server.memory()?;
    for (which, what) in ["used_memory", "resident"].into_iter().enumerate() {
        let bytes = after[which] - before[which];
        row(what, format!("{:.2} GB", bytes / 1e9), bytes / holds as f64, "bytes");
    }

    let (mut beside_few, mut beside_many) = (Vec::new(), Vec::new());
    for round in 0..run.scale(5, 15) {
        let first = holds + round * PAIRS;
        beside_few.push(cpu_of_pairs(&mut few, first)?);
        beside_many.push(cpu_of_pairs(&mut many, first)?);
    }
    let ratio = Ratios::of(&beside_many, &beside_few);
    let what = format!("a pair beside them, x beside {}", si(FEW as f64));
    row(&what, format!("{} ({})", ratio.middle(), ratio.spread()), median(&beside_many), "us a pair");

    run.progress(&format!("{title}: some expire"));
    let lease = took / 50 + Duration::from_secs(3);
    many.take(holds..holds + SOME, Instant::now() + lease).map_err(|why| many.explain(&why))?;
    let (longest, cpu, busy) = expire(&mut many, holds, holds + SOME)?;
    let what = format!("{} expire in {}; busy at a stretch", si(SOME as f64), time(busy));
    row(&what, time(longest), cpu / SOME as f64, "us");

    run.progress(&format!("{title}: acquiring them once more"));
    drop(many);
    let mut many = Many::start(run, Way::Dlock, 0)?;
    let due = Instant::now() + took * 2 + Duration::from_secs(5);
    many.take(0..holds, due).map_err(|why| many.explain(&why))?;
    run.progress(&format!("{title}: all expire"));
    let (longest, cpu, busy) = expire(&mut many, 0, holds)?;
    row(&format!("all expire in {}; busy at a stretch", time(busy)), time(longest), cpu / holds as f64, "us");

    let notes = vec![format!("Busy at a stretch: the longest ping, its own time. {OWN}")];
    let json = json!({ "title": title, "holds": holds, "rows": lines });
    Ok(vec![run.done(Report { table, notes, json })])
}

/// Microseconds of processor time that the server has used since it had used `before`.
fn cpu_since(server: &Server, before: Option<Duration>) -> f64 {
    let spent = server.cpu().zip(before).map(|(after, before)| (after - before).as_secs_f64());
    spent.map_or(f64::NAN, |seconds| seconds * 1e6)
}

/// Pings until no more than these are left of so many. Microseconds: the longest ping, the server's processor
/// time, and how long it took from the first that was gone on.
fn expire(many: &mut Many, left: u64, of: u64) -> Result<(f64, f64, f64)> {
    let (mut longest, mut began) = (0.0_f64, None::<Instant>);
    let cpu = many.server.cpu();
    loop {
        let Many { server, conn, .. } = &mut *many;
        let start = Instant::now();
        let pings: Vec<Took> = ping_for(server, conn, WINDOW)?;
        longest = pings.iter().map(|ping| ping.own).fold(longest, f64::max);
        let more = many.more_than(left)?;
        if more < of - left && began.is_none() {
            began = Some(start);
        }
        if more == 0 {
            let busy = began.map_or(0.0, |began| began.elapsed().as_secs_f64() * 1e6);
            return Ok((longest, cpu_since(&many.server, cpu), busy));
        }
    }
}
