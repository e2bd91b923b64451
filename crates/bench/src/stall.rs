//! Longest pause of a server while 100,000 of a million holds expire at the same moment.
//!
//! Two figures show the pause. The first is the longest ping of a client, compared with pings while nothing
//! expires and with pings of an empty server. The second is the longest turn (one round) of the server's
//! event loop in processor time, which a busy machine does not lengthen.

use std::fs::{self, OpenOptions};
use std::io::Result;
use std::os::unix::fs::FileExt;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_testkit::Folder;
use serde_json::json;

use crate::holds::{HoldKind, Holds};
use crate::resp::{Command, Conn, Expect};
use crate::run::{Report, Run};
use crate::server::{Program, Server, thread_processor_wait};
use crate::table::{Table, median, percentile, si, time};

const ALL: [HoldKind; 2] = [HoldKind::Dlock, HoldKind::Set];

/// Total number of holds.
const HOLDS: u64 = 1_000_000;
/// Number of holds that expire at the same moment.
const EXPIRING: u64 = 100_000;

/// Lease of the holds that expire: long enough to acquire all of them.
const LEASE: Duration = Duration::from_secs(3);

/// Duration of one series of pings.
const WINDOW: Duration = Duration::from_secs(2);

/// Time from the first ping to the end of the leases that expire.
const PINGS_BEFORE_END: Duration = Duration::from_millis(200);

const PING_EVERY: Duration = Duration::from_millis(1);

const NOTES: [&str; 3] = [
    "Own: without the time in which other processes used the processor while the server or the client was ready to run.",
    "Turn: one round of the server's event loop, by the processor time of its main thread. The server answers no client \
     meanwhile.",
    "Left: expired, but still present after the pings. The server's own expiry samples keys, and stops once few of the \
     sampled keys are expired.",
];

/// Measures the contenders alternately, one round each.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = format!("A ping every millisecond while {EXPIRING} of {HOLDS} holds expire together");
    let rounds = run.quick_or_full(3, 8);
    // This server starts without the module.
    let empty = run.program.start(false, &[])?;
    let mut empty_conn = empty.connect()?;
    let mut noise = Row::new("an empty server: the machine's noise".into());
    let mut contenders = Vec::new();
    for kind in ALL.into_iter().filter(|kind| run.wants(kind.name())) {
        run.progress(&format!("{title}: {} acquires the long holds", kind.name()));
        contenders.push(Contender::start(run, kind)?);
    }
    for nth in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", nth + 1));
        for contender in &mut contenders {
            noise.rounds.push(ping_for(&empty, &mut empty_conn, WINDOW)?);
            contender.round().map_err(|why| contender.holds.explain(&why))?;
        }
    }
    Ok(vec![run.print(report(title, &noise, &contenders))])
}

/// Duration of a ping in microseconds.
#[derive(Clone, Copy)]
struct Ping {
    total: f64,
    /// Without the time in which the server or the client was ready to run but had no processor.
    own: f64,
}

/// The figures of one row of the table.
struct Row {
    name: String,
    /// The pings of each round.
    rounds: Vec<Vec<Ping>>,
    /// The longest turn of each round. Empty if it was not measured.
    turns: Vec<LongestTurn>,
}

impl Row {
    fn new(name: String) -> Row {
        Row { name, rounds: Vec::new(), turns: Vec::new() }
    }

    fn push(&mut self, series: Series) {
        self.rounds.push(series.pings);
        self.turns.push(series.turn);
    }
}

/// One contender's server with its holds, and its figures.
struct Contender {
    holds: Holds,
    turns: TurnMeter,
    calm: Row,
    expiring: Row,
    /// Microseconds of processor time per expired hold, one figure per round.
    cpu_per_hold: Vec<f64>,
    /// Expired holds that were still present after the pings, one figure per round.
    left: Vec<f64>,
}

/// The pings of one [`WINDOW`].
struct Series {
    pings: Vec<Ping>,
    /// Microseconds of the server's processor time.
    cpu: f64,
    turn: LongestTurn,
}

impl Contender {
    fn start(run: &Run, kind: HoldKind) -> Result<Contender> {
        let (program, turns) = TurnMeter::preload(&run.program)?;
        let mut holds = Holds::start(&program, kind)?;
        holds.acquire_long(0..HOLDS - EXPIRING)?;
        Ok(Contender {
            holds,
            turns,
            calm: Row::new(format!("{}, while nothing expires", kind.name())),
            expiring: Row::new(format!("{}, while they expire", kind.name())),
            cpu_per_hold: Vec::new(),
            left: Vec::new(),
        })
    }

    /// Pings while nothing expires, then while the holds expire.
    fn round(&mut self) -> Result<()> {
        let calm = self.series()?;
        let due = Instant::now() + LEASE;
        self.holds.acquire_until(HOLDS - EXPIRING..HOLDS, due)?;
        sleep((due - PINGS_BEFORE_END).saturating_duration_since(Instant::now()));
        let expiring = self.series()?;
        let left = self.holds.keys_beyond(HOLDS - EXPIRING)?;
        if left > 0 {
            self.holds.remove(HOLDS - EXPIRING..HOLDS)?;
        }
        self.cpu_per_hold.push((expiring.cpu - calm.cpu) / (EXPIRING - left) as f64);
        self.calm.push(calm);
        self.expiring.push(expiring);
        self.left.push(left as f64);
        Ok(())
    }

    fn series(&mut self) -> Result<Series> {
        let Holds { server, conn, .. } = &mut self.holds;
        // Resets the figures, so that they count only the turns of this series.
        self.turns.take()?;
        let before = server.cpu();
        let pings = ping_for(server, conn, WINDOW)?;
        let cpu = server.cpu().zip(before).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        Ok(Series { pings, cpu: cpu * 1e6, turn: self.turns.take()? })
    }
}

/// Pings for `time`: every [`PING_EVERY`], but not before the previous ping is answered.
fn ping_for(server: &Server, conn: &mut Conn, time: Duration) -> Result<Vec<Ping>> {
    let start = Instant::now();
    let mut pings = Vec::new();
    while start.elapsed() < time {
        pings.push(ping(server, conn)?);
        let next = PING_EVERY * pings.len() as u32;
        sleep(next.saturating_sub(start.elapsed()));
    }
    Ok(pings)
}

fn ping(server: &Server, conn: &mut Conn) -> Result<Ping> {
    let waited_for_processor = || server.processor_wait() + thread_processor_wait();
    let (before, start) = (waited_for_processor(), Instant::now());
    conn.send(&Command::new(&["PING"]).on_key(0))?;
    Expect::Line("+PONG").check(conn.line()?)?;
    let total = start.elapsed();
    let own = total.saturating_sub(waited_for_processor() - before);
    Ok(Ping { total: total.as_secs_f64() * 1e6, own: own.as_secs_f64() * 1e6 })
}

/// Measures the turns of a server's event loop, with `longest_turn.c` preloaded into the server.
struct TurnMeter(Folder);

/// The longest turn since the previous reading.
struct LongestTurn {
    us: f64,
    /// Number of turns above a millisecond.
    over_a_ms: f64,
}

impl TurnMeter {
    /// Returns the program with the meter preloaded.
    fn preload(program: &Program) -> Result<(Program, TurnMeter)> {
        let meter = TurnMeter(Folder::fresh());
        fs::write(meter.file(), [0; 16])?;
        Ok((program.preloading("crates/bench/src/longest_turn.c", &[("TURNS", &meter.file())]), meter))
    }

    /// Reads the figures and resets them to zero.
    fn take(&self) -> Result<LongestTurn> {
        // The file is overwritten in place, because the server has mapped it.
        let file = OpenOptions::new().read(true).write(true).open(self.file())?;
        let mut figures = [[0; 8]; 2];
        file.read_exact_at(figures.as_flattened_mut(), 0)?;
        file.write_all_at(&[0; 16], 0)?;
        let [longest, over_a_ms] = figures.map(|figure| u64::from_ne_bytes(figure) as f64);
        Ok(LongestTurn { us: longest / 1e3, over_a_ms })
    }

    fn file(&self) -> PathBuf {
        self.0.path().join("turns")
    }
}

/// Takes the longest ping of each round, and reports the median over the rounds. The longest ping of all
/// rounds would mostly show the machine's noise.
fn report(title: String, noise: &Row, contenders: &[Contender]) -> Report {
    let head = [
        "",
        "p50",
        "p99",
        "longest per round",
        "(min..max)",
        "own",
        "(min..max)",
        "longest turn",
        "(min..max)",
        "over 1 ms",
        "left",
    ];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    let rows = contenders
        .iter()
        .flat_map(|contender| [(&contender.calm, None), (&contender.expiring, Some(contender))]);
    for (row, contender) in [(noise, None)].into_iter().chain(rows) {
        let all: Vec<f64> = row.rounds.iter().flatten().map(|ping| ping.total).collect();
        let median_min_max = |each: &[f64]| [median(each), percentile(each, 0.0), percentile(each, 1.0)];
        let longest = |field: fn(&Ping) -> f64| -> [f64; 3] {
            let of_round = |round: &Vec<Ping>| round.iter().map(field).fold(f64::NAN, f64::max);
            median_min_max(&row.rounds.iter().map(of_round).collect::<Vec<_>>())
        };
        let turn = (!row.turns.is_empty()).then(|| {
            let turns: Vec<f64> = row.turns.iter().map(|turn| turn.us).collect();
            (median_min_max(&turns), row.turns.iter().map(|turn| turn.over_a_ms).sum::<f64>())
        });
        let (total, own) = (longest(|ping| ping.total), longest(|ping| ping.own));
        let left = contender.map(|contender| median(&contender.left));
        // The processor time per hold is meaningless if most of the holds have not expired.
        let measured = contender.filter(|_| left < Some(EXPIRING as f64 / 2.0));
        let cpu = measured.map(|contender| median(&contender.cpu_per_hold));
        let spread = |[_, min, max]: [f64; 3]| format!("{}..{}", time(min), time(max));
        table.row(vec![
            row.name.clone(),
            time(median(&all)),
            time(percentile(&all, 0.99)),
            time(total[0]),
            spread(total),
            time(own[0]),
            spread(own),
            turn.map_or(String::new(), |(turn, _)| time(turn[0])),
            turn.map_or(String::new(), |(turn, _)| spread(turn)),
            turn.map_or(String::new(), |(_, over)| si(over)),
            left.map_or(String::new(), si),
        ]);
        let json = |[median, min, max]: [f64; 3]| json!({ "median": median, "min": min, "max": max });
        lines.push(json!({
            "what": row.name, "p50_us": median(&all), "p99_us": percentile(&all, 0.99), "left": left,
            "longest_us": json(total), "longest_own_us": json(own), "server_us_per_hold": cpu,
            "longest_turn_us": turn.map(|(turn, _)| json(turn)), "turns_over_a_ms": turn.map(|(_, over)| over),
        }));
    }
    Report {
        table,
        notes: NOTES.map(str::to_owned).to_vec(),
        json: json!({ "title": title, "pings": lines }),
    }
}
