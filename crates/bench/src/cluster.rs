//! Redis Cluster: how pairs per second grow with the masters, and what the message of a grant costs the
//! nodes that do not have the lock. The inputs of "A fleet on paper" in `docs/speed.md`.

use std::io::Result;
use std::ops::Range;
use std::thread::sleep;
use std::time::{Duration, Instant};

use dlock_testkit::cluster::join;
use serde_json::json;

use crate::contenders::{MESSAGE, Pair, TOKEN, TTL_MS, Way};
use crate::resp::{Command, Conn, Expect, KEY, unexpected};
use crate::run::{Report, Run};
use crate::server::Server;
use crate::table::{Ratios, Table, median, si};

pub fn run(run: &Run) -> Result<Vec<Report>> {
    let mut reports = vec![run.print(growth(run)?)];
    for nodes in [3, 6] {
        reports.push(run.print(messages(run, nodes)?));
    }
    reports.push(run.print(fleet(run)?));
    Ok(reports)
}

const SLOTS: usize = 16384;

/// A cluster of masters, which share the slots equally.
struct Cluster {
    nodes: Vec<Server>,
}

impl Cluster {
    fn start(run: &Run, masters: usize, with_module: bool) -> Result<Cluster> {
        let options = ["cluster-enabled yes", "cluster-node-timeout 15000"];
        let nodes: Vec<Server> =
            (0..masters).map(|_| run.program.start(with_module, &options)).collect::<Result<_>>()?;
        let cluster = Cluster { nodes };
        let servers: Vec<&dlock_testkit::Server> = cluster.nodes.iter().map(|node| &**node).collect();
        let slots = (0..masters).map(|node| cluster.slots_of(node));
        let slots: Vec<String> = slots.map(|slots| format!("{} {}", slots.start, slots.end - 1)).collect();
        join(&servers, &slots);
        Ok(cluster)
    }

    fn slots_of(&self, node: usize) -> Range<i64> {
        let start = |node| (node * SLOTS / self.nodes.len()) as i64;
        start(node)..start(node + 1)
    }

    /// Returns the numbers of the first `count` locks in the slots of this node.
    fn locks_of(&self, node: usize, count: usize) -> Result<Vec<u64>> {
        let (slots, command) = (self.slots_of(node), Command::new(&["CLUSTER", "KEYSLOT", KEY]));
        let (mut conn, mut locks) = (self.nodes[node].connect()?, Vec::new());
        let mut number = 0;
        while locks.len() < count {
            conn.send(&command.on_key(number))?;
            if slots.contains(&conn.value()?.int()) {
                locks.push(number);
            }
            number += 1;
        }
        Ok(locks)
    }

    /// Returns the use of all nodes but the first, since their start.
    fn others(&self) -> Used {
        let others = &self.nodes[1..];
        Used { cpu: others.iter().map(cpu).sum(), read: others.iter().map(Server::bytes_read).sum() }
    }

    /// Returns what the nodes other than the first use in this time without commands.
    fn gossip(&self, time: Duration) -> Used {
        let (before, start) = (self.others(), Instant::now());
        sleep(Duration::from_millis(300));
        let used = self.others().since(before);
        let share = time.as_secs_f64() / start.elapsed().as_secs_f64();
        Used { cpu: used.cpu * share, read: used.read * share }
    }
}

/// Seconds of processor time, and bytes read.
#[derive(Clone, Copy)]
struct Used {
    cpu: f64,
    read: f64,
}

impl Used {
    fn since(self, before: Used) -> Used {
        Used { cpu: self.cpu - before.cpu, read: self.read - before.read }
    }
}

/// The processor time of a server's main thread in seconds. NaN if the kernel does not report it.
fn cpu(server: &Server) -> f64 {
    server.cpu().map_or(f64::NAN, |time| time.as_secs_f64())
}

/// Connections to each master, and commands that each sends before it reads replies.
const CONNECTIONS: usize = 10;
const DEPTH: usize = 32;

/// One way to lock, on a cluster of its own.
struct Contender {
    pair: Pair,
    cluster: Cluster,
    /// Connections with the locks that each acquires and releases.
    connections: Vec<(Conn, Vec<u64>)>,
}

impl Contender {
    fn start(run: &Run, way: Way, masters: usize) -> Result<Contender> {
        let cluster = Cluster::start(run, masters, way.needs_module())?;
        let mut connections = Vec::new();
        for (index, node) in cluster.nodes.iter().enumerate() {
            let locks = cluster.locks_of(index, CONNECTIONS * DEPTH)?;
            for locks in locks.chunks(DEPTH) {
                connections.push((node.connect()?, locks.to_vec()));
            }
        }
        let pair = way.prepare(&mut cluster.nodes[0].connect()?, TOKEN)?;
        let pair = pair.ok_or_else(|| unexpected("a server without SET"))?;
        Ok(Contender { pair, cluster, connections })
    }

    /// Returns the pairs per second, and the processor time of all servers for a pair in microseconds.
    fn measure(&mut self, time: Duration) -> Result<[f64; 2]> {
        let Contender { pair, cluster, connections } = self;
        let used = |cluster: &Cluster| cluster.nodes.iter().map(cpu).sum::<f64>();
        let (before, start, mut pairs) = (used(cluster), Instant::now(), 0);
        let mut batch = Vec::new();
        while start.elapsed() < time {
            for (command, expected) in [(&pair.acquire, pair.acquired), (&pair.release, pair.released)] {
                for (conn, locks) in connections.iter_mut() {
                    batch.clear();
                    locks.iter().for_each(|number| command.push(&mut batch, *number));
                    conn.send(&batch)?;
                }
                for (conn, locks) in connections.iter_mut() {
                    for _ in &*locks {
                        expected.check(conn.line()?)?;
                    }
                }
            }
            pairs += connections.len() * DEPTH;
        }
        let pairs = pairs as f64;
        Ok([pairs / start.elapsed().as_secs_f64(), (used(cluster) - before) * 1e6 / pairs])
    }
}

/// Compares the growth of pairs per second with that of SET + DEL on a cluster of the same size.
fn growth(run: &Run) -> Result<Report> {
    let title = "Pairs in a cluster, depth 32, 10 connections to each master";
    let (rounds, block_ms) = run.quick_or_full((5, 150), (15, 400));
    let ways = [Way::SetDel, Way::Dlock];
    let mut contenders = Vec::new();
    for masters in 1..=3 {
        for way in ways {
            contenders.push((Contender::start(run, way, masters)?, Vec::new()));
        }
    }
    for index in run.turns(title, rounds, contenders.len()) {
        let (contender, samples) = &mut contenders[index];
        samples.push(contender.measure(Duration::from_millis(block_ms))?);
    }
    let samples: Vec<_> = contenders.into_iter().map(|(_, samples)| samples).collect();
    Ok(growth_report(title, &samples))
}

/// Makes the report of samples of pairs per second and processor time: for each number of masters, those of
/// SET + DEL and those of dlock.
fn growth_report(title: &str, samples: &[Vec<[f64; 2]>]) -> Report {
    let values = |index: usize, field: usize| -> Vec<f64> {
        samples[index].iter().map(|sample| sample[field]).collect()
    };
    let head = [
        "masters",
        "SET + DEL",
        "x 1 master",
        "dlock",
        "x 1 master",
        "x SET + DEL",
        "server us/pair",
        "x SET + DEL",
    ];
    let mut table = Table::new(title, &head);
    let mut lines = Vec::new();
    for masters in 1..=3 {
        let (plain, dlock) = (2 * (masters - 1), 2 * (masters - 1) + 1);
        let speeds = [values(plain, 0), values(dlock, 0)];
        let gains = [Ratios::of(&speeds[0], &values(0, 0)), Ratios::of(&speeds[1], &values(1, 0))];
        let ratio = Ratios::of(&speeds[1], &speeds[0]);
        let cpu = Ratios::of(&values(dlock, 1), &values(plain, 1));
        table.row(vec![
            masters.to_string(),
            si(median(&speeds[0])),
            gains[0].median(),
            si(median(&speeds[1])),
            gains[1].median(),
            ratio.median(),
            format!("{:.2}", median(&values(dlock, 1))),
            cpu.median(),
        ]);
        lines.push(json!({
            "masters": masters, "set_del": median(&speeds[0]), "dlock": median(&speeds[1]),
            "set_del_gain": gains[0].json(), "dlock_gain": gains[1].json(), "ratio": ratio.json(),
            "server_us_per_pair": median(&values(dlock, 1)), "server_time_ratio": cpu.json(),
        }));
    }
    let notes =
        vec!["All servers and the bench share the processors of one machine: compare the two gains.".into()];
    Report { table, notes, json: json!({ "title": title, "masters": lines }) }
}

/// The ways to announce a grant to its waiter.
const MESSAGES: [(&str, &[&str]); 3] = [
    ("no message", &[]),
    ("SNOTIFY, to the nodes of the shard", &["SNOTIFY", "{lock:............}", MESSAGE]),
    ("NOTIFY, to all nodes", &["NOTIFY", "my-process", MESSAGE]),
];

/// Locks of a block. Each is granted in turn to a holder and to a waiter.
const LOCKS: usize = 32;

fn messages(run: &Run, nodes: usize) -> Result<Report> {
    let title = format!("The message of a waited grant, cluster of {nodes} masters");
    let (rounds, block_ms) = run.quick_or_full((4, 200), (12, 1000));
    let cluster = Cluster::start(run, nodes, true)?;
    let mut conn = cluster.nodes[0].connect()?;
    let locks = cluster.locks_of(0, LOCKS)?;
    let mut samples: [Vec<[f64; 3]>; 3] = Default::default();
    for index in run.turns(&title, rounds, MESSAGES.len()) {
        let (steps, time) = (steps(MESSAGES[index].1), Duration::from_millis(block_ms));
        samples[index].push(measure_grants(&cluster, &mut conn, &locks, &steps, time)?);
    }
    let head =
        ["", "us/grant of the lock's node", "us/grant of each other node", "bytes/grant to each other node"];
    let mut table = Table::new(&title, &head);
    let mut lines = Vec::new();
    for ((name, _), samples) in MESSAGES.iter().zip(&samples) {
        let [own, other, bytes] =
            [0, 1, 2].map(|field| median(&samples.iter().map(|sample| sample[field]).collect::<Vec<_>>()));
        table.row(vec![(*name).into(), format!("{own:.2}"), format!("{other:.2}"), format!("{bytes:.0}")]);
        lines.push(json!({ "message": name, "own_us": own, "other_us": other, "other_bytes": bytes }));
    }
    let notes = vec![
        "A grant: ACQUIRE of a holder, ACQUIRE .. QUEUE of a waiter, two RELEASEs; processor time.".into(),
    ];
    Ok(Report { table, notes, json: json!({ "title": title, "messages": lines }) })
}

/// Time in which a node reads and forwards everything that has been sent to it.
const SETTLED: Duration = Duration::from_millis(50);

/// Repeats the steps of a grant for this time. Returns the cost of a waited grant: microseconds of the first
/// node, which has the locks, and microseconds and received bytes of each other node.
fn measure_grants(
    cluster: &Cluster,
    conn: &mut Conn,
    locks: &[u64],
    steps: &[(Command, Expect)],
    time: Duration,
) -> Result<[f64; 3]> {
    let (own, others) = (cpu(&cluster.nodes[0]), cluster.others());
    let (start, mut grants) = (Instant::now(), 0);
    let mut batch = Vec::new();
    while start.elapsed() < time {
        for (command, expected) in steps {
            batch.clear();
            locks.iter().for_each(|number| command.push(&mut batch, *number));
            conn.send(&batch)?;
            for _ in locks {
                expected.check(conn.line()?)?;
            }
        }
        grants += locks.len();
    }
    let own = cpu(&cluster.nodes[0]) - own;
    sleep(SETTLED);
    let others = cluster.others().since(others);
    // Gossip costs the other nodes the same in each block, so it is measured alone and subtracted.
    let gossip = cluster.gossip(start.elapsed());
    let grants = grants as f64;
    let each = grants * (cluster.nodes.len() - 1) as f64;
    Ok([own * 1e6 / grants, (others.cpu - gossip.cpu) * 1e6 / each, (others.read - gossip.read) / each])
}

/// The commands of a grant with their replies: a holder, a waiter behind it, and their releases.
fn steps(message: &[&str]) -> [(Command, Expect); 4] {
    [
        (Command::new(&["DLOCK.ACQUIRE", KEY, TOKEN, TTL_MS]), Expect::Number),
        (queue(message), Expect::Line("$-1")),
        (Command::new(&["DLOCK.RELEASE", KEY, TOKEN]), Expect::Line(":1")),
        (Command::new(&["DLOCK.RELEASE", KEY, "waiter"]), Expect::Line(":1")),
    ]
}

/// The ACQUIRE of a waiter with this message.
fn queue(message: &[&str]) -> Command {
    Command::new(&[&["DLOCK.ACQUIRE", KEY, "waiter", TTL_MS, "QUEUE", TTL_MS], message].concat())
}

/// A load: connections, and commands that each sends before it reads replies.
const LOADS: [(&str, usize, usize); 2] =
    [("one command at a time, 50 connections", 50, 1), ("32 in a batch, 10 connections", 10, 32)];

/// Locks that the fleet holds and waits for: enough for each command of a batch to have its own.
const FLEET_LOCKS: u64 = 320;

/// Measures the most frequent commands of a fleet, the inputs of "A fleet on paper" in `docs/speed.md`:
/// renewals, and the requests that keep positions in a queue.
fn fleet(run: &Run) -> Result<Report> {
    let title = "What a fleet sends, one server: processor time of the server for a command";
    let (rounds, block_ms) = run.quick_or_full((4, 200), (12, 500));
    let server = run.program.start(true, &[])?;
    let renewal = Command::new(&["DLOCK.EXTEND", KEY, TOKEN, TTL_MS]);
    let commands = [
        ("PING", Command::new(&["PING"]), Expect::Line("+PONG")),
        ("EXTEND, which renews a hold", renewal, Expect::Line(":1")),
        ("ACQUIRE .. QUEUE, which keeps a position", queue(MESSAGES[2].1), Expect::Line("$-1")),
    ];
    let (mut held, acquire) = (server.connect()?, Command::new(&["DLOCK.ACQUIRE", KEY, TOKEN, "MAX"]));
    for number in 0..FLEET_LOCKS {
        held.send(&acquire.on_key(number))?;
        Expect::Number.check(held.line()?)?;
    }
    let mut table = Table::new(title, &["", LOADS[0].0, LOADS[1].0]);
    let mut lines = Vec::new();
    let mut samples = vec![[Vec::new(), Vec::new()]; commands.len()];
    let mut connections: Vec<Conn> = (0..50).map(|_| server.connect()).collect::<Result<_>>()?;
    for index in run.turns(title, rounds, commands.len() * LOADS.len()) {
        let (command, load) = (index / LOADS.len(), index % LOADS.len());
        let (_, count, depth) = LOADS[load];
        let ((_, command, expected), samples) = (&commands[command], &mut samples[command][load]);
        let (before, time) = (cpu(&server), Duration::from_millis(block_ms));
        let sent = send_for(time, &mut connections[..count], command, *expected, depth)?;
        samples.push((cpu(&server) - before) * 1e6 / sent as f64);
    }
    for ((name, ..), samples) in commands.iter().zip(&samples) {
        let [single, batched] = [median(&samples[0]), median(&samples[1])];
        table.row(vec![(*name).into(), format!("{single:.2} us"), format!("{batched:.2} us")]);
        lines.push(json!({ "command": name, "single_us": single, "batched_us": batched }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "commands": lines }) })
}

/// Sends the command over all connections for this time, `depth` of them in a batch. Returns how many were
/// sent.
fn send_for(
    time: Duration,
    connections: &mut [Conn],
    command: &Command,
    expected: Expect,
    depth: usize,
) -> Result<usize> {
    let (start, mut sent, mut batch) = (Instant::now(), 0, Vec::new());
    while start.elapsed() < time {
        for (nth, conn) in connections.iter_mut().enumerate() {
            batch.clear();
            let locks = (nth * depth..).take(depth);
            locks.for_each(|lock| command.push(&mut batch, lock as u64 % FLEET_LOCKS));
            conn.send(&batch)?;
        }
        for conn in connections.iter_mut() {
            for _ in 0..depth {
                expected.check(conn.line()?)?;
            }
        }
        sent += connections.len() * depth;
    }
    Ok(sent)
}
