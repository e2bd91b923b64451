//! Clients of all languages wait for one lock, on one server and on a quorum, and hold it from the message of
//! the grant on. The network loses, delays and duplicates the messages; clients are stopped (SIGSTOP) when a
//! message arrives, before or after they read it; servers are killed. No two clients may hold, and each fence
//! must be greater than the one before. Each client is a process: the Rust client is this program, with the
//! ignored test `rust_client`.

use std::collections::BTreeMap;
use std::env;
use std::io::Read;
use std::process::Command;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Runtime};

use dlock_client::now;

use crate::contender::{Stage, at};
use crate::foreign_clients::{self, ForeignClient};
use crate::locks::{Held, Locks};
use crate::proxy::{Cut, Proxy};
use crate::record::Record;
use crate::store::Store;
use dlock_testkit::history::Hold;
use dlock_testkit::{Random, Server, ServerKind, each_server, rounds, until_within};

/// Number of Rust clients.
const RUST_CLIENTS: usize = 2;
const LEASE: Duration = Duration::from_millis(1_000);
/// Longer than a lease.
const LONGEST_DELAY: Duration = Duration::from_millis(1_500);
/// Grace period of the masters of a quorum, which restart without data, in ms.
const GRACE: u64 = 1_500;
const TIMEOUT: Duration = Duration::from_secs(60);
/// How long a fault lasts if it keeps the clients from acquiring the lock: in a short run, and in a long one.
const SHORT_FAULT: Duration = Duration::from_millis(400);
const LONG_FAULT: Duration = Duration::from_millis(1_500);

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Fault {
    LosesMessages,
    DelaysMessages,
    DuplicatesMessages,
    DelaysAndDuplicatesMessages,
    /// Clients are stopped when a message arrives.
    StopsClients,
    StopsClientsAndDelaysMessages,
    /// Each piece of traffic has a random delay.
    Slow,
    /// Requests are lost, claims among them.
    LosesRequests,
    LosesReplies,
    /// A server is killed and started again: a single server with its data, a master without.
    Killed,
}

const FAULTS: [Fault; 10] = [
    Fault::LosesMessages,
    Fault::DelaysMessages,
    Fault::DuplicatesMessages,
    Fault::DelaysAndDuplicatesMessages,
    Fault::StopsClients,
    Fault::StopsClientsAndDelaysMessages,
    Fault::Slow,
    Fault::LosesRequests,
    Fault::LosesReplies,
    Fault::Killed,
];

/// What happens to the client of a link when a message arrives.
#[derive(Default)]
struct Stopper {
    is_on: AtomicBool,
    stops: AtomicUsize,
}

struct Fleet {
    servers: Vec<Server>,
    /// The links of each client to each server.
    links: Vec<Vec<Proxy>>,
    stopper: Arc<Stopper>,
    random: Random,
    faults: BTreeMap<Fault, usize>,
    _network: Runtime,
}

#[each_server(in_turn)]
fn a_few_rounds_of_message_faults_break_no_promise(kind: &ServerKind) {
    assert_no_violation(kind, 1, FAULTS.len(), SHORT_FAULT);
    assert_no_violation(kind, 3, FAULTS.len(), SHORT_FAULT);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_rounds_of_message_faults_on_one_server_break_no_promise(kind: &ServerKind) {
    assert_no_violation(kind, 1, rounds(100), LONG_FAULT);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn many_rounds_of_message_faults_on_a_quorum_break_no_promise(kind: &ServerKind) {
    assert_no_violation(kind, 3, rounds(100), LONG_FAULT);
}

/// The Rust client of this file, in a process of its own. See `foreign_clients.rs` for its arguments and its
/// output.
#[test]
#[ignore = "started by the other tests of this file"]
fn rust_client() {
    let mut arguments = env::args().skip_while(|word| word != "--nocapture").skip(1);
    let (Some(number), Some(lease)) = (arguments.next(), arguments.next()) else { return };
    let lease = Duration::from_millis(lease.parse().expect("ms"));
    let urls: Vec<String> = arguments.collect();
    let resources = env::var("DLOCK_RESOURCES").unwrap_or_else(|_| "r".into());
    let resources: Vec<&str> = resources.split(' ').collect();
    let stopping = Arc::new(AtomicBool::default());
    let stops = stopping.clone();
    thread::spawn(move || {
        let _ = std::io::stdin().read(&mut [0]);
        stops.store(true, Relaxed);
    });
    // The harness has printed the begin of a line.
    println!();
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async {
        let locks = Locks::dlock(&urls, lease, true).await;
        let mut random = Random::fresh();
        for tries in 0.. {
            if stopping.load(Relaxed) {
                break;
            }
            let resource = *random.of(&resources);
            let asked = at(now());
            match locks.acquire(resource, true).await {
                Some(held) => {
                    hold(&locks, resource, held, &format!("{number}:{tries}"), asked, &mut random).await;
                }
                None => println!("none"),
            }
        }
        locks.flush().await;
    });
}

async fn hold(locks: &Locks, resource: &str, held: Held, name: &str, asked: u64, random: &mut Random) {
    let (since, fence) = (at(now()), held.fence());
    println!("holds");
    println!("writes {resource} {fence} {name}");
    tokio::time::sleep(Duration::from_millis(random.below(6) as u64)).await;
    if held.is_lost() {
        println!("lost");
    }
    let until = at(now().min(held.valid_until()));
    // The reader adds the difference of the clocks to these times, so this subtracts it.
    let offset = foreign_clients::offset();
    let [asked, since, until] = [asked, since, until].map(|moment| moment - offset);
    println!("held {resource} {fence} {name} {asked} {since} {until}");
    locks.release(resource, held).await;
}

/// The command that starts [`rust_client`].
pub fn rust_client_program() -> String {
    let this = env::current_exe().expect("this program");
    format!("{} --exact messages::rust_client --ignored --nocapture", this.display())
}

fn assert_no_violation(kind: &ServerKind, servers: usize, rounds: usize, longest_fault: Duration) {
    let mut programs = vec![rust_client_program(); RUST_CLIENTS];
    programs.extend(foreign_clients::programs_for(servers));
    let store = Server::start(kind);
    let kinds = (programs.iter().enumerate()).map(|(number, program)| match number < RUST_CLIENTS {
        true => "Rust".to_string(),
        false => foreign_clients::kind(program),
    });
    let stage = Stage::new(Store::new(&store), kinds);
    let mut fleet = Fleet::start(kind, servers, programs.len());
    let holds = thread::scope(|scope| {
        let (clients, inputs): (Vec<_>, Vec<_>) = (programs.iter().enumerate())
            .map(|(number, program)| {
                let urls: Vec<String> = fleet.links[number].iter().map(Proxy::url).collect();
                ForeignClient::start(number, program, &urls, LEASE, Some("r"))
            })
            .unzip();
        for (client, links) in clients.iter().zip(&fleet.links) {
            links.iter().for_each(|link| fleet.stopper.watch(client.pid(), link));
        }
        let stage = &stage;
        let clients: Vec<_> =
            clients.into_iter().map(|client| scope.spawn(move || client.follow(stage))).collect();
        fleet.until_all_acquire(stage, "before the first fault");
        for _ in 0..rounds {
            fleet.round(stage, longest_fault);
        }
        drop(inputs);
        clients.into_iter().flat_map(|client| client.join().expect("no panic")).collect::<Vec<Hold>>()
    });
    let acquired: Vec<(&str, usize)> =
        stage.acquired.iter().map(|(kind, count)| (kind.as_str(), count.load(Relaxed))).collect();
    println!("{}: {servers} servers, {rounds} rounds, {} holds: {acquired:?}", kind.name, holds.len());
    let links = || fleet.links.iter().flatten();
    let (messages, lost) =
        (links().map(Proxy::messages).sum::<usize>(), links().map(Proxy::lost).sum::<usize>());
    let stops = fleet.stopper.stops.load(Relaxed);
    println!("  {messages} messages, {lost} pieces and messages lost, {stops} stops");
    println!("  faults: {:?}, clients: {:?}", fleet.faults, stage.counts);
    let record = Record { holds, writes: stage.store.into_log() };
    let violations = record.violations();
    println!("  violations: {}", violations.len());
    assert!(violations.is_empty(), "{:#?}", &violations[..violations.len().min(20)]);
    // A round that stops clients is short, and on a busy machine none may get a message meanwhile.
    let stops_enough = stops > 0 || rounds == FAULTS.len();
    assert!(messages > 0 && lost > 0 && stops_enough, "the faults had no effect");
}

impl Fleet {
    fn start(kind: &ServerKind, servers: usize, clients: usize) -> Fleet {
        let network = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let mut random = Random::fresh();
        let servers: Vec<Server> = (0..servers)
            .map(|_| match servers {
                1 => Server::options(kind).synced().start(),
                _ => Server::options(kind).conf(&format!("dlock.restart-grace {GRACE}")).start(),
            })
            .collect();
        let mut link = |server: &Server| Proxy::to(server.port(), network.handle(), random.branch());
        let links = (0..clients).map(|_| servers.iter().map(&mut link).collect()).collect();
        let (stopper, faults) = (Arc::default(), BTreeMap::new());
        Fleet { servers, links, stopper, random, faults, _network: network }
    }

    /// Injects a fault, and heals it after some acquisitions. Returns once every client has acquired the lock
    /// again.
    fn round(&mut self, stage: &Stage, longest: Duration) {
        let fewest = FAULTS.iter().map(|fault| self.faults.get(fault).copied().unwrap_or(0)).min();
        let due: Vec<Fault> = (FAULTS.into_iter())
            .filter(|fault| self.faults.get(fault).copied().unwrap_or(0) == fewest.unwrap_or(0))
            .collect();
        let fault = *self.random.of(&due);
        *self.faults.entry(fault).or_default() += 1;
        let before = sum(stage);
        self.set(fault, true);
        let end = now() + longest;
        until_within(TIMEOUT, "the fault has lasted", || sum(stage) >= before + 50 || now() > end);
        self.set(fault, false);
        self.until_all_acquire(stage, &format!("after {fault:?}"));
    }

    fn set(&mut self, fault: Fault, begins: bool) {
        if fault == Fault::Killed {
            if begins {
                let server = self.random.below(self.servers.len());
                self.servers[server].kill9();
                self.servers[server].restart();
            }
            return;
        }
        if matches!(fault, Fault::StopsClients | Fault::StopsClientsAndDelaysMessages) {
            self.stopper.is_on.store(begins, Relaxed);
        }
        let delays = matches!(
            fault,
            Fault::DelaysMessages | Fault::DelaysAndDuplicatesMessages | Fault::StopsClientsAndDelaysMessages
        );
        let duplicates = matches!(fault, Fault::DuplicatesMessages | Fault::DelaysAndDuplicatesMessages);
        let cut = match fault {
            Fault::LosesMessages => Cut::Messages,
            Fault::LosesRequests => Cut::Requests,
            Fault::LosesReplies => Cut::Answers,
            _ => Cut::Nothing,
        };
        for links in &self.links {
            // Some links are without the fault.
            for link in links.iter().filter(|_| !begins || !self.random.once_in(3)) {
                link.set_cut(if begins { cut } else { Cut::Nothing });
                link.set_message_delay(if begins && delays { LONGEST_DELAY } else { Duration::ZERO });
                link.set_duplicates_messages(begins && duplicates);
                let is_slow = begins && fault == Fault::Slow;
                link.set_delay(if is_slow { Duration::from_millis(300) } else { Duration::ZERO });
            }
        }
    }

    fn until_all_acquire(&self, stage: &Stage, when: &str) {
        let before: Vec<usize> = stage.acquired.iter().map(|(_, count)| count.load(Relaxed)).collect();
        for ((kind, count), before) in stage.acquired.iter().zip(before) {
            until_within(TIMEOUT, &format!("the {kind} client acquires the lock {when}"), || {
                count.load(Relaxed) > before
            });
        }
    }
}

impl Stopper {
    /// Stops the process at some of the messages of its link: before it can read the message, or up to 2 ms
    /// after, which is before or after it has sent its claim.
    fn watch(self: &Arc<Self>, pid: u32, link: &Proxy) {
        let stopper = self.clone();
        let random = std::sync::Mutex::new(Random::fresh());
        let is_stopped = Arc::new(AtomicBool::default());
        link.before_message(move || {
            let mut random = random.lock().expect("no panic");
            if !stopper.is_on.load(Relaxed) || !random.once_in(4) || is_stopped.swap(true, Relaxed) {
                return;
            }
            stopper.stops.fetch_add(1, Relaxed);
            let delay = Duration::from_micros(if random.once_in(2) { random.below(2_000) as u64 } else { 0 });
            let length = Duration::from_millis(random.below(2 * LEASE.as_millis() as usize) as u64);
            if delay.is_zero() {
                signal(pid, "STOP");
            }
            let is_stopped = is_stopped.clone();
            thread::spawn(move || {
                if !delay.is_zero() {
                    thread::sleep(delay);
                    signal(pid, "STOP");
                }
                thread::sleep(length);
                signal(pid, "CONT");
                is_stopped.store(false, Relaxed);
            });
        });
    }
}

/// Sends a signal. The process may have ended.
pub fn signal(pid: u32, name: &str) {
    let _ = Command::new("kill").args([&format!("-{name}"), &pid.to_string()]).status();
}

fn sum(stage: &Stage) -> usize {
    stage.acquired.iter().map(|(_, count)| count.load(Relaxed)).sum()
}
