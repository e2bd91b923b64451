//! How long after a release the one who waits has the lock, beside other ways to tell a connection something: one
//! waiter, one thread that sends for the one and receives for the other, nothing else going on.

use std::io::Result;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::resp::{Command, Conn, Expect};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, median, percentile};

/// A way to hand something over.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// RELEASE sent, until the waiting ACQUIRE is answered.
    Dlock,
    /// PUBLISH sent, until a subscriber has the message: as fast as the server tells anybody anything.
    Publish,
    /// LPUSH sent, until the waiting BLPOP is answered.
    Pop,
    /// DEL and PUBLISH sent, until the subscriber's SET NX PX is answered: the lock of libraries that do not poll.
    Retry,
}

const ALL: [Way; 4] = [Way::Publish, Way::Dlock, Way::Pop, Way::Retry];

/// Those that the others are compared with.
const BASES: [Way; 2] = [Way::Publish, Way::Retry];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Dlock => "dlock RELEASE to grant",
            Way::Publish => "PUBLISH to message",
            Way::Pop => "LPUSH to BLPOP's answer",
            Way::Retry => "DEL + PUBLISH to retried SET NX PX",
        }
    }
}

/// One way on its server.
struct Lane {
    way: Way,
    server: Server,
    giver: End,
    taker: End,
    listener: Conn,
    ping: Vec<u8>,
}

/// One of the two that the lock goes back and forth between.
struct End {
    conn: Conn,
    /// What it sends to get the lock, and to give it away.
    take: Vec<u8>,
    give: Vec<u8>,
}

const LOCK: &str = "lock";
const CHANNEL: &str = "freed";
const TTL: &str = "600000";

impl Lane {
    fn start(run: &Run, way: Way) -> Result<Lane> {
        let server = run.program.start(way == Way::Dlock, &[])?;
        let mut listener = server.connect()?;
        listener.call(&["SUBSCRIBE", CHANNEL])?;
        let end = |token: &str| -> Result<End> {
            let (take, give): (&[&str], &[&[&str]]) = match way {
                Way::Dlock => {
                    (&["DLOCK.ACQUIRE", LOCK, token, TTL, "BLOCK", "0"], &[&["DLOCK.RELEASE", LOCK, token]])
                }
                Way::Publish => (&["PING"], &[&["PUBLISH", CHANNEL, "1"]]),
                Way::Pop => (&["BLPOP", LOCK, "0"], &[&["LPUSH", LOCK, "1"]]),
                Way::Retry => {
                    (&["SET", LOCK, token, "NX", "PX", TTL], &[&["DEL", LOCK], &["PUBLISH", CHANNEL, "1"]])
                }
            };
            let give = give.iter().flat_map(|args| bytes(args)).collect();
            Ok(End { conn: server.connect()?, take: bytes(take), give })
        };
        let (mut giver, taker) = (end("5f0a7c19d2e84b36a1c0")?, end("a1c05f0a7c19d2e84b36")?);
        if matches!(way, Way::Dlock | Way::Retry) {
            giver.conn.send(&giver.take)?;
            giver.conn.skip(1)?;
        }
        Ok(Lane { way, server, giver, taker, listener, ping: bytes(&["PING"]) })
    }

    /// One handoff: from the first byte sent until the taker has it.
    fn once(&mut self) -> Result<Duration> {
        let Lane { way, giver, taker, listener, ping, .. } = self;
        if matches!(way, Way::Dlock | Way::Pop) {
            taker.conn.send(&taker.take)?;
        }
        // Its answer comes behind what the taker has sent: the taker waits now.
        giver.conn.send(ping)?;
        giver.conn.skip(1)?;

        let start = Instant::now();
        giver.conn.send(&giver.give)?;
        match way {
            Way::Dlock => Expect::Number.check(taker.conn.line()?)?,
            Way::Publish => listener.skip(MESSAGE)?,
            Way::Pop => taker.conn.skip(POPPED)?,
            Way::Retry => {
                listener.skip(MESSAGE)?;
                taker.conn.send(&taker.take)?;
                Expect::Line("+OK").check(taker.conn.line()?)?;
            }
        }
        let took = start.elapsed();

        let replies = if *way == Way::Retry { 2 } else { 1 };
        for _ in 0..replies {
            // Each of them changed, pushed or told one.
            Expect::Line(":1").check(giver.conn.line()?)?;
        }
        std::mem::swap(giver, taker);
        Ok(took)
    }

    /// Microseconds of handoffs in a row.
    fn block(&mut self, samples: usize) -> Result<Vec<f64>> {
        let took = (0..samples).map(|_| Ok(self.once()?.as_secs_f64() * 1e6)).collect::<Result<_>>();
        took.map_err(|why| self.server.explain(self.way.name(), &why))
    }
}

/// Lines of a message to a subscriber, and of BLPOP's answer.
const MESSAGE: usize = 7;
const POPPED: usize = 5;

fn bytes(args: &[&str]) -> Vec<u8> {
    Command::new(args).on_key(0)
}

/// Servers are started anew several times: how one lies in memory is luck.
const STARTS: usize = 3;
const BLOCK: usize = 200;

/// Measures all ways in turns.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = "Handoff to one idle waiter";
    let rounds = run.scale(4, 20);
    let wanted = ALL.into_iter().filter(|way| BASES.contains(way) || run.wants(way.name()));
    let mut samples: Vec<(Way, Vec<Vec<f64>>)> = wanted.map(|way| (way, Vec::new())).collect();
    for start in 0..STARTS {
        let mut lanes: Vec<Lane> =
            samples.iter().map(|(way, _)| Lane::start(run, *way)).collect::<Result<_>>()?;
        for lane in &mut lanes {
            lane.block(BLOCK)?;
        }
        for round in 0..rounds {
            let nth = start * rounds + round;
            run.progress(&format!("{title}: round {} of {}", nth + 1, STARTS * rounds));
            for turn in 0..lanes.len() {
                // Nobody is always behind the same neighbour.
                let at = (turn + nth) % lanes.len();
                samples[at].1.push(lanes[at].block(BLOCK)?);
            }
        }
    }
    Ok(vec![run.done(report(title, &samples))])
}

/// Ratios are of rounds: the median of a block against that of the base's block in the same round.
fn report(title: &str, samples: &[(Way, Vec<Vec<f64>>)]) -> Report {
    let medians = |of: Way| -> Vec<f64> {
        let blocks = samples.iter().find(|(way, _)| *way == of);
        blocks.map(|(_, blocks)| blocks.iter().map(|block| median(block)).collect()).unwrap_or_default()
    };
    let head =
        ["", "p50 us", "p99 us", "x PUBLISH", "(min..max)", "x publish + retry", "(min..max)", "samples"];
    let mut table = Table::new(title, &head);
    let mut lines = Vec::new();
    for (way, blocks) in samples {
        let all: Vec<f64> = blocks.iter().flatten().copied().collect();
        let [publish, retry] = BASES.map(|base| Ratios::of(&medians(*way), &medians(base)));
        let (p50, p99) = (median(&all), percentile(&all, 0.99));
        table.row(vec![
            way.name().into(),
            format!("{p50:.1}"),
            format!("{p99:.1}"),
            publish.middle(),
            publish.spread(),
            retry.middle(),
            retry.spread(),
            all.len().to_string(),
        ]);
        lines.push(json!({
            "contender": way.name(), "p50_us": p50, "p99_us": p99, "ratio_to_publish": publish.json(),
            "ratio_to_publish_and_retry": retry.json(), "samples": all.len(),
        }));
    }
    Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) }
}
