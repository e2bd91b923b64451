//! What a hold takes of the server's memory, each with a token of its own, compared with a string of the same
//! key, token and time to live.

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use serde_json::json;

use crate::many::{Many, Way};
use crate::run::{Report, Run};
use crate::table::{Table, si};

const HOLDS: u64 = 1_000_000;

/// Tokens of a counter, of DLOCK.TOKEN, and of a UUID.
const TOKENS: [usize; 3] = [20, 27, 36];

/// For so long a server may still move a dictionary over that it has just enlarged.
const SETTLES: Duration = Duration::from_secs(3);

pub fn run(run: &Run) -> Result<Vec<Report>> {
    let holds = run.scale(HOLDS / 10, HOLDS);
    let title = format!("Memory of {} holds, each with a token of its own", si(holds as f64));
    let head =
        ["token, bytes", "dlock bytes/hold", "string bytes", "ratio", "dlock resident", "string resident"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for token in TOKENS {
        run.progress(&format!("{title}: tokens of {token} bytes"));
        let [dlock, string] = [Way::Dlock, Way::Set].map(|way| bytes_a_hold(run, way, holds, token));
        let ([dlock, dlock_resident], [string, string_resident]) = (dlock?, string?);
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
        "By used_memory, with keys of 17 bytes, and leases of one length; where they are of any, a hold takes 16 \
         bytes more. Resident: what the process has of the machine's memory."
            .to_owned(),
    ];
    Ok(vec![run.done(Report { table, notes, json: json!({ "title": title, "tokens": lines }) })])
}

fn bytes_a_hold(run: &Run, way: Way, holds: u64, token: usize) -> Result<[f64; 2]> {
    let mut many = Many::start(run, way, 0)?;
    let before = many.server.memory()?;
    many.take_with_own_tokens(0..holds, token)?;
    sleep(SETTLES);
    let after = many.server.memory()?;
    Ok([0, 1].map(|which| (after[which] - before[which]) / holds as f64))
}
