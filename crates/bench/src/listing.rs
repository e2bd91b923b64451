//! What a walk over all locks costs (LIST) where they are few among very many other keys: the server's time
//! for the whole walk, and for its longest call.

use std::io::Result;

use serde_json::json;

use crate::resp::{Conn, strange};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Table, median, percentile, time};

const LOCKS: usize = 2_000;
const OTHERS: usize = 1_000_000;

/// In one script each, for they only have to be there.
const FILL: &str = "for n = 1, ARGV[1] do redis.call('SET', 'other:' .. n, n) end";
const LOCK: &str = "for n = 1, ARGV[1] do redis.call('DLOCK.ACQUIRE', 'lock:' .. n, 't', 'MAX') end";

/// Microseconds of one walk.
struct Walk {
    all: f64,
    longest: f64,
    calls: usize,
}

/// Walks several times.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = format!("A walk over {LOCKS} locks among {OTHERS} other keys");
    let rounds = run.scale(5, 20);
    run.progress(&format!("{title}: filling the server"));
    let server = run.program.start(true, &["slowlog-log-slower-than 0", "slowlog-max-len 100000"])?;
    let mut conn = server.connect()?;
    for (script, n) in [(FILL, OTHERS), (LOCK, LOCKS)] {
        conn.call(&["EVAL", script, "0", &n.to_string()])?;
    }
    let mut walks = Vec::new();
    for nth in 0..rounds {
        run.progress(&format!("{title}: walk {} of {rounds}", nth + 1));
        walks.push(walk(&server, &mut conn)?);
    }
    Ok(vec![run.done(report(title, &walks))])
}

fn walk(server: &Server, conn: &mut Conn) -> Result<Walk> {
    conn.call(&["CONFIG", "RESETSTAT"])?;
    conn.call(&["SLOWLOG", "RESET"])?;
    let (mut cursor, mut found, mut calls) = ("0".to_owned(), 0, 0);
    loop {
        let answer = conn.call(&["DLOCK.LIST", &cursor])?;
        let [next, locks] = answer.items() else { return Err(strange(&format!("{answer:?}"))) };
        (cursor, found, calls) = (next.text(), found + locks.items().len(), calls + 1);
        if cursor == "0" {
            break;
        }
    }
    if found != LOCKS {
        return Err(strange(&format!("{found} locks")));
    }
    let spent = server.info("cmdstat_DLOCK.LIST");
    let all = spent.split(',').find_map(|field| field.strip_prefix("usec=")?.parse().ok());
    let slow = conn.call(&["SLOWLOG", "GET", "-1"])?;
    let lists = slow.items().iter().filter(|entry| entry.items()[3].items()[0].text() == "DLOCK.LIST");
    let longest = lists.map(|entry| entry.items()[2].int() as f64).fold(0.0, f64::max);
    Ok(Walk { all: all.ok_or_else(|| strange(&spent))?, longest, calls })
}

fn report(title: String, walks: &[Walk]) -> Report {
    let mut table = Table::new(&title, &["server", "p50", "min", "max"]);
    let mut lines = Vec::new();
    for (what, of) in
        [("the whole walk", (|walk| walk.all) as fn(&Walk) -> f64), ("its longest call", |walk| walk.longest)]
    {
        let all: Vec<f64> = walks.iter().map(of).collect();
        let ends = [0.0, 1.0].map(|share| time(percentile(&all, share)));
        table.row([what.to_owned(), time(median(&all))].into_iter().chain(ends).collect());
        lines.push(json!({ "what": what, "server_us": all }));
    }
    let calls = walks.iter().map(|walk| walk.calls).max().unwrap_or(0);
    let notes = vec![format!("{calls} calls a walk.")];
    let json = json!({ "title": title, "locks": LOCKS, "others": OTHERS, "calls": calls, "figures": lines });
    Report { table, notes, json }
}
