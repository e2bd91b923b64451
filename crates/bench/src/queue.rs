//! What a long wait queue costs: the same operations with few and with many waiters, in processor time of the
//! server, less what it spends on as many connections while nothing happens.

use std::io::Result;
use std::time::Duration;

use serde_json::json;

use crate::limits;
use crate::positions;
use crate::resp::strange;
use crate::run::{Report, Run};
use crate::table::{Ratios, Table, median, percentile};
use crate::waiters::{Queue, Spent};

const SHORT: usize = 10;
const LONG: usize = 10_000;

/// Files that the bench and a server need in addition to one for each waiter.
const SPARE: usize = 200;

/// What is measured, in the order of [`round`]'s figures.
const OPERATIONS: [&str; 5] = [
    "RELEASE, up to the next grant",
    "ACQUIRE that joins the queue",
    "CANCEL of any waiter",
    "wait timeout of any waiter",
    "disconnect of any waiter",
];

/// Operations per batch; the short queue needs as many waiters.
const BATCH: usize = 8;

/// Measures both queues in turns, and then two of positions without a connection.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let allowed = limits::open_files()? as usize;
    let long = LONG.min(allowed.saturating_sub(SPARE)).max(SHORT);
    let title = format!("Cost of the wait queue: {SHORT} and {long} waiters on one key");
    let rounds = run.scale(3, 10);
    run.progress(&format!("{title}: joining"));
    let mut queues = [Queue::start(run, SHORT)?, Queue::start(run, long)?];
    let mut samples = [Vec::new(), Vec::new()];
    for nth in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", nth + 1));
        for (queue, samples) in queues.iter_mut().zip(&mut samples) {
            let batches = run.scale(20, 40);
            let figures = round(queue, batches).map_err(|why| queue.server.explain("the queue", &why))?;
            samples.push(figures);
        }
    }
    let mut notes = Vec::new();
    if long < LONG {
        notes.push(format!(
            "Fewer than {LONG} waiters: this machine allows {allowed} open files (ulimit -Hn)"
        ));
    }
    let blocked = run.done(report(title, [SHORT, long], &OPERATIONS, &samples, notes));
    Ok(vec![blocked, positions::run(run)?])
}

fn round(queue: &mut Queue, batches: usize) -> Result<[f64; OPERATIONS.len()]> {
    let before = queue.length()?;
    let idle = queue.idle(Duration::from_millis(500))?;
    let mut all = [Spent::default(); OPERATIONS.len()];
    for _ in 0..batches {
        let [released, joined] = queue.release(BATCH)?;
        all[0].add(released);
        all[1].add(joined);
        all[2].add(queue.cancel(BATCH)?);
        all[4].add(queue.disconnect(BATCH)?);
    }
    // A long queue takes long to rejoin, but more of its waiters can time out.
    let groups = if before as usize >= BATCH * batches { batches } else { 1 };
    for _ in 0..batches / groups {
        all[3].add(queue.time_out(BATCH, groups)?);
    }
    let after = queue.length()?;
    if after != before {
        return Err(strange(&format!("{after} wait where {before} should")));
    }
    Ok(all.map(|spent| spent.less(idle).cpu / spent.operations as f64))
}

/// `samples`: microseconds of each operation, by round. Ratios are of rounds: the long queue against the
/// short one.
pub fn report<const N: usize>(
    title: String,
    [short, long]: [usize; 2],
    operations: &[&str; N],
    samples: &[Vec<[f64; N]>; 2],
    notes: Vec<String>,
) -> Report {
    let (few, many) = (format!("{short} waiters"), format!("{long} waiters"));
    let head = ["server us", &few, "(min..max)", &many, "(min..max)", "ratio", "(min..max)"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for (at, operation) in operations.iter().enumerate() {
        let [few, many] =
            samples.each_ref().map(|rounds| -> Vec<f64> { rounds.iter().map(|r| r[at]).collect() });
        let ratio = Ratios::of(&many, &few);
        let spread = |all: &[f64]| format!("{:.1}..{:.1}", percentile(all, 0.0), percentile(all, 1.0));
        table.row(vec![
            (*operation).into(),
            format!("{:.1}", median(&few)),
            spread(&few),
            format!("{:.1}", median(&many)),
            spread(&many),
            ratio.middle(),
            ratio.spread(),
        ]);
        lines.push(json!({
            "operation": operation, "server_us_few": median(&few), "server_us_many": median(&many),
            "ratio": ratio.json(),
        }));
    }
    let json = json!({ "title": title, "few": short, "many": long, "operations": lines, "notes": notes });
    Report { table, notes, json }
}
