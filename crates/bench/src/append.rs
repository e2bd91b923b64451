//! What the append only file grows by, compared with that of SET NX PX + DEL, and what a rewrite leaves.

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use dlock_testkit::Value;
use serde_json::json;

use crate::contenders::{TOKEN, TTL};
use crate::resp::{Command, Conn, KEY, strange};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::Table;

/// How often each step is done, each time on another key.
const TIMES: u64 = 10_000;

/// Runs each kind of step once: bytes do not vary.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = "Bytes in the append only file";
    run.progress(title);
    let server = run.program.start(true, &["appendonly yes", "appendfsync no"])?;
    let mut conn = server.connect()?;
    let acquire: &[&str] = &["DLOCK.ACQUIRE", KEY, TOKEN, TTL];
    let mut table = Table::new(title, &["each", "bytes"]);
    let mut figures = Vec::new();
    let mut report = |what: &str, bytes: f64| {
        table.row(vec![what.to_owned(), format!("{bytes:.0}")]);
        figures.push(json!({ "what": what, "bytes": bytes }));
    };
    let set = added(&server, &mut conn, &[&["SET", KEY, TOKEN, "NX", "PX", TTL], &["DEL", KEY]])?;
    report("SET NX PX + DEL", set);
    let pair = added(&server, &mut conn, &[acquire, &["DLOCK.RELEASE", KEY, TOKEN]])?;
    report("dlock: acquire + release", pair);
    added(&server, &mut conn, &[acquire])?;
    report("dlock: renewal", added(&server, &mut conn, &[&["DLOCK.EXTEND", KEY, TOKEN, TTL]])?);
    report("dlock: live hold after a rewrite", rewritten(&server, &mut conn)? / TIMES as f64);
    let json = json!({ "title": title, "figures": figures });
    Ok(vec![run.done(Report { table, notes: vec![], json })])
}

/// What each of these steps adds, done one after the other on each key.
fn added(server: &Server, conn: &mut Conn, steps: &[&[&str]]) -> Result<f64> {
    let before = size(server, "aof_current_size")?;
    for step in steps {
        let command = Command::new(step);
        let mut batch = Vec::new();
        (0..TIMES).for_each(|key| command.push(&mut batch, key));
        conn.send(&batch)?;
        for _ in 0..TIMES {
            if let Value::Error(text) = conn.value()? {
                return Err(strange(&text));
            }
        }
    }
    server.wait_written();
    Ok((size(server, "aof_current_size")? - before) / TIMES as f64)
}

fn rewritten(server: &Server, conn: &mut Conn) -> Result<f64> {
    conn.call(&["BGREWRITEAOF"])?;
    while server.info("aof_rewrite_in_progress") != "0" || server.info("aof_rewrite_scheduled") != "0" {
        sleep(Duration::from_millis(10));
    }
    size(server, "aof_base_size")
}

fn size(server: &Server, field: &str) -> Result<f64> {
    let size = server.info(field);
    size.parse().map_err(|_| strange(&size))
}
