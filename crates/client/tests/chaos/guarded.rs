//! Guarded writes (DLOCK.GUARD, which writes only if the token holds the lock) under faults on one server:
//! holders pause past their leases, requests arrive late, the server stops. The server's events show the
//! order of holds and writes: no guarded write lands after the end of its hold. With plain writes, the same
//! run must contain such a write.

use std::collections::{HashMap, HashSet};
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::thread;
use std::time::Duration;

use dlock_client::now;
use tokio::runtime::Builder;

use crate::FEW;
use crate::proxy::Proxy;
use dlock_testkit::workers::SetAtTheEnd;
use dlock_testkit::{Conn, Events, Random, Server, ServerKind, each_server, rounds, until_within};

const CONTENDERS: usize = 6;
const RESOURCES: [&str; 2] = ["ledger", "stock"];
const LEASE: Duration = Duration::from_millis(100);
/// Longest random delay of requests and replies in the proxy.
const MAX_DELAY: Duration = Duration::from_millis(80);
const TIMEOUT: Duration = Duration::from_secs(60);

/// Whether the contenders' writes are guarded.
#[derive(Clone, Copy)]
enum Writes {
    Guarded,
    Plain,
}

/// State that the contenders of a run share.
struct Arena {
    writes: Writes,
    ended: AtomicBool,
    landed: AtomicUsize,
    refused: AtomicUsize,
    /// Writes that landed although they were sent after the end of the lease.
    late: Mutex<Vec<String>>,
}

#[each_server(in_turn)]
fn guarded_writes_of_a_paused_holder_are_rejected(kind: &ServerKind) {
    assert_no_late_write(kind, FEW);
}

#[each_server(in_turn)]
#[ignore = "for ROUNDS rounds: make chaos"]
fn guarded_writes_of_a_paused_holder_are_rejected_in_many_rounds(kind: &ServerKind) {
    assert_no_late_write(kind, rounds(100));
}

#[each_server(in_turn)]
fn plain_writes_of_a_paused_holder_land(kind: &ServerKind) {
    let (late, events, _) = run(kind, Writes::Plain, FEW);
    assert!(!late.is_empty() && !violations(&events).is_empty(), "the checker found no late write: {late:?}");
}

fn assert_no_late_write(kind: &ServerKind, rounds: usize) {
    let (late, events, [landed, refused]) = run(kind, Writes::Guarded, rounds);
    println!("{}: {rounds} rounds, {landed} guarded writes landed, {refused} were refused", kind.name);
    let wrong = [late, violations(&events)].concat();
    assert!(wrong.is_empty(), "{} violations: {:#?}", wrong.len(), &wrong[..wrong.len().min(20)]);
}

/// Returns the late writes, all events of the server in order, and the numbers of writes that landed and were
/// refused.
fn run(kind: &ServerKind, writes: Writes, rounds: usize) -> (Vec<String>, Vec<(String, String)>, [usize; 2]) {
    let mut random = Random::fresh();
    let network = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
    let server = Server::start(kind);
    let proxy = Proxy::to(server.port(), network.handle(), random.branch());
    let mut subscriber = Events::subscribe(&server, "__keyspace@0__:*");
    let mut events = Vec::new();
    let arena = Arena {
        writes,
        ended: AtomicBool::new(false),
        landed: AtomicUsize::new(0),
        refused: AtomicUsize::new(0),
        late: Mutex::new(Vec::new()),
    };
    thread::scope(|scope| {
        let _end = SetAtTheEnd(&arena.ended);
        for number in 0..CONTENDERS {
            let (arena, conn, random) = (&arena, Conn::open(proxy.port()), random.branch());
            scope.spawn(move || arena.contend(number, conn, random));
        }
        for round in 0..rounds {
            proxy.set_delay(if round % 2 == 0 { MAX_DELAY } else { Duration::ZERO });
            if random.once_in(2) {
                server.pause();
                thread::sleep(LEASE);
                server.resume();
            }
            let late = || arena.late.lock().expect("no panic").len();
            let counts = || (arena.landed.load(Relaxed), arena.refused.load(Relaxed) + late());
            let (landed, refused_or_late) = counts();
            until_within(TIMEOUT, "writes land, and others are refused or late", || {
                counts().0 > landed + 10 && counts().1 > refused_or_late + 2
            });
            events.extend(subscriber.so_far());
        }
    });
    events.extend(subscriber.so_far());
    let Arena { landed, refused, late, .. } = arena;
    (late.into_inner().expect("no panic"), events, [landed.into_inner(), refused.into_inner()])
}

impl Arena {
    fn contend(&self, number: usize, mut conn: Conn, mut random: Random) {
        for turn in 0.. {
            if self.ended.load(Relaxed) {
                return;
            }
            let (resource, token) = (*random.of(&RESOURCES), format!("{number}-{turn}"));
            let ttl = LEASE.as_millis();
            if conn.ok(&format!("DLOCK.ACQUIRE {resource} {token} {ttl} BLOCK 1000")).is_nil() {
                continue;
            }
            // The lease ends at this time or earlier, because it began before the reply arrived. The server
            // rounds times to ms.
            let end = now() + LEASE + Duration::from_millis(1);
            for _ in 0..=random.below(4) {
                let late = now() > end;
                if !self.write(&mut conn, resource, &token) {
                    break;
                }
                if late {
                    self.late.lock().expect("no panic").push(format!("{token} on {resource}"));
                }
                if random.once_in(3) {
                    thread::sleep(LEASE * random.below(150) as u32 / 100);
                }
            }
            conn.ok(&format!("DLOCK.RELEASE {resource} {token}"));
        }
    }

    /// Writes once. Returns whether the write landed.
    fn write(&self, conn: &mut Conn, resource: &str, token: &str) -> bool {
        let write = format!("SET {resource}:{token} x");
        let answer = match self.writes {
            Writes::Guarded => conn.say(&format!("DLOCK.GUARD {resource} {token} {write}")),
            Writes::Plain => conn.say(&write),
        };
        let landed = answer == "OK";
        assert!(landed || answer.error().starts_with("NOTHELD "), "{answer:?}");
        let count = if landed { &self.landed } else { &self.refused };
        count.fetch_add(1, Relaxed);
        landed
    }
}

/// State of a resource, from its events. The event of a grant does not name the token, but the key of a write
/// does (`RESOURCE:TOKEN`). So the first token that writes counts as the holder.
#[derive(Default)]
struct Resource<'a> {
    held: bool,
    /// Token of the first write during this hold.
    writer: Option<&'a str>,
    /// Tokens that wrote during earlier holds.
    ended_writers: HashSet<&'a str>,
}

/// Returns the writes that landed while the resource was free or held by another token.
fn violations(events: &[(String, String)]) -> Vec<String> {
    let mut resources: HashMap<&str, Resource> = HashMap::new();
    let mut wrong = Vec::new();
    for (channel, event) in events {
        let key = channel.trim_start_matches("__keyspace@0__:");
        let (resource, token) = key.split_once(':').unwrap_or((key, ""));
        let state = resources.entry(resource).or_default();
        match event.as_str() {
            "dlock.acquire" => (state.held, state.writer) = (true, None),
            "dlock.release" | "dlock.expired" => {
                state.held = false;
                state.ended_writers.extend(state.writer.take());
            }
            "set" => {
                let writer = *state.writer.get_or_insert(token);
                if !state.held || writer != token || state.ended_writers.contains(token) {
                    let held = state.held;
                    wrong.push(format!("{token} wrote to {resource} (held: {held}, writer: {writer})"));
                }
            }
            _ => {}
        }
    }
    wrong
}

#[test]
fn the_checker_rejects_a_write_under_another_hold_or_none() {
    let count_violations = |steps: &[&str]| {
        let events = steps.iter().map(|step| match step.strip_prefix("set ") {
            Some(token) => (format!("__keyspace@0__:r:{token}"), "set".to_owned()),
            None => ("__keyspace@0__:r".to_owned(), (*step).to_owned()),
        });
        violations(&events.collect::<Vec<_>>()).len()
    };
    let (begins, ends) = ("dlock.acquire", "dlock.expired");
    assert_eq!(count_violations(&[begins, "set a", "set a", ends, begins, "set b", "dlock.release"]), 0);
    assert_eq!(count_violations(&["set a"]), 1);
    assert_eq!(count_violations(&[begins, "set a", ends, "set a"]), 1);
    assert_eq!(count_violations(&[begins, "set a", ends, begins, "set a"]), 1);
    assert_eq!(count_violations(&[begins, "set a", ends, begins, "set b", "set a"]), 1);
}
