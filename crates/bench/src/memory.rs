//! Memory of holds, each with a token of its own, compared with strings of the same keys, tokens and TTLs;
//! and memory of waiters.

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::contenders::{MESSAGE, TTL_MS};
use crate::holds::{HoldKind, Holds};
use crate::resp::{Command, Expect, KEY};
use crate::run::{Report, Run};
use crate::table::{Table, si};

/// Lengths of tokens: a number of 64 bits in decimal, a token of DLOCK.TOKEN, a UUID.
const TOKEN_BYTES: [usize; 3] = [20, 27, 36];

/// Longest time for which a server moves entries to a dictionary that it has just enlarged.
const REHASHING: Duration = Duration::from_secs(3);

/// Waiters of each lock.
const WAITERS: u64 = 100;

/// A channel like those of the Rust client.
const CHANNEL: &str = "dlock:kJ3xTq9Zb2VdR7wLm0sNfY";

pub fn run(run: &Run) -> Result<Vec<Report>> {
    Ok(vec![run.print(holds(run)?), run.print(waiters(run)?)])
}

fn holds(run: &Run) -> Result<Report> {
    let holds = run.quick_or_full(100_000, 1_000_000);
    let title = format!("Memory of {} holds, each with a token of its own", si(holds as f64));
    let head =
        ["token, bytes", "dlock bytes/hold", "string bytes", "ratio", "dlock resident", "string resident"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for token in TOKEN_BYTES {
        run.progress(&format!("{title}: tokens of {token} bytes"));
        let [dlock, dlock_resident] = bytes_per_hold(run, HoldKind::Dlock, holds, token)?;
        let [string, string_resident] = bytes_per_hold(run, HoldKind::Set, holds, token)?;
        let ratio = dlock / string;
        table.row(vec![
            token.to_string(),
            format!("{dlock:.0}"),
            format!("{string:.0}"),
            format!("{ratio:.2}"),
            format!("{dlock_resident:.0}"),
            format!("{string_resident:.0}"),
        ]);
        lines.push(json!({
            "token": token, "dlock_bytes": dlock, "string_bytes": string, "ratio": ratio,
            "dlock_resident": dlock_resident, "string_resident": string_resident,
        }));
    }
    let notes = vec![
        "By used_memory, with keys of 17 bytes and leases of one length. With leases of many lengths, a hold takes \
         16 bytes more. Resident: the process's share of the machine's memory."
            .to_owned(),
    ];
    Ok(Report { table, notes, json: json!({ "title": title, "tokens": lines }) })
}

/// Returns the `used_memory` and the resident memory of a hold, in bytes.
fn bytes_per_hold(run: &Run, kind: HoldKind, count: u64, token_bytes: usize) -> Result<[f64; 2]> {
    let mut holds = Holds::start(&run.program, kind)?;
    let before = holds.server.memory()?;
    holds.acquire_with_own_tokens(0..count, token_bytes)?;
    sleep(REHASHING);
    let after = holds.server.memory()?;
    Ok([0, 1].map(|figure| (after[figure] - before[figure]) / count as f64))
}

/// Measures waiters with QUEUE, which have no connection.
fn waiters(run: &Run) -> Result<Report> {
    let locks = run.quick_or_full(100, 1000);
    let waiters = (locks * WAITERS) as f64;
    let title = format!("Memory of {} waiters without a connection, {WAITERS} for each lock", si(waiters));
    run.progress(&title);
    let mut holds = Holds::start(&run.program, HoldKind::Dlock)?;
    holds.acquire_long(0..locks)?;
    let [before, _] = holds.server.memory()?;
    let mut batch = Vec::new();
    for waiter in 0..WAITERS {
        let token = format!("{KEY}.{waiter:09}");
        let wait = ["QUEUE", TTL_MS, "NOTIFY", CHANNEL, MESSAGE];
        let command = Command::new(&[&["DLOCK.ACQUIRE", KEY, &token, TTL_MS][..], &wait].concat());
        batch.clear();
        (0..locks).for_each(|number| command.push(&mut batch, number));
        holds.conn.send(&batch)?;
        for _ in 0..locks {
            Expect::Line("$-1").check(holds.conn.line()?)?;
        }
    }
    let [after, _] = holds.server.memory()?;
    let bytes = (after - before) / waiters;
    let mut table = Table::new(&title, &["", "bytes/waiter"]);
    table.row(vec!["QUEUE, with a message of a client".into(), format!("{bytes:.0}")]);
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "waiter_bytes": bytes }) })
}
