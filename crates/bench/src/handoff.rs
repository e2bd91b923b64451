//! Time from a release to the waiter's grant, compared with other ways to wake a connection. There is one
//! waiter and no other load; one thread sends for the holder and receives for the waiter.

use std::io::Result;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::queue_process::QUEUE_MS;
use crate::resp::{Command, Conn, Expect};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, median, percentile};

/// A way to hand over a lock or a message.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Way {
    /// From RELEASE to the reply of the waiting ACQUIRE.
    Block,
    /// From RELEASE to the message, which is the grant. The claim of the full lease follows in the
    /// background. The clients of dlock wait this way.
    Queue,
    /// From PUBLISH to the subscriber's message: the fastest way to wake a connection.
    Publish,
    /// From LPUSH to the reply of the waiting BLPOP.
    Pop,
    /// From DEL and PUBLISH to the reply of the subscriber's SET NX PX: the lock of libraries that do not
    /// poll.
    Retry,
}

const ALL: [Way; 5] = [Way::Retry, Way::Block, Way::Queue, Way::Publish, Way::Pop];

const BASELINE: Way = Way::Retry;

impl Way {
    fn name(self) -> &'static str {
        match self {
            Way::Block => "dlock RELEASE to the grant of BLOCK",
            Way::Queue => "dlock RELEASE to the message of QUEUE",
            Way::Publish => "PUBLISH to message",
            Way::Pop => "LPUSH to BLPOP's reply",
            Way::Retry => "DEL + PUBLISH to retried SET NX PX",
        }
    }
}

/// A [`Way`], with a server and connections of its own.
struct Contender {
    way: Way,
    server: Server,
    holder: Owner,
    waiter: Owner,
    /// Subscribed to [`CHANNEL`].
    listener: Conn,
    ping: Vec<u8>,
}

/// One of the two owners that hand the lock back and forth.
struct Owner {
    conn: Conn,
    /// The encoded commands that acquire the lock and hand it over.
    acquire: Vec<u8>,
    claim: Vec<u8>,
    hand_over: Vec<u8>,
}

const LOCK: &str = "lock";
const CHANNEL: &str = "freed";
const TTL: &str = "600000";

impl Contender {
    fn start(run: &Run, way: Way) -> Result<Contender> {
        let server = run.program.start(matches!(way, Way::Block | Way::Queue), &[])?;
        let mut listener = server.connect()?;
        listener.call(&["SUBSCRIBE", CHANNEL])?;
        let owner = |token: &str| -> Result<Owner> {
            let words = ["DLOCK.ACQUIRE", LOCK, token, TTL];
            let block = [&words[..], &["BLOCK", "0"]].concat();
            let queue = [&words[..], &["QUEUE", QUEUE_MS, "NOTIFY", CHANNEL, LOCK]].concat();
            let release: &[&[&str]] = &[&["DLOCK.RELEASE", LOCK, token]];
            let (acquire, hand_over): (&[&str], &[&[&str]]) = match way {
                Way::Block => (&block, release),
                Way::Queue => (&queue, release),
                // A subscriber acquires nothing: this PING is never sent.
                Way::Publish => (&["PING"], &[&["PUBLISH", CHANNEL, "1"]]),
                Way::Pop => (&["BLPOP", LOCK, "0"], &[&["LPUSH", LOCK, "1"]]),
                Way::Retry => {
                    (&["SET", LOCK, token, "NX", "PX", TTL], &[&["DEL", LOCK], &["PUBLISH", CHANNEL, "1"]])
                }
            };
            let hand_over = hand_over.iter().flat_map(|args| bytes(args)).collect();
            let claim = bytes(&["DLOCK.EXTEND", LOCK, token, TTL]);
            Ok(Owner { conn: server.connect()?, acquire: bytes(acquire), claim, hand_over })
        };
        let (mut holder, waiter) = (owner("5f0a7c19d2e84b36a1c0")?, owner("a1c05f0a7c19d2e84b36")?);
        if matches!(way, Way::Block | Way::Queue | Way::Retry) {
            holder.conn.send(&holder.acquire)?;
            holder.conn.skip(1)?;
        }
        Ok(Contender { way, server, holder, waiter, listener, ping: bytes(&["PING"]) })
    }

    /// Hands over once. Returns the time from the first byte sent until the waiter has the lock.
    fn hand_over_once(&mut self) -> Result<Duration> {
        let Contender { way, holder, waiter, listener, ping, .. } = self;
        if matches!(way, Way::Block | Way::Queue | Way::Pop) {
            waiter.conn.send(&waiter.acquire)?;
        }
        if *way == Way::Queue {
            Expect::Line("$-1").check(waiter.conn.line()?)?;
        }
        // The reply to the ping shows that the server has read the waiter's command, so the waiter waits.
        holder.conn.send(ping)?;
        holder.conn.skip(1)?;

        let start = Instant::now();
        holder.conn.send(&holder.hand_over)?;
        match way {
            Way::Block => Expect::Number.check(waiter.conn.line()?)?,
            Way::Queue | Way::Publish => listener.skip(MESSAGE_LINES)?,
            Way::Pop => waiter.conn.skip(BLPOP_LINES)?,
            Way::Retry => {
                listener.skip(MESSAGE_LINES)?;
                waiter.conn.send(&waiter.acquire)?;
                Expect::Line("+OK").check(waiter.conn.line()?)?;
            }
        }
        let elapsed = start.elapsed();

        if *way == Way::Queue {
            waiter.conn.send(&waiter.claim)?;
            Expect::Number.check(waiter.conn.line()?)?;
        }
        let replies = if *way == Way::Retry { 2 } else { 1 };
        for _ in 0..replies {
            // Each command replies 1: one released hold, deleted key, list element or subscriber.
            Expect::Line(":1").check(holder.conn.line()?)?;
        }
        std::mem::swap(holder, waiter);
        Ok(elapsed)
    }

    /// Runs a block of `handoffs` handoffs. Returns the microseconds of each.
    fn run_block(&mut self, handoffs: usize) -> Result<Vec<f64>> {
        let times_us = (0..handoffs).map(|_| Ok(self.hand_over_once()?.as_secs_f64() * 1e6));
        times_us.collect::<Result<_>>().map_err(|why| self.server.explain(self.way.name(), &why))
    }
}

/// Number of lines of a message to a subscriber, and of BLPOP's reply.
const MESSAGE_LINES: usize = 7;
const BLPOP_LINES: usize = 5;

fn bytes(args: &[&str]) -> Vec<u8> {
    // The arguments have no placeholder for a key number, so any number will do.
    Command::new(args).on_key(0)
}

/// Servers are restarted several times, because the layout of their memory, and so their speed, is a matter
/// of chance.
const STARTS: usize = 3;
/// Number of handoffs in a block, which is one turn of a contender.
const HANDOFFS: usize = 200;

/// Measures the contenders alternately.
pub fn run(run: &Run) -> Result<Vec<Report>> {
    let title = "Handoff to one idle waiter";
    let rounds = run.quick_or_full(4, 20);
    let wanted = ALL.into_iter().filter(|way| *way == BASELINE || run.wants(way.name()));
    let mut samples: Vec<(Way, Vec<Vec<f64>>)> = wanted.map(|way| (way, Vec::new())).collect();
    for start in 0..STARTS {
        let mut contenders: Vec<Contender> =
            samples.iter().map(|(way, _)| Contender::start(run, *way)).collect::<Result<_>>()?;
        // A warm-up, which is not counted.
        for contender in &mut contenders {
            contender.run_block(HANDOFFS)?;
        }
        let title = format!("{title}, start {} of {STARTS}", start + 1);
        for index in run.turns(&title, rounds, contenders.len()) {
            samples[index].1.push(contenders[index].run_block(HANDOFFS)?);
        }
    }
    Ok(vec![run.print(report(title, &samples))])
}

/// A ratio compares the p50 or p99 of a block with that of the baseline's block in the same round.
fn report(title: &str, samples: &[(Way, Vec<Vec<f64>>)]) -> Report {
    let percentiles = |way: Way, share: f64| -> Vec<f64> {
        let blocks = samples.iter().find(|(other, _)| *other == way);
        let blocks = blocks.map_or(&[][..], |(_, blocks)| blocks);
        blocks.iter().map(|block| percentile(block, share)).collect()
    };
    let head = [
        "",
        "p50 us",
        "x publish + retry",
        "(min..max)",
        "p99 us",
        "x publish + retry",
        "(min..max)",
        "samples",
    ];
    let mut table = Table::new(title, &head);
    let mut lines = Vec::new();
    for (way, blocks) in samples {
        let all: Vec<f64> = blocks.iter().flatten().copied().collect();
        let (p50, p99) = (median(&all), percentile(&all, 0.99));
        let [p50_ratios, p99_ratios] =
            [0.5, 0.99].map(|share| Ratios::of(&percentiles(*way, share), &percentiles(BASELINE, share)));
        table.row(vec![
            way.name().into(),
            format!("{p50:.1}"),
            p50_ratios.median(),
            p50_ratios.spread(),
            format!("{p99:.1}"),
            p99_ratios.median(),
            p99_ratios.spread(),
            all.len().to_string(),
        ]);
        lines.push(json!({
            "contender": way.name(), "p50_us": p50, "ratio": p50_ratios.json(), "p99_us": p99,
            "p99_ratio": p99_ratios.json(), "samples": all.len(),
        }));
    }
    Report { table, notes: Vec::new(), json: json!({ "title": title, "contenders": lines }) }
}
