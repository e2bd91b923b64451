//! Redis Cluster: how pairs per second grow with the masters, and what the message of a grant costs the
//! nodes that do not have the lock. The inputs of "A fleet on paper" in `docs/speed.md`.

use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use serde_json::json;

use crate::contenders::{Pair, TOKEN, TTL_MS, Way};
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
        for (index, node) in nodes.iter().enumerate() {
            let mut conn = node.connect()?;
            conn.call(&["CLUSTER", "SET-CONFIG-EPOCH", &(index + 1).to_string()])?;
            let (first, next) = (index * SLOTS / masters, (index + 1) * SLOTS / masters);
            conn.call(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(next - 1).to_string()])?;
            conn.call(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].port().to_string()])?;
        }
        let deadline = Instant::now() + Duration::from_secs(60);
        let known = format!("cluster_known_nodes:{masters}\r");
        for node in &nodes {
            let mut conn = node.connect()?;
            loop {
                let info = conn.call(&["CLUSTER", "INFO"])?.text();
                if info.contains("cluster_state:ok") && info.contains(&known) {
                    break;
                }
                if Instant::now() > deadline {
                    return Err(unexpected(&info));
                }
                sleep(Duration::from_millis(20));
            }
        }
        Ok(Cluster { nodes })
    }

    /// Returns the numbers of so many locks of this node.
    fn locks_of(&self, node: usize, count: usize) -> Vec<u64> {
        let (masters, command) = (self.nodes.len(), Command::new(&[KEY]));
        // The encoded command ends with the key and a line end.
        let slot = |number| {
            let bytes = command.on_key(number);
            slot(&bytes[bytes.len() - 2 - KEY.len()..bytes.len() - 2])
        };
        let slots = node * SLOTS / masters..(node + 1) * SLOTS / masters;
        (0..).filter(|number| slots.contains(&slot(*number))).take(count).collect()
    }

    /// What all nodes but the first have used.
    fn others(&self) -> Used {
        let others = &self.nodes[1..];
        Used { cpu: others.iter().map(cpu).sum(), read: others.iter().map(Server::bytes_read).sum() }
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

/// Returns the slot of a key without a hash tag: its CRC-16/XMODEM modulo 16384, as the Redis Cluster
/// specification defines it.
fn slot(key: &[u8]) -> usize {
    let crc = key.iter().fold(0u16, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            (crc << 1) ^ if crc & 0x8000 != 0 { 0x1021 } else { 0 }
        })
    });
    usize::from(crc) % SLOTS
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
            let locks = cluster.locks_of(index, CONNECTIONS * DEPTH);
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
    let values = |index: usize, field: usize| -> Vec<f64> {
        contenders[index].1.iter().map(|sample: &[f64; 2]| sample[field]).collect()
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
    Ok(Report { table, notes, json: json!({ "title": title, "masters": lines }) })
}

/// How a waiter is told of its grant.
const MESSAGES: [(&str, &[&str]); 3] = [
    ("no message", &[]),
    ("SNOTIFY, to the nodes of the shard", &["SNOTIFY", "{lock:............}", "kJ3xTq9Zb2VdR7wLm0sNfY.1"]),
    ("NOTIFY, to all nodes", &["NOTIFY", "my-process", "kJ3xTq9Zb2VdR7wLm0sNfY.1"]),
];

/// Grants of a block: locks, each granted once to a holder and once to a waiter.
const LOCKS: usize = 32;

fn messages(run: &Run, nodes: usize) -> Result<Report> {
    let title = format!("The message of a waited grant, cluster of {nodes} masters");
    let (rounds, block_ms) = run.quick_or_full((4, 200), (12, 1000));
    let cluster = Cluster::start(run, nodes, true)?;
    let mut conn = cluster.nodes[0].connect()?;
    let locks = cluster.locks_of(0, LOCKS);
    let mut samples: [Vec<[f64; 3]>; 3] = Default::default();
    for index in run.turns(&title, rounds, MESSAGES.len()) {
        let steps = steps(MESSAGES[index].1);
        let (own, others) = (cpu(&cluster.nodes[0]), cluster.others());
        let (start, mut grants) = (Instant::now(), 0);
        let mut batch = Vec::new();
        while start.elapsed() < Duration::from_millis(block_ms) {
            for (command, expected) in &steps {
                batch.clear();
                locks.iter().for_each(|number| command.push(&mut batch, *number));
                conn.send(&batch)?;
                for _ in &locks {
                    expected.check(conn.line()?)?;
                }
            }
            grants += LOCKS;
        }
        let own = cpu(&cluster.nodes[0]) - own;
        // What a node has been sent, it reads and forwards soon after.
        sleep(SETTLED);
        let others = cluster.others().since(others);
        // Gossip costs the others the same in each block: it is measured alone, and taken off.
        let gossip = gossip(&cluster, start.elapsed());
        let grants = grants as f64;
        let each = grants * (nodes - 1) as f64;
        samples[index].push([
            own * 1e6 / grants,
            (others.cpu - gossip.cpu) * 1e6 / each,
            (others.read - gossip.read) / each,
        ]);
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

const SETTLED: Duration = Duration::from_millis(50);

/// The commands of a grant with their replies: a holder, a waiter behind it, and their releases.
fn steps(message: &[&str]) -> [(Command, Expect); 4] {
    let mut wait = vec!["DLOCK.ACQUIRE", KEY, "waiter", "30000", "QUEUE", "30000"];
    wait.extend(message);
    [
        (Command::new(&["DLOCK.ACQUIRE", KEY, TOKEN, "30000"]), Expect::Number),
        (Command::new(&wait), Expect::Line("$-1")),
        (Command::new(&["DLOCK.RELEASE", KEY, TOKEN]), Expect::Line(":1")),
        (Command::new(&["DLOCK.RELEASE", KEY, "waiter"]), Expect::Line(":1")),
    ]
}

/// Returns what the nodes other than the first use in this time without commands.
fn gossip(cluster: &Cluster, time: Duration) -> Used {
    let (before, start) = (cluster.others(), Instant::now());
    sleep(Duration::from_millis(300));
    let used = cluster.others().since(before);
    let share = time.as_secs_f64() / start.elapsed().as_secs_f64();
    Used { cpu: used.cpu * share, read: used.read * share }
}

/// What a fleet sends most: renewals, and the requests that keep positions in a queue.
const LOADS: [(&str, usize, usize); 2] =
    [("one command at a time, 50 connections", 50, 1), ("32 in a batch, 10 connections", 10, 32)];

/// Measures the inputs of "A fleet on paper" in `docs/speed.md`.
fn fleet(run: &Run) -> Result<Report> {
    let title = "What a fleet sends, one server: processor time of the server for a command";
    let (rounds, block_ms) = run.quick_or_full((4, 200), (12, 500));
    let server = run.program.start(true, &[])?;
    let acquire = Command::new(&["DLOCK.ACQUIRE", KEY, TOKEN, "MAX"]);
    let wait = [
        "DLOCK.ACQUIRE",
        KEY,
        "waiter",
        "30000",
        "QUEUE",
        "30000",
        "NOTIFY",
        "my-process",
        "kJ3xTq9Zb2VdR7wLm0sNfY.1",
    ];
    let commands = [
        ("PING", Command::new(&["PING"]), Expect::Line("+PONG")),
        (
            "EXTEND, which renews a hold",
            Command::new(&["DLOCK.EXTEND", KEY, TOKEN, TTL_MS]),
            Expect::Line(":1"),
        ),
        ("ACQUIRE .. QUEUE, which keeps a position", Command::new(&wait), Expect::Line("$-1")),
    ];
    let mut held = server.connect()?;
    for number in 0..320 {
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
        let (before, start, mut sent) = (cpu(&server), Instant::now(), 0);
        let mut batch = Vec::new();
        while start.elapsed() < Duration::from_millis(block_ms) {
            for (nth, conn) in connections[..count].iter_mut().enumerate() {
                batch.clear();
                (0..depth)
                    .for_each(|lock| commands[command].1.push(&mut batch, (nth * depth + lock) as u64 % 320));
                conn.send(&batch)?;
            }
            for conn in &mut connections[..count] {
                for _ in 0..depth {
                    commands[command].2.check(conn.line()?)?;
                }
            }
            sent += count * depth;
        }
        samples[command][load].push((cpu(&server) - before) * 1e6 / sent as f64);
    }
    for ((name, ..), samples) in commands.iter().zip(&samples) {
        let [single, batched] = [median(&samples[0]), median(&samples[1])];
        table.row(vec![(*name).into(), format!("{single:.2} us"), format!("{batched:.2} us")]);
        lines.push(json!({ "command": name, "single_us": single, "batched_us": batched }));
    }
    Ok(Report { table, notes: Vec::new(), json: json!({ "title": title, "commands": lines }) })
}
