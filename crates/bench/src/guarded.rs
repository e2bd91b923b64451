//! What a guarded write costs, compared with the same write alone and with a script that checks the owner.

use std::io::Result;
use std::time::Instant;

use serde_json::json;

use crate::contenders::{TOKEN, TTL};
use crate::resp::{Command, Conn, Expect, KEY};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, median};

const LOCK: &str = "lock";
/// The lock of the script's way: a string with the owner's token.
const STRING: &str = "string";
const GATE: &str = "gate";
const VALUE: &str = "kJ3xTq9Zb2VdR7wLm0sNfYhUaE4";

/// KEYS: lock, key. ARGV: token, value.
const COMPARE_AND_SET: &str = "\
if redis.call('get', KEYS[1]) == ARGV[1] then
  return redis.call('set', KEYS[2], ARGV[2])
end
return redis.error_reply('not held')";

/// How many keys are written, again and again.
const KEYS: u64 = 1_000;

/// Microseconds per write, in each round: the server's processor time where 32 go together, and the time
/// until the answer where each goes alone.
type Sample = [f64; 2];

/// Measures all in turns, on one server.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = "Guarded writes";
    let (rounds, writes) = run.scale((6, 10_000), (30, 20_000));
    let server = run.program.start(true, &[])?;
    let mut conn = server.connect()?;
    conn.call(&["DLOCK.ACQUIRE", LOCK, TOKEN, TTL])?;
    conn.call(&["SET", STRING, TOKEN])?;
    let script = conn.call(&["SCRIPT", "LOAD", COMPARE_AND_SET])?.text();
    let set: &[&str] = &["SET", KEY, VALUE];
    let contenders = [
        ("SET", set.to_vec()),
        ("dlock GUARD, SET", [&["DLOCK.GUARD", LOCK, TOKEN], set].concat()),
        ("dlock FENCED, SET", [&["DLOCK.FENCED", GATE, "1"], set].concat()),
        ("script that compares the owner, SET", vec!["EVALSHA", &script, "2", STRING, KEY, TOKEN, VALUE]),
    ];
    let mut samples: Vec<(&str, Vec<Sample>)> = contenders.iter().map(|(name, _)| (*name, vec![])).collect();
    for at in run.turns(title, rounds, contenders.len()) {
        let (name, command) = &contenders[at];
        conn.call(&["DLOCK.EXTEND", LOCK, TOKEN, TTL])?;
        let sample = sample(&server, &mut conn, &Command::new(command), writes);
        samples[at].1.push(sample.map_err(|why| server.explain(name, &why))?);
    }
    Ok(vec![run.done(report(title, &samples))])
}

fn sample(server: &Server, conn: &mut Conn, command: &Command, writes: u64) -> Result<Sample> {
    let cpu = server.cpu();
    write(conn, command, writes, 32)?;
    let cpu = server.cpu().zip(cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
    let (start, alone) = (Instant::now(), writes / 10);
    write(conn, command, alone, 1)?;
    Ok([cpu / writes as f64, start.elapsed().as_secs_f64() / alone as f64].map(|seconds| seconds * 1e6))
}

fn write(conn: &mut Conn, command: &Command, writes: u64, depth: u64) -> Result<()> {
    let mut batch = Vec::new();
    for first in (0..writes).step_by(depth as usize) {
        batch.clear();
        let numbers = first..writes.min(first + depth);
        numbers.clone().for_each(|number| command.push(&mut batch, number % KEYS));
        conn.send(&batch)?;
        for _ in numbers {
            Expect::Line("+OK").check(conn.line()?)?;
        }
    }
    Ok(())
}

/// Ratios are of rounds.
fn report(title: &str, samples: &[(&str, Vec<Sample>)]) -> Report {
    let column = |rounds: &[Sample], which: usize| rounds.iter().map(|of| of[which]).collect::<Vec<_>>();
    let head = ["", "server us", "x SET", "(min..max)", "us until the answer", "x SET", "(min..max)"];
    let mut table = Table::new(title, &head);
    let mut lines = Vec::new();
    for (name, rounds) in samples {
        let [cpu, alone] = [0, 1].map(|which| {
            let of = column(rounds, which);
            (median(&of), Ratios::of(&of, &column(&samples[0].1, which)))
        });
        let mut cells = vec![(*name).to_owned()];
        for (us, ratio) in [&cpu, &alone] {
            cells.extend([format!("{us:.2}"), ratio.middle(), ratio.spread()]);
        }
        table.row(cells);
        lines.push(json!({
            "contender": name, "server_us": cpu.0, "server_ratio": cpu.1.json(),
            "us_until_the_answer": alone.0, "ratio_until_the_answer": alone.1.json(),
        }));
    }
    let notes = vec!["Server: its processor time, pipeline depth 32. Until the answer: depth 1.".to_owned()];
    Report { table, notes, json: json!({ "title": title, "contenders": lines }) }
}
