//! What an operation costs against the number of those who share its key: holders that share it, holders of
//! permits, and queued waiters, from one to a hundred thousand. In processor time of the server, less what it
//! spends while nothing happens.

mod members;

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use dlock_testkit::Value;
use rand::random_range;
use serde_json::json;

use crate::queued::KEPT;
use crate::resp::{Command, Conn, KEY, strange};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Table, median, si};
use crate::waiters::{Meter, REST, Spent};
use members::Crowd;

const NUMBERS: [usize; 6] = [1, 10, 100, 1_000, 10_000, 100_000];

/// Commands in one write. Of small crowds there are as many, each on a key of its own, so that each command
/// meets the number that it is measured against.
const BATCH: usize = 32;
const SMALL: usize = 100;

/// Connections that close in each batch.
const CLOSED: usize = 4;

/// How long the server is watched while nothing happens.
const IDLE: Duration = Duration::from_millis(300);

/// Leases outlast any measurement.
const TTL: &str = "86400000";

/// How many of a crowd a page shows.
const PAGE: &str = "10";

/// Who shares a key.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Sharers,
    Permits,
    Queued,
}

/// Measures the three, one after the other.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let kinds = [Kind::Sharers, Kind::Permits, Kind::Queued].into_iter();
    kinds.filter(|kind| run.wants(kind.name())).map(|kind| measure(run, kind)).collect()
}

fn measure(run: &Run, kind: Kind) -> Result<Report> {
    let title = format!("Cost of an operation by the number of {} on one key", kind.name());
    let (rounds, batches) = run.scale((3, 10), (9, 20));
    let operations = kind.operations();
    run.progress(&format!("{title}: joining"));
    let mut crowds = NUMBERS.iter().map(|n| Crowd::start(run, kind, *n)).collect::<Result<Vec<_>>>()?;
    let mut samples = vec![vec![Vec::new(); NUMBERS.len()]; operations.len()];
    for nth in run.turns(&title, rounds, crowds.len()) {
        let crowd = &mut crowds[nth];
        let figures = round(crowd, operations, batches);
        let figures = figures.map_err(|why| crowd.server.explain(kind.name(), &why))?;
        for (samples, figure) in samples.iter_mut().zip(figures) {
            samples[nth].push(figure);
        }
    }
    Ok(run.done(report(title, operations, &samples)))
}

/// Microseconds of each operation.
fn round(crowd: &mut Crowd, operations: &[(&str, Operation)], batches: usize) -> Result<Vec<f64>> {
    let idle = crowd.idle();
    let mut all = vec![Spent::default(); operations.len()];
    for _ in 0..batches {
        for ((_, operate), all) in operations.iter().zip(&mut all) {
            sleep(REST);
            all.add(operate(crowd)?);
        }
    }
    Ok(all.into_iter().map(|spent| spent.less(idle).cpu / spent.operations as f64).collect())
}

/// `samples`: microseconds by operation, number and round.
fn report(title: String, operations: &[(&str, Operation)], samples: &[Vec<Vec<f64>>]) -> Report {
    let head: Vec<String> = ["server us".to_owned()]
        .into_iter()
        .chain(NUMBERS.map(|n| format!("n = {}", si(n as f64))))
        .collect();
    let mut table = Table::new(&title, &head.iter().map(String::as_str).collect::<Vec<_>>());
    let mut lines = Vec::new();
    for ((operation, _), samples) in operations.iter().zip(samples) {
        let middles: Vec<f64> = samples.iter().map(|rounds| median(rounds)).collect();
        let cells = middles.iter().map(|us| format!("{us:.2}"));
        table.row([(*operation).to_owned()].into_iter().chain(cells).collect());
        lines.push(json!({ "operation": operation, "server_us": middles }));
    }
    let notes = vec![format!("Medians of rounds, {BATCH} commands in one write; a page shows {PAGE}.")];
    Report { table, notes, json: json!({ "title": title, "numbers": NUMBERS, "operations": lines }) }
}

/// What the server spends on some of it.
type Operation = fn(&mut Crowd) -> Result<Spent>;

impl Kind {
    fn name(self) -> &'static str {
        match self {
            Kind::Sharers => "sharers",
            Kind::Permits => "permits",
            Kind::Queued => "queued waiters",
        }
    }

    /// In an order that leaves the crowds as large as they were. Each is of any member where it is of one.
    fn operations(self) -> &'static [(&'static str, Operation)] {
        match self {
            Kind::Sharers | Kind::Permits => &[
                ("ACQUIRE", Crowd::join),
                ("EXTEND", |crowd| crowd.each("DLOCK.EXTEND", &[TTL], is_one)),
                ("HOLDS", |crowd| crowd.each("DLOCK.HOLDS", &[], is_one)),
                ("INSPECT, a page", |crowd| crowd.look("DLOCK.INSPECT")),
                ("RELEASE", |crowd| crowd.leave("DLOCK.RELEASE")),
                ("disconnect", Crowd::disconnect),
            ],
            Kind::Queued => &[
                ("ACQUIRE that joins the queue", Crowd::join),
                ("ACQUIRE that keeps its position", Crowd::keep),
                ("WAITERS, a page", |crowd| crowd.look("DLOCK.WAITERS")),
                ("CANCEL", |crowd| crowd.leave("DLOCK.CANCEL")),
                ("RELEASE, and the next one's claim", Crowd::pass_on),
                ("disconnect", Crowd::disconnect),
            ],
        }
    }
}

fn is_one(value: &Value) -> bool {
    *value == Value::Int(1)
}

fn is_fence(value: &Value) -> bool {
    matches!(value, Value::Int(1..))
}
