//! What millions of holds cost: a pair while they are live, and the memory of each, compared with strings
//! that have a TTL.

use std::io::Result;

use serde_json::json;

use crate::many::{Many, Way};
use crate::run::{Report, Run};
use crate::table::{Ratios, Table, median, si};

const SIZES: [u64; 5] = [1_000, 10_000, 100_000, 1_000_000, 10_000_000];

/// Per round.
pub const PAIRS: u64 = 20_000;

/// One contender's figures at one number of holds.
#[derive(Default)]
struct Figures {
    /// Microseconds of the server's processor time, one figure per round.
    cpu_a_pair: Vec<f64>,
    bytes_a_hold: f64,
}

pub fn run(run: &Run) -> Result<Vec<Report>> {
    Ok(vec![run.done(growth(run)?)])
}

fn growth(run: &Run) -> Result<Report> {
    let title = "Cost of a pair and memory of a hold, by number of holds";
    let sizes = run.scale(&SIZES[..4], &SIZES);
    let rounds = run.scale(5, 15);
    // The least size is measured again with each of the others: a machine's speed changes every minute.
    let mut least = [start(run, Way::Dlock, sizes[0])?.0, start(run, Way::Set, sizes[0])?.0];
    let mut rows = Vec::new();
    for &size in sizes {
        run.progress(&format!("{title}: {} holds", si(size as f64)));
        let (mut dlock, bytes) = start(run, Way::Dlock, size)?;
        let mut ours = Figures { bytes_a_hold: bytes, ..Figures::default() };
        let (mut set, bytes) = start(run, Way::Set, size)?;
        let mut theirs = Figures { bytes_a_hold: bytes, ..Figures::default() };
        let mut baseline = [Vec::new(), Vec::new()];
        for round in 0..rounds {
            let first = size + round * PAIRS;
            baseline[0].push(cpu_of_pairs(&mut least[0], first)?);
            ours.cpu_a_pair.push(cpu_of_pairs(&mut dlock, first)?);
            baseline[1].push(cpu_of_pairs(&mut least[1], first)?);
            theirs.cpu_a_pair.push(cpu_of_pairs(&mut set, first)?);
        }
        rows.push((size, ours, theirs, baseline));
    }
    Ok(growth_report(title, &rows))
}

/// A server with this many holds, and the bytes that each takes.
pub fn start(run: &Run, way: Way, holds: u64) -> Result<(Many, f64)> {
    let mut many = Many::start(run, way, 0)?;
    let [before, _] = many.server.memory()?;
    many.take_lasting(0..holds)?;
    let bytes = (many.server.memory()?[0] - before) / holds as f64;
    Ok((many, bytes))
}

/// Microseconds of the server's processor time.
pub fn cpu_of_pairs(many: &mut Many, first: u64) -> Result<f64> {
    let before = many.server.cpu();
    many.pairs(first..first + PAIRS).map_err(|why| many.explain(&why))?;
    let taken =
        many.server.cpu().zip(before).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
    Ok(taken * 1e6 / PAIRS as f64)
}

/// Ratios are of rounds.
fn growth_report(title: &str, rows: &[(u64, Figures, Figures, [Vec<f64>; 2])]) -> Report {
    let head = [
        "holds",
        "dlock us/pair",
        "x least",
        "(min..max)",
        "SET + DEL us/pair",
        "x least",
        "(min..max)",
        "dlock bytes/hold",
        "SET bytes",
        "ratio",
    ];
    let mut table = Table::new(title, &head);
    let mut lines = Vec::new();
    for (size, ours, theirs, baseline) in rows {
        let (grown, set_grown) =
            (Ratios::of(&ours.cpu_a_pair, &baseline[0]), Ratios::of(&theirs.cpu_a_pair, &baseline[1]));
        let (cpu, set_cpu) = (median(&ours.cpu_a_pair), median(&theirs.cpu_a_pair));
        let memory = ours.bytes_a_hold / theirs.bytes_a_hold;
        table.row(vec![
            si(*size as f64),
            format!("{cpu:.2}"),
            grown.middle(),
            grown.spread(),
            format!("{set_cpu:.2}"),
            set_grown.middle(),
            set_grown.spread(),
            format!("{:.0}", ours.bytes_a_hold),
            format!("{:.0}", theirs.bytes_a_hold),
            format!("{memory:.2}"),
        ]);
        lines.push(json!({
            "holds": size, "dlock_us_per_pair": cpu, "dlock_grown": grown.json(), "set_us_per_pair": set_cpu,
            "set_grown": set_grown.json(), "dlock_bytes": ours.bytes_a_hold, "set_bytes": theirs.bytes_a_hold,
        }));
    }
    let notes = vec![
        "us/pair: the server's processor time, depth 32. Bytes: used_memory, with tokens of 27 bytes and keys of 17."
            .to_owned(),
    ];
    Report { table, notes, json: json!({ "title": title, "sizes": lines }) }
}
