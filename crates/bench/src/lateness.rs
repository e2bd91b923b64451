//! How late the head of the queue gets the lock after the holder's lease ends, while very many other holds
//! are live, compared with how late a ping is answered after a pause of the same length.

use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::many::{HOLDS, Many, Way};
use crate::ping::{Delays, OWN, Took, ping};
use crate::queued::KEPT;
use crate::resp::{Command, Conn, Expect, strange};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Table, median, percentile, time};

const LOCK: &str = "lock";
const CHANNEL: &str = "granted";

/// How long leases and pauses last.
const PAUSE_MS: std::ops::RangeInclusive<u64> = 5..=25;

const BLOCK: usize = 50;

/// Measures both in turns.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = format!("Handoff when a lease ends, {HOLDS} other holds live");
    let rounds = run.scale(4, 20);
    run.progress(&format!("{title}: acquiring them"));
    let mut many = Many::start(run, Way::Dlock, HOLDS)?;
    let (mut next, mut listener) = (many.server.connect()?, many.server.connect()?);
    listener.call(&["SUBSCRIBE", CHANNEL])?;
    let empty = run.program.start(false, &[])?;
    let mut on_empty = empty.connect()?;
    let (mut late, mut claimed, mut noise) = (Vec::new(), Vec::new(), Vec::new());
    for nth in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", nth + 1));
        for _ in 0..BLOCK {
            noise.push(ping_after_a_pause(&empty, &mut on_empty)?);
        }
        for _ in 0..BLOCK {
            late.push(lateness(&mut many, &mut next, None).map_err(|why| many.explain(&why))?);
            let queued = lateness(&mut many, &mut next, Some(&mut listener));
            claimed.push(queued.map_err(|why| many.explain(&why))?);
        }
    }
    let rows = [
        ("a ping of an empty server, after a pause", noise),
        ("dlock BLOCK, to the grant", late),
        ("dlock QUEUE, to the claim", claimed),
    ];
    Ok(vec![run.done(report(title, &rows))])
}

fn pause() -> Duration {
    Duration::from_millis(rand::random_range(PAUSE_MS))
}

fn ping_after_a_pause(server: &Server, conn: &mut Conn) -> Result<Took> {
    sleep(pause());
    ping(server, conn)
}

/// From the end of a lease, as its holder knows it, to the next grant; where there is somebody who listens
/// for messages, to its claim.
fn lateness(many: &mut Many, next: &mut Conn, listener: Option<&mut Conn>) -> Result<Took> {
    let Many { server, conn: holder, .. } = many;
    let ttl = pause();
    let before = server.kept_waiting();
    // The server's lease begins a little later, so lateness is never shown too small.
    let due = Instant::now() + ttl;
    holder.call(&["DLOCK.ACQUIRE", LOCK, "holder", &ttl.as_millis().to_string()])?;
    let began_late = server.kept_waiting() - before;
    let acquire = ["DLOCK.ACQUIRE", LOCK, "next", "600000"];
    let block = [&acquire[..], &["BLOCK", "0"]].concat();
    let queue = [&acquire[..], &["QUEUE", KEPT, "NOTIFY", CHANNEL, "next"]].concat();
    let waits = Command::new(if listener.is_some() { &queue } else { &block }).on_key(0);
    next.send(&waits)?;
    holder.call(&["PING"])?;
    let delays = Delays::start(server);
    let mut answer = next.line()?;
    // Unless the lease had ended before.
    if let (Some(listener), b"$-1") = (listener, answer) {
        listener.value()?;
        next.send(&waits)?;
        answer = next.line()?;
    }
    Expect::Number.check(answer)?;
    let mut late = delays.end(due);
    late.own = (late.own - began_late.as_secs_f64() * 1e6).max(0.0);
    let released = next.call(&["DLOCK.RELEASE", LOCK, "next"])?;
    if released != 1 {
        return Err(strange(&format!("{released:?}")));
    }
    if Instant::now() < due {
        return Err(strange("a grant before the lease ended"));
    }
    Ok(late)
}

fn report(title: String, rows: &[(&str, Vec<Took>)]) -> Report {
    let head = ["", "p50", "p99", "max", "own p50", "p99", "max", "samples"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for (name, samples) in rows {
        let three = |field: fn(&Took) -> f64| -> [f64; 3] {
            let all: Vec<f64> = samples.iter().map(field).collect();
            [median(&all), percentile(&all, 0.99), percentile(&all, 1.0)]
        };
        let (all, own) = (three(|took| took.all), three(|took| took.own));
        let figures = all.into_iter().chain(own).map(time);
        let cells = [(*name).to_owned()].into_iter().chain(figures).chain([samples.len().to_string()]);
        table.row(cells.collect());
        let json = |[p50, p99, max]: [f64; 3]| json!({ "p50": p50, "p99": p99, "max": max });
        lines.push(json!({ "what": name, "us": json(all), "own_us": json(own), "samples": samples.len() }));
    }
    Report { table, notes: vec![OWN.to_owned()], json: json!({ "title": title, "samples": lines }) }
}
