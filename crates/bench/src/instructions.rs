//! Instructions per pair (acquire and release) as callgrind counts them, and the misses of the instruction
//! cache that it simulates.
//!
//! These figures do not depend on the machine's load, so a change of a few percent shows. The instructions
//! are compared with those recorded in `crates/bench/instructions.json`.

use std::collections::BTreeMap;
use std::fs;
use std::io::{Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use dlock_testkit::encode;
use serde_json::json;

use crate::contenders::{BATCH, TOKEN, Way};
use crate::resp::unexpected;
use crate::run::{Report, Run};
use crate::table::Table;

/// The contenders: name, commands, and options of the server.
const COUNTED: [(&str, Way, &[&str]); 5] = [
    ("dlock", Way::Dlock, &[]),
    ("SET NX PX + DEL", Way::SetDel, &[]),
    ("SET NX PX + compare-and-delete script", Way::SetScript, &[]),
    ("dlock, append only file", Way::Dlock, AOF),
    ("SET NX PX + DEL, append only file", Way::SetDel, AOF),
];
const AOF: &[&str] = &["appendonly yes", "appendfsync no"];

/// Number of pairs in a first run, and the additional pairs in a second one. The difference between the
/// counts of the two runs leaves out the start and the end of a server.
const FEW: u64 = 50 * BATCH;
const ADDITIONAL: u64 = 500 * BATCH;

/// The caches that callgrind simulates, on every machine the same: those of a processor of 2024, with 32 KB
/// for instructions.
const CACHES: [&str; 3] = ["--cache-sim=yes", "--I1=32768,8,64", "--D1=49152,12,64"];

/// The largest accepted ratio to the recorded figure. The server's periodic work varies between runs.
const TOLERANCE: f64 = 1.02;

/// Recorded instructions by server version and contender.
type Recorded = BTreeMap<String, BTreeMap<String, u64>>;

fn record_file() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("instructions.json")
}

/// Counts the instructions and compares them with the recorded figures, which `keep` replaces.
pub fn run(run: &Run, keep: bool) -> Result<Vec<Report>> {
    // The depth is that of the pipeline, [`BATCH`].
    let title = "Instructions per pair, depth 32";
    if Command::new("valgrind").arg("--version").stdout(Stdio::null()).status().is_err() {
        run.say(&format!("{title}: not measured: valgrind is not installed (apt-get install valgrind)\n"));
        return Ok(Vec::new());
    }
    let mut recorded = read_recorded()?;
    let known = recorded.entry(run.program.version()).or_default();
    let mut counted = Vec::new();
    for (name, way, options) in COUNTED.into_iter().filter(|(name, ..)| run.wants(name)) {
        run.progress(&format!("{title}: {name}"));
        let few = count(run, way, options, FEW)?;
        let more = count(run, way, options, FEW + ADDITIONAL)?;
        counted.push((name, std::array::from_fn(|at| (more[at] - few[at]) as f64 / ADDITIONAL as f64)));
    }
    let report = report(title, &counted, known);
    if keep {
        known.extend(
            counted.iter().map(|(name, [instructions, _])| ((*name).to_owned(), *instructions as u64)),
        );
        fs::write(record_file(), format!("{:#}\n", json!(recorded)))?;
    }
    Ok(vec![run.print(report)])
}

fn read_recorded() -> Result<Recorded> {
    let text = fs::read_to_string(record_file())?;
    serde_json::from_str(&text).map_err(|why| Error::other(format!("{}: {why}", record_file().display())))
}

/// Returns the instructions of a whole server that has run this many pairs, and their cache misses.
fn count(run: &Run, way: Way, options: &[&str], pairs: u64) -> Result<[u64; 2]> {
    let file = std::env::temp_dir().join(format!("dlock-bench-{}.callgrind", std::process::id()));
    let out = format!("--callgrind-out-file={}", file.display());
    let mut tool = vec!["valgrind", "--quiet", "--trace-children=yes", "--tool=callgrind", &out];
    tool.extend(CACHES);
    // The server's periodic work runs once a second, which is the lowest rate.
    let mut conf = vec!["hz 1"];
    conf.extend(options);
    let server = run.program.start_under(&tool, way.needs_module(), &conf)?;
    let mut conn = server.connect()?;
    let pair = way
        .prepare(&mut conn, TOKEN)?
        .ok_or_else(|| unexpected("this server lacks a contender's command"))?;
    pair.run_on(&mut conn, 0..pairs).map_err(|why| server.explain(way.name(), &why))?;
    // callgrind writes its figures when the server ends in an orderly way.
    conn.send(&encode(&["SHUTDOWN", "NOSAVE"]))?;
    server.expect_exit();
    let written = fs::read_to_string(&file)?;
    fs::remove_file(&file)?;
    let line = |begin: &str| written.lines().find_map(|line| line.strip_prefix(begin));
    let events = line("events: ").unwrap_or_default().split_whitespace();
    let totals = line("summary: ").or_else(|| line("totals: ")).unwrap_or_default().split_whitespace();
    let totals: BTreeMap<_, _> = events.zip(totals.map(str::parse)).collect();
    match [totals.get("Ir"), totals.get("I1mr")] {
        [Some(Ok(instructions)), Some(Ok(misses))] => Ok([*instructions, *misses]),
        _ => Err(Error::other("callgrind wrote no total")),
    }
}

fn report(title: &str, counted: &[(&str, [f64; 2])], known: &BTreeMap<String, u64>) -> Report {
    let mut table = Table::new(title, &["", "instructions", "recorded", "ratio", "instruction cache misses"]);
    let (mut lines, mut notes) = (Vec::new(), Vec::new());
    for (name, [figure, misses]) in counted {
        let recorded = known.get(*name).copied();
        let ratio = recorded.map(|recorded| *figure / recorded as f64);
        table.row(vec![
            (*name).into(),
            format!("{figure:.0}"),
            recorded.map_or("none".into(), |recorded| recorded.to_string()),
            ratio.map_or(String::new(), |ratio| format!("{ratio:.3}")),
            format!("{misses:.0}"),
        ]);
        if ratio > Some(TOLERANCE) {
            notes.push(format!(
                "SLOWER THAN RECORDED: {name}. Find out why, or record the new figure with --keep."
            ));
        }
        lines.push(json!({
            "contender": name, "instructions": *figure as u64, "recorded": recorded, "misses": *misses as u64
        }));
    }
    Report { table, notes, json: json!({ "title": title, "contenders": lines }) }
}
