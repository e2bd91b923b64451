//! How soon after a release the waiter has the lock, compared with other ways to wake a connection: one
//! waiter, one thread that sends for the one side and receives for the other, no other load.

use std::io::Result;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::queued::KEPT;
use crate::resp::{Command, Conn, Expect};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, median, percentile};

/// A way to hand something off.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From RELEASE to the reply of the waiting ACQUIRE.
    Dlock,
    /// From RELEASE to the reply of the ACQUIRE that claims what a message announced.
    Queued,
    /// From PUBLISH to the subscriber's message: the fastest way to wake a connection.
    Publish,
    /// From LPUSH to the reply of the waiting BLPOP.
    Pop,
    /// From DEL and PUBLISH to the reply of the subscriber's SET NX PX: the lock of libraries that do not
    /// poll.
    Retry,
}

const ALL: [Way; 5] = [Way::Publish, Way::Dlock, Way::Queued, Way::Pop, Way::Retry];

const BASELINES: [Way; 3] = [Way::Publish, Way::Dlock, Way::Retry];

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Dlock => "dlock RELEASE to the grant of BLOCK",
            Way::Queued => "dlock RELEASE to the claim of QUEUE",
            Way::Publish => "PUBLISH to message",
            Way::Pop => "LPUSH to BLPOP's reply",
            Way::Retry => "DEL + PUBLISH to retried SET NX PX",
        }
    }
}

/// One contender on its server.
struct Contender {
    way: Way,
    server: Server,
    giver: End,
    taker: End,
    listener: Conn,
    ping: Vec<u8>,
}

/// One of the two ends between which the lock goes back and forth.
struct End {
    conn: Conn,
    /// What it sends to acquire the lock, and to pass it on.
    take: Vec<u8>,
    give: Vec<u8>,
}

const LOCK: &str = "lock";
const CHANNEL: &str = "freed";
const TTL: &str = "600000";

impl Contender {
    fn start(run: &Run, way: Way) -> Result<Contender> {
        let server = run.program.start(matches!(way, Way::Dlock | Way::Queued), &[])?;
        let mut listener = server.connect()?;
        listener.call(&["SUBSCRIBE", CHANNEL])?;
        let end = |token: &str| -> Result<End> {
            let acquire = ["DLOCK.ACQUIRE", LOCK, token, TTL];
            let block = [&acquire[..], &["BLOCK", "0"]].concat();
            let queue = [&acquire[..], &["QUEUE", KEPT, "NOTIFY", CHANNEL, LOCK]].concat();
            let release: &[&[&str]] = &[&["DLOCK.RELEASE", LOCK, token]];
            let (take, give): (&[&str], &[&[&str]]) = match way {
                Way::Dlock => (&block, release),
                Way::Queued => (&queue, release),
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
        if matches!(way, Way::Dlock | Way::Queued | Way::Retry) {
            giver.conn.send(&giver.take)?;
            giver.conn.skip(1)?;
        }
        Ok(Contender { way, server, giver, taker, listener, ping: bytes(&["PING"]) })
    }

    /// One handoff: from the first byte sent until the taker has the lock.
    fn once(&mut self) -> Result<Duration> {
        let Contender { way, giver, taker, listener, ping, .. } = self;
        if matches!(way, Way::Dlock | Way::Queued | Way::Pop) {
            taker.conn.send(&taker.take)?;
        }
        if *way == Way::Queued {
            Expect::Line("$-1").check(taker.conn.line()?)?;
        }
        // The reply shows that the server has read what the taker sent: the taker waits now.
        giver.conn.send(ping)?;
        giver.conn.skip(1)?;

        let start = Instant::now();
        giver.conn.send(&giver.give)?;
        match way {
            Way::Dlock => Expect::Number.check(taker.conn.line()?)?,
            Way::Queued => {
                listener.skip(MESSAGE)?;
                taker.conn.send(&taker.take)?;
                Expect::Number.check(taker.conn.line()?)?;
            }
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
            // Each reply says that one key, element or subscriber was affected.
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

/// Lines of a message to a subscriber, and of BLPOP's reply.
const MESSAGE: usize = 7;
const POPPED: usize = 5;

fn bytes(args: &[&str]) -> Vec<u8> {
    Command::new(args).on_key(0)
}

/// Servers are restarted several times: where one lands in memory is luck.
const STARTS: usize = 3;
const BLOCK: usize = 200;

/// Measures all contenders in turns.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = "Handoff to one idle waiter";
    let rounds = run.scale(4, 20);
    let wanted = ALL.into_iter().filter(|way| BASELINES.contains(way) || run.wants(way.name()));
    let mut samples: Vec<(Way, Vec<Vec<f64>>)> = wanted.map(|way| (way, Vec::new())).collect();
    for start in 0..STARTS {
        let mut contenders: Vec<Contender> =
            samples.iter().map(|(way, _)| Contender::start(run, *way)).collect::<Result<_>>()?;
        for contender in &mut contenders {
            contender.block(BLOCK)?;
        }
        let title = format!("{title}, start {} of {STARTS}", start + 1);
        for at in run.turns(&title, rounds, contenders.len()) {
            samples[at].1.push(contenders[at].block(BLOCK)?);
        }
    }
    Ok(vec![run.done(report(title, &samples))])
}

/// Ratios are of rounds: the median or p99 of a block against that of the baseline's block in the same round.
fn report(title: &str, samples: &[(Way, Vec<Vec<f64>>)]) -> Report {
    let of_blocks = |of: Way, share: f64| -> Vec<f64> {
        let blocks = samples.iter().find(|(way, _)| *way == of);
        let blocks = blocks.map_or(&[][..], |(_, blocks)| blocks);
        blocks.iter().map(|block| percentile(block, share)).collect()
    };
    let head = [
        "",
        "p50 us",
        "p99 us",
        "x PUBLISH",
        "(min..max)",
        "x BLOCK",
        "(min..max)",
        "p99 x BLOCK",
        "(min..max)",
        "x publish + retry",
        "(min..max)",
        "samples",
    ];
    let mut table = Table::new(title, &head);
    let mut lines = Vec::new();
    for (way, blocks) in samples {
        let all: Vec<f64> = blocks.iter().flatten().copied().collect();
        let [publish, block, retry] =
            BASELINES.map(|baseline| Ratios::of(&of_blocks(*way, 0.5), &of_blocks(baseline, 0.5)));
        let late = Ratios::of(&of_blocks(*way, 0.99), &of_blocks(Way::Dlock, 0.99));
        let (p50, p99) = (median(&all), percentile(&all, 0.99));
        table.row(vec![
            way.name().into(),
            format!("{p50:.1}"),
            format!("{p99:.1}"),
            publish.middle(),
            publish.spread(),
            block.middle(),
            block.spread(),
            late.middle(),
            late.spread(),
            retry.middle(),
            retry.spread(),
            all.len().to_string(),
        ]);
        lines.push(json!({
            "contender": way.name(), "p50_us": p50, "p99_us": p99, "ratio_to_publish": publish.json(),
            "ratio_to_block": block.json(), "p99_ratio_to_block": late.json(), "ratio_to_publish_and_retry": retry.json(), "samples": all.len(),
        }));
    }
    Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) }
}
