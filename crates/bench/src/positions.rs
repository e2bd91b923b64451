//! What positions without a connection (QUEUE) cost: the same operations with few and with very many of them
//! on one key, in processor time of the server, and the memory that each takes.

use std::collections::VecDeque;
use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use rand::random_range;

use crate::queue;
use crate::queued::acquire;
use crate::resp::{Command, Conn, Expect, KEY, strange};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::waiters::{Meter, REST, Spent};

const SHORT: usize = 10;
const LONG: usize = 100_000;

/// What is measured, in the order of [`Positions::round`]'s figures.
const OPERATIONS: [&str; 4] = [
    "ACQUIRE that joins the queue",
    "ACQUIRE that keeps any position",
    "RELEASE, and the next one's claim",
    "CANCEL of any position",
];

/// Operations per batch; the short queue needs as many positions.
const BATCH: usize = 8;

type Operation = fn(&mut Positions, usize) -> Result<()>;

/// The queue, on its server.
struct Positions {
    server: Server,
    conn: Conn,
    holder: usize,
    /// Numbers of waiters, in queue order.
    order: VecDeque<usize>,
    /// How many waiters there have been.
    known: usize,
    /// What a position takes, by `used_memory` and by the resident set.
    bytes: [f64; 2],
}

/// Measures both queues in turns.
pub fn run(run: &Run) -> Result<Report> {
    let title = format!("Cost of positions without a connection: {SHORT} and {LONG} on one key");
    let (rounds, batches) = run.scale((3, 20), (10, 40));
    run.progress(&format!("{title}: joining"));
    let mut queues = [Positions::start(run, SHORT)?, Positions::start(run, LONG)?];
    let mut samples = [Vec::new(), Vec::new()];
    for nth in 0..rounds {
        run.progress(&format!("{title}: round {} of {rounds}", nth + 1));
        for (queue, samples) in queues.iter_mut().zip(&mut samples) {
            let figures = queue.round(batches).map_err(|why| queue.server.explain("the queue", &why))?;
            samples.push(figures);
        }
    }
    let [used, resident] = queues[1].bytes;
    let note = format!("Each of the {LONG} takes {used:.0} bytes, {resident:.0} of the resident set.");
    Ok(run.done(queue::report(title, [SHORT, LONG], &OPERATIONS, &samples, vec![note])))
}

impl Positions {
    fn start(run: &Run, length: usize) -> Result<Positions> {
        let server = run.program.start(true, &[])?;
        let mut conn = server.connect()?;
        for limit in ["dlock.max-queued", "dlock.max-waiters-per-key"] {
            conn.call(&["CONFIG", "SET", limit, "1000000"])?;
        }
        let (order, bytes) = (VecDeque::new(), [0.0; 2]);
        let mut queue = Positions { server, conn, holder: 0, order, known: 1, bytes };
        queue.conn.send(&ask(0))?;
        Expect::Number.check(queue.conn.line()?)?;
        let before = queue.server.memory()?;
        for _ in 0..length / SHORT {
            queue.join(SHORT)?;
        }
        let after = queue.server.memory()?;
        queue.bytes = [0, 1].map(|which| (after[which] - before[which]) / length as f64);
        Ok(queue)
    }

    /// Microseconds of each operation. Leaves the queue as long as it was.
    fn round(&mut self, batches: usize) -> Result<[f64; OPERATIONS.len()]> {
        let meter = Meter::start(&self.server);
        sleep(Duration::from_millis(500));
        let idle = meter.end(&self.server, 1);
        let mut all = [Spent::default(); OPERATIONS.len()];
        for _ in 0..batches {
            let operations: [(Operation, usize); OPERATIONS.len()] = [
                // Those who are passed the lock, and those who are cancelled.
                (Positions::join, 2 * BATCH),
                (Positions::keep, BATCH),
                (Positions::pass_on, BATCH),
                (Positions::cancel, BATCH),
            ];
            for ((operate, times), all) in operations.into_iter().zip(&mut all) {
                sleep(REST);
                let meter = Meter::start(&self.server);
                operate(self, times)?;
                sleep(REST);
                all.add(meter.end(&self.server, times));
            }
        }
        Ok(all.map(|spent| spent.less(idle).cpu / spent.operations as f64))
    }

    /// Sends all in one write.
    fn send(&mut self, commands: &[(Vec<u8>, Expect)]) -> Result<()> {
        let bytes: Vec<u8> = commands.iter().flat_map(|(command, _)| command).copied().collect();
        self.conn.send(&bytes)?;
        commands.iter().try_for_each(|(_, expected)| expected.check(self.conn.line()?))
    }

    fn join(&mut self, times: usize) -> Result<()> {
        let joining = self.known..self.known + times;
        self.known += times;
        self.order.extend(joining.clone());
        self.send(&joining.map(|number| (ask(number), QUEUED)).collect::<Vec<_>>())
    }

    fn keep(&mut self, times: usize) -> Result<()> {
        let any = || self.order[random_range(0..self.order.len())];
        let commands: Vec<_> = (0..times).map(|_| (ask(any()), QUEUED)).collect();
        self.send(&commands)
    }

    fn pass_on(&mut self, times: usize) -> Result<()> {
        let mut commands = Vec::new();
        for next in self.order.drain(..times) {
            commands.push((command(&["DLOCK.RELEASE", KEY, &token(self.holder)]), Expect::Line(":1")));
            commands.push((ask(next), Expect::Number));
            self.holder = next;
        }
        self.send(&commands)
    }

    fn cancel(&mut self, times: usize) -> Result<()> {
        let mut commands = Vec::new();
        for _ in 0..times {
            let any = self.order.remove(random_range(0..self.order.len()));
            let any = any.ok_or_else(|| strange("the queue is empty"))?;
            commands.push((command(&["DLOCK.CANCEL", KEY, &token(any)]), Expect::Line(":1")));
        }
        self.send(&commands)
    }
}

const QUEUED: Expect = Expect::Line("$-1");

fn token(number: usize) -> String {
    format!("5f0a7c19d2e8{number:08}")
}

fn ask(number: usize) -> Vec<u8> {
    acquire(&token(number), &number.to_string()).on_key(0)
}

fn command(args: &[&str]) -> Vec<u8> {
    Command::new(args).on_key(0)
}
