//! How long the server answers nobody while very many holds end at the same moment: the longest that a client which
//! pings has to wait, beside the same client on the same server while nothing ends, and on an empty one.

use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::many::{HOLDS, Many, Way};
use crate::ping::ping_for;
use crate::run::{Report, Run};
use crate::table::{Table, median, percentile, si, time};

const ALL: [Way; 2] = [Way::Dlock, Way::Set];

/// Those that end together.
const DUE: u64 = 100_000;

/// They are taken before that moment, with time to spare.
const AHEAD: Duration = Duration::from_secs(3);

/// How long is pinged, from a little before that moment.
const WINDOW: Duration = Duration::from_secs(2);
const BEFORE: Duration = Duration::from_millis(200);

/// Pings of one kind, a list a round.
struct Row {
    name: String,
    rounds: Vec<Vec<f64>>,
}

/// A server with its holds, and what was measured there.
struct Lane {
    many: Many,
    calm: Row,
    ending: Row,
    /// Microseconds of processor time the server took to end a hold, a figure a round.
    cpu: Vec<f64>,
    /// How many that were over were still there after the pings, a figure a round.
    left: Vec<f64>,
}

/// Measures all in turns.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = format!("A ping each millisecond while {DUE} of {HOLDS} holds end together");
    let rounds = run.scale(3, 8);
    let empty = run.program.start(false, &[])?;
    let mut on_empty = empty.connect()?;
    let mut noise = Row::new("an empty server: what the machine does".into());
    let mut lanes = Vec::new();
    for way in ALL.into_iter().filter(|way| run.wants(way.name())) {
        run.progress(&format!("{title}: {} takes the others", way.name()));
        lanes.push(Lane::start(run, way)?);
    }
    for nth in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", nth + 1));
        for lane in &mut lanes {
            noise.rounds.push(ping_for(&mut on_empty, WINDOW)?);
            lane.round().map_err(|why| lane.many.explain(&why))?;
        }
    }
    Ok(vec![run.done(report(title, &noise, &lanes))])
}

impl Row {
    fn new(name: String) -> Row {
        Row { name, rounds: Vec::new() }
    }
}

impl Lane {
    fn start(run: &Run, way: Way) -> Result<Lane> {
        Ok(Lane {
            many: Many::start(run, way, HOLDS - DUE)?,
            calm: Row::new(format!("{}, while nothing ends", way.name())),
            ending: Row::new(format!("{}, while they end", way.name())),
            cpu: Vec::new(),
            left: Vec::new(),
        })
    }

    fn round(&mut self) -> Result<()> {
        let calm = self.ping()?;
        let due = Instant::now() + AHEAD;
        self.many.take(HOLDS - DUE..HOLDS, due)?;
        sleep((due - BEFORE).saturating_duration_since(Instant::now()));
        let ending = self.ping()?;
        let left = self.many.besides(HOLDS - DUE)?;
        if left > 0 {
            self.many.remove(HOLDS - DUE..HOLDS)?;
        }
        self.calm.rounds.push(calm.0);
        self.ending.rounds.push(ending.0);
        self.cpu.push((ending.1 - calm.1) / (DUE - left) as f64);
        self.left.push(left as f64);
        Ok(())
    }

    /// Microseconds of each ping, and of the server's processor time meanwhile.
    fn ping(&mut self) -> Result<(Vec<f64>, f64)> {
        let Many { server, conn, .. } = &mut self.many;
        let cpu = server.cpu();
        let pings = ping_for(conn, WINDOW)?;
        let cpu = server.cpu().zip(cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        Ok((pings, cpu * 1e6))
    }
}

/// The longest ping of each round counts: of all rounds together it would be the machine's.
fn report(title: String, noise: &Row, lanes: &[Lane]) -> Report {
    let head = ["", "p50", "p99", "longest a round", "(min..max)", "server us/hold", "left"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    let rows = lanes.iter().flat_map(|lane| [(&lane.calm, None), (&lane.ending, Some(lane))]);
    for (row, ended) in [(noise, None)].into_iter().chain(rows) {
        let cpu = ended.map(|lane| median(&lane.cpu));
        let left = ended.map(|lane| median(&lane.left));
        let all: Vec<f64> = row.rounds.iter().flatten().copied().collect();
        let longest: Vec<f64> = row.rounds.iter().map(|round| percentile(round, 1.0)).collect();
        let (p50, p99) = (median(&all), percentile(&all, 0.99));
        let (least, most) = (percentile(&longest, 0.0), percentile(&longest, 1.0));
        table.row(vec![
            row.name.clone(),
            time(p50),
            time(p99),
            time(median(&longest)),
            format!("{}..{}", time(least), time(most)),
            cpu.map_or(String::new(), |cpu| format!("{cpu:.2}")),
            left.map_or(String::new(), si),
        ]);
        lines.push(json!({
            "what": row.name, "p50_us": p50, "p99_us": p99, "server_us_per_hold": cpu, "left": left,
            "longest_us": { "median": median(&longest), "min": least, "max": most },
        }));
    }
    Report { table, notes: Vec::new(), json: json!({ "title": title, "pings": lines }) }
}
