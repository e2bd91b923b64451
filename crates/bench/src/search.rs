//! What the search for a deadlock costs the server before it lets somebody wait.

use std::io::Result;

use serde_json::json;

use crate::resp::strange;
use crate::run::{Report, Run};
use crate::table::{Table, median, percentile, time};

/// A row of locks, each with so many holders, who all wait for the next one.
struct Row {
    what: &'static str,
    locks: usize,
    holders: usize,
    /// Whether who asks for the first lock holds the last one.
    is_cycle: bool,
    /// Slashes in the name of each owner.
    slashes: Option<usize>,
}

const ROWS: [Row; 5] = [
    Row { what: "nobody waits for anything", locks: 0, holders: 1, is_cycle: false, slashes: None },
    Row { what: "a cycle over 60 locks, of 3 holders", locks: 60, holders: 3, is_cycle: true, slashes: None },
    Row { what: "a cycle over 100 locks", locks: 100, holders: 1, is_cycle: true, slashes: None },
    Row { what: "no end in sight", locks: 3_000, holders: 1, is_cycle: false, slashes: None },
    Row {
        what: "the same, owners of 60 slashes",
        locks: 3_000,
        holders: 1,
        is_cycle: false,
        slashes: Some(60),
    },
];

/// Arguments: locks, holders, the start of the names of owners. Who holds one lock waits for the next.
const FILL: &str = "
local function owned(lock, holder, ...)
    if ARGV[3] == '' then return ... end
    return 'OWNER', ARGV[3] .. lock .. ':' .. holder, ...
end
for lock = 0, ARGV[1] - 1 do
    for holder = 1, ARGV[2] do
        local token = lock .. ':' .. holder
        redis.call('DLOCK.ACQUIRE', 'r' .. lock, token, 'MAX', 'SHARED', owned(lock, holder))
    end
end
redis.call('DLOCK.ACQUIRE', 'r' .. ARGV[1], 'last', 'MAX')
for lock = 0, ARGV[1] - 1 do
    for holder = 1, ARGV[2] do
        local token = lock .. ':' .. holder
        redis.call('DLOCK.ACQUIRE', 'r' .. lock + 1, token, 'MAX', owned(lock, holder, 'QUEUE', '86400000'))
    end
end";

/// Asks many times at the head of each row.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = "The search for a deadlock, of one who is about to wait".to_owned();
    let tries = run.scale(50, 500);
    let mut table = Table::new(&title, &["what is ahead", "answer", "server p50", "p99"]);
    let mut lines = Vec::new();
    for row in ROWS {
        run.progress(&format!("{title}: {}", row.what));
        let (answer, us) = ask(run, &row, tries)?;
        let [p50, p99] = [median(&us), percentile(&us, 0.99)];
        table.row(vec![row.what.to_owned(), answer.clone(), time(p50), time(p99)]);
        lines.push(json!({ "what": row.what, "answer": answer, "server_us": us }));
    }
    let json = json!({ "title": title, "figures": lines });
    Ok(vec![run.done(Report { table, notes: Vec::new(), json })])
}

/// The answer, and the microseconds that the server worked on each.
fn ask(run: &Run, row: &Row, tries: usize) -> Result<(String, Vec<f64>)> {
    let server = run.program.start(true, &[])?;
    let mut conn = server.connect()?;
    let owner = row.slashes.map_or_else(String::new, |slashes| "o/".repeat(slashes));
    conn.call(&["EVAL", FILL, "0", &row.locks.to_string(), &row.holders.to_string(), &owner])?;
    let token = if row.is_cycle { "last" } else { "newcomer" };
    let mut said = String::new();
    let mut us = Vec::new();
    for _ in 0..tries {
        conn.call(&["CONFIG", "RESETSTAT"])?;
        let answer = conn.call(&["DLOCK.ACQUIRE", "r0", token, "MAX", "QUEUE", "600000"]);
        said = match answer {
            Ok(_) => "queued".to_owned(),
            Err(why) if why.to_string().contains("DEADLOCK") => "DEADLOCK".to_owned(),
            Err(why) => return Err(why),
        };
        let spent = server.info("cmdstat_DLOCK.ACQUIRE");
        let worked = spent.split(',').find_map(|field| field.strip_prefix("usec=")?.parse().ok());
        us.push(worked.ok_or_else(|| strange(&spent))?);
        conn.call(&["DLOCK.CANCEL", "r0", token])?;
    }
    Ok((said, us))
}
