//! How long the server stalls while very many holds expire at the same moment: the longest wait of a client
//! that pings, compared with the same client on the same server while nothing expires, and on an empty one;
//! and the longest turn of the server's event loop by its processor time, which a busy machine does not
//! lengthen.

use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::many::{HOLDS, Many, Way};
use crate::ping::{OWN, Took, ping_for};
use crate::run::{Report, Run};
use crate::table::{Table, median, percentile, si, time};
use crate::turns::{Longest, TURN, Turns};

const ALL: [Way; 2] = [Way::Dlock, Way::Set];

/// How many expire together.
const DUE: u64 = 100_000;

/// How long before that moment they are acquired, with time to spare.
const AHEAD: Duration = Duration::from_secs(3);

/// How long the client pings, starting a little before that moment.
const WINDOW: Duration = Duration::from_secs(2);
const BEFORE: Duration = Duration::from_millis(200);

/// Explains the column of that name.
const LEFT: &str = "Left: expired, and still there after the pings. The server's own expiry samples keys, and stops once few of \
    the sampled ones are expired.";

/// Pings of one kind, a list per round.
struct Row {
    name: String,
    rounds: Vec<Vec<Took>>,
    turns: Vec<Longest>,
}

/// One contender's server with its holds, and what was measured there.
struct Contender {
    many: Many,
    turns: Turns,
    calm: Row,
    ending: Row,
    /// Microseconds of processor time the server took to end a hold, one figure per round.
    cpu: Vec<f64>,
    /// How many expired holds were still there after the pings, one figure per round.
    left: Vec<f64>,
}

/// Measures all contenders in turns.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = format!("A ping every millisecond while {DUE} of {HOLDS} holds expire together");
    let rounds = run.scale(3, 8);
    let empty = run.program.start(false, &[])?;
    let mut on_empty = empty.connect()?;
    let mut noise = Row::new("an empty server: the machine's noise".into());
    let mut contenders = Vec::new();
    for way in ALL.into_iter().filter(|way| run.wants(way.name())) {
        run.progress(&format!("{title}: {} acquires the others", way.name()));
        contenders.push(Contender::start(run, way)?);
    }
    for nth in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", nth + 1));
        for contender in &mut contenders {
            noise.rounds.push(ping_for(&empty, &mut on_empty, WINDOW)?);
            contender.round().map_err(|why| contender.many.explain(&why))?;
        }
    }
    Ok(vec![run.done(report(title, &noise, &contenders))])
}

impl Row {
    fn new(name: String) -> Row {
        Row { name, rounds: Vec::new(), turns: Vec::new() }
    }

    fn push(&mut self, (pings, _, turn): (Vec<Took>, f64, Longest)) {
        self.rounds.push(pings);
        self.turns.push(turn);
    }
}

impl Contender {
    fn start(run: &Run, way: Way) -> Result<Contender> {
        let (program, turns) = Turns::of(&run.program)?;
        Ok(Contender {
            many: Many::start_by(&program, way, HOLDS - DUE)?,
            turns,
            calm: Row::new(format!("{}, while nothing expires", way.name())),
            ending: Row::new(format!("{}, while they expire", way.name())),
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
        let left = self.many.more_than(HOLDS - DUE)?;
        if left > 0 {
            self.many.remove(HOLDS - DUE..HOLDS)?;
        }
        self.cpu.push((ending.1 - calm.1) / (DUE - left) as f64);
        self.calm.push(calm);
        self.ending.push(ending);
        self.left.push(left as f64);
        Ok(())
    }

    /// Microseconds of each ping, and of the server's processor time in all; its longest turn.
    fn ping(&mut self) -> Result<(Vec<Took>, f64, Longest)> {
        let Many { server, conn, .. } = &mut self.many;
        self.turns.take()?;
        let cpu = server.cpu();
        let pings = ping_for(server, conn, WINDOW)?;
        let cpu = server.cpu().zip(cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        Ok((pings, cpu * 1e6, self.turns.take()?))
    }
}

/// The longest ping of each round counts; the longest of all rounds would be the machine's noise.
fn report(title: String, noise: &Row, contenders: &[Contender]) -> Report {
    let head = [
        "",
        "p50",
        "p99",
        "longest per round",
        "(min..max)",
        "of its own",
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
        .flat_map(|contender| [(&contender.calm, None), (&contender.ending, Some(contender))]);
    for (row, contender) in [(noise, None)].into_iter().chain(rows) {
        let all: Vec<f64> = row.rounds.iter().flatten().map(|ping| ping.all).collect();
        let middle = |each: &[f64]| [median(each), percentile(each, 0.0), percentile(each, 1.0)];
        let longest = |field: fn(&Took) -> f64| -> [f64; 3] {
            let of_round = |round: &Vec<Took>| round.iter().map(field).fold(f64::NAN, f64::max);
            middle(&row.rounds.iter().map(of_round).collect::<Vec<_>>())
        };
        // The empty server's are not counted.
        let turn = (!row.turns.is_empty()).then(|| {
            let turns: Vec<f64> = row.turns.iter().map(|turn| turn.us).collect();
            (middle(&turns), row.turns.iter().map(|turn| turn.over_a_ms).sum::<f64>())
        });
        let (taken, own) = (longest(|ping| ping.all), longest(|ping| ping.own));
        let left = contender.map(|contender| median(&contender.left));
        // Not where most are left: that would divide next to nothing by next to nothing.
        let cpu = contender.filter(|_| left < Some(DUE as f64 / 2.0)).map(|contender| median(&contender.cpu));
        let spread = |[_, least, most]: [f64; 3]| format!("{}..{}", time(least), time(most));
        table.row(vec![
            row.name.clone(),
            time(median(&all)),
            time(percentile(&all, 0.99)),
            time(taken[0]),
            spread(taken),
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
            "longest_us": json(taken), "longest_own_us": json(own), "server_us_per_hold": cpu,
            "longest_turn_us": turn.map(|(turn, _)| json(turn)), "turns_over_a_ms": turn.map(|(_, over)| over),
        }));
    }
    let notes = vec![OWN.to_owned(), TURN.to_owned(), LEFT.to_owned()];
    Report { table, notes, json: json!({ "title": title, "pings": lines }) }
}
