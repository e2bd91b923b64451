//! How long a file of a million holds takes to load, compared with one of as many strings with a TTL.

use std::io::Result;
use std::time::Instant;

use serde_json::json;

use crate::growth::start;
use crate::many::{Many, Way};
use crate::run::{Report, Run};
use crate::table::{Ratios, Table, median, si};

/// How many holds are loaded.
const LOADED: u64 = 1_000_000;

pub fn run(run: &Run) -> Result<Vec<Report>> {
    let holds = run.scale(LOADED / 10, LOADED);
    let title = format!("Loading an RDB file of {} holds", si(holds as f64));
    let rounds = run.scale(3, 7);
    let mut contenders = [start(run, Way::Set, holds)?.0, start(run, Way::Dlock, holds)?.0];
    // Milliseconds by the clock, and of the server's processor time.
    let mut times = [Vec::new(), Vec::new()];
    let mut cpu = [Vec::new(), Vec::new()];
    for contender in &mut contenders {
        contender.conn.call(&["SAVE"])?;
    }
    for round in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", round + 1));
        for (nth, contender) in contenders.iter_mut().enumerate() {
            let took = load(contender).map_err(|why| contender.explain(&why))?;
            times[nth].push(took.0);
            cpu[nth].push(took.1);
        }
    }
    let head = ["", "ms", "x strings", "(min..max)", "server ms", "x strings", "(min..max)"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for (nth, name) in ["strings with a TTL", "dlock"].into_iter().enumerate() {
        let (ratio, of_cpu) = (Ratios::of(&times[nth], &times[0]), Ratios::of(&cpu[nth], &cpu[0]));
        table.row(vec![
            name.into(),
            format!("{:.0}", median(&times[nth])),
            ratio.middle(),
            ratio.spread(),
            format!("{:.0}", median(&cpu[nth])),
            of_cpu.middle(),
            of_cpu.spread(),
        ]);
        lines.push(json!({
            "contender": name, "ms": median(&times[nth]), "ratio": ratio.json(),
            "server_ms": median(&cpu[nth]), "server_ratio": of_cpu.json(),
        }));
    }
    let notes = vec!["Server ms: the processor time of its main thread.".to_owned()];
    Ok(vec![run.done(Report { table, notes, json: json!({ "title": title, "contenders": lines }) })])
}

/// Empties the server and loads its file.
fn load(many: &mut Many) -> Result<(f64, f64)> {
    many.conn.call(&["FLUSHALL", "SYNC"])?;
    let (start, cpu) = (Instant::now(), many.server.cpu());
    many.conn.call(&["DEBUG", "RELOAD", "NOSAVE"])?;
    let cpu = many.server.cpu().zip(cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
    Ok((start.elapsed().as_secs_f64() * 1e3, cpu * 1e3))
}
