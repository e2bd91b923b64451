//! Rust clients and clients in other languages contend for one lock while the master where they queue is
//! stopped.
//! `DLOCK_CHAOS_CLIENTS` names the programs: see `foreign_clients.rs`.

use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use tokio::runtime::Builder;

use crate::foreign_clients;
use crate::links::{HOLD, Links, compete, jain};
use crate::proxy::Proxy;
use dlock_testkit::{Server, ServerKind, each_server, until};

/// Number of Rust clients.
const CLIENTS: usize = 2;
const LENGTH: Duration = Duration::from_secs(10);

/// A client in another language. It acquires and releases until this value is dropped.
struct SteadyClient {
    process: Child,
    input: Option<ChildStdin>,
    held: Arc<AtomicUsize>,
}

impl SteadyClient {
    fn start(number: usize, program: &str, links: &[Proxy]) -> SteadyClient {
        let mut words = program.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        // The arguments are the client's number, the lease in ms, and the URLs of its links.
        command.args(words).arg(number.to_string()).arg("10000").args(links.iter().map(Proxy::url));
        // Makes the program hold one lock for this many ms each time, and cause no faults itself.
        command.env("DLOCK_STEADY", HOLD.as_millis().to_string());
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = piped.spawn().unwrap_or_else(|why| panic!("{program}: {why}"));
        let (input, output) = (process.stdin.take(), process.stdout.take().expect("a pipe"));
        let held = Arc::new(AtomicUsize::default());
        let count = held.clone();
        thread::spawn(move || {
            for line in BufReader::new(output).lines() {
                count.fetch_add(usize::from(line.expect("text") == "holds"), Relaxed);
            }
        });
        SteadyClient { process, input, held }
    }

    fn held(&self) -> usize {
        self.held.load(Relaxed)
    }
}

impl Drop for SteadyClient {
    fn drop(&mut self) {
        drop(self.input.take());
        let _ = self.process.wait();
    }
}

/// Lets the clients contend for [`LENGTH`], with the queue's master stopped if `stops`. Returns the number of
/// acquisitions of each client, Rust first.
fn shares(kind: &ServerKind, programs: &[String], stops: bool) -> Vec<usize> {
    let links = Links::start(kind, 3, CLIENTS + programs.len());
    let mut counts = Vec::new();
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime").block_on(async {
        let mut clients = links.clients().await;
        clients.truncate(CLIENTS);
        let mut foreign = Vec::new();
        for (number, program) in (CLIENTS..).zip(programs) {
            foreign.push(SteadyClient::start(number, program, &links.links[number]));
        }
        until("each foreign client has held the lock", || foreign.iter().all(|client| client.held() > 0));
        if stops {
            // All clients queue at the first master.
            links.masters[0].pause();
        }
        let before: Vec<usize> = foreign.iter().map(SteadyClient::held).collect();
        counts = compete(&clients, LENGTH).await;
        counts.extend(foreign.iter().zip(before).map(|(client, before)| client.held() - before));
        links.masters.iter().for_each(Server::resume);
    });
    counts
}

#[each_server(in_turn)]
#[ignore = "for 10 s: make chaos"]
fn clients_of_all_languages_leave_a_stopped_master_for_the_same_queue(kind: &ServerKind) {
    let programs = foreign_clients::programs();
    let rust = (0..CLIENTS).map(|_| "Rust".into());
    let kinds: Vec<String> =
        rust.chain(programs.iter().map(|program| foreign_clients::kind(program))).collect();
    let [healthy, stopped] = [false, true].map(|stops| {
        let counts = shares(kind, &programs, stops);
        let (sum, jain) = (counts.iter().sum::<usize>(), jain(&counts));
        let name = if stops { "the queue's master stopped" } else { "healthy" };
        println!("{}: {name}: {kinds:?} {counts:?}, {sum} in {LENGTH:?}, Jain {jain:.2}", kind.name);
        counts
    });
    let sum = |counts: &[usize]| counts.iter().sum::<usize>();
    // The fault may cost half of the acquisitions. Jain's index of fairness is 1 if all clients have acquired
    // the lock equally often.
    assert!(sum(&stopped) >= sum(&healthy) / 2 && jain(&stopped) >= 0.8, "stopped: {stopped:?}, {healthy:?}");
}
