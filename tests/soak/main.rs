//! A long mixed load: clients lock, wait and disconnect; an operator reads, breaks, configures and pauses.
//! All replies are checked. `make soak SECONDS=3600` runs it on one server after the other, `make test` for a
//! few seconds. The run consists of episodes. At the end of each, the clients release all locks, and the test
//! checks the history. At the end of the run, the server must be as small as after the first episode.

#![allow(clippy::disallowed_methods, reason = "the test runs for a given time")]

mod figures;
mod operator;

use std::time::{Duration, Instant};

use dlock_testkit::history::History;
use dlock_testkit::workers::{Clock, Plan, Worker, during, history};
use dlock_testkit::{Random, Server, ServerKind, Wire, each_server, run_time, until};
use figures::{Figures, Size};
use operator::Operator;

const WORKERS: usize = 16;

fn plan() -> Plan {
    Plan {
        options: vec!["", "", "EPHEMERAL", "DELAY 30", "DEPTH 2", "REENTRANT LABEL soak"],
        batch: 6,
        waits: vec![
            "",
            "",
            "BLOCK 0",
            "BLOCK 20",
            "BLOCK 1000",
            "QUEUE 100 NOTIFY channel x",
            "QUEUE 5000",
            "BLOCK 20 QUEUE 5000",
        ],
        timeout: Duration::from_secs(120),
        max_pause: 25,
        hang_up_once_in: 100,
        ..Plan::new(&[5, 20, 100, 400])
    }
}

#[each_server(in_turn)]
fn a_few_seconds_of_mixed_load_break_no_promise(kind: &ServerKind) {
    soak(kind, Duration::from_secs(4), Duration::from_secs(2));
}

#[each_server(in_turn)]
#[ignore = "as long as SECONDS says: make soak"]
fn a_long_mixed_load_breaks_no_promise(kind: &ServerKind) {
    let time = run_time().unwrap_or(Duration::from_secs(3_600));
    soak(kind, time, Duration::from_secs(10));
}

fn soak(kind: &ServerKind, time: Duration, episode: Duration) {
    let mut random = Random::fresh();
    // With the default of 64mb, the server would rewrite its append only file less often.
    let server = Server::options(kind).conf("appendonly yes").conf("auto-aof-rewrite-min-size 4mb").start();
    let clock = Clock::start();
    let (mut figures, begun) = (Figures::default(), Instant::now());
    // The first episode fills the server's caches: tables, pools, statistics.
    figures.add(&run(&server, clock, &mut random, episode));
    let before = Size::settled(&server);
    while begun.elapsed() < time {
        figures.add(&run(&server, clock, &mut random, episode));
        figures.show_progress(&server, begun.elapsed(), time);
    }
    let after = Size::small_again(&server, &before);
    figures.show(&server, begun.elapsed(), &before, &after);
    figures.assert_everything_happened();
}

/// Runs one episode and checks its history.
fn run(server: &Server, clock: Clock, random: &mut Random, time: Duration) -> Figures {
    let plan = plan();
    let mut workers: Vec<Worker<'_>> =
        (0..WORKERS).map(|n| Worker::new(format!("client{n}"), &plan, clock, random.branch())).collect();
    let mut operator = Operator::new(server, &plan, clock, random.branch());
    during(
        &mut workers,
        || server.port(),
        |_| {
            let begun = Instant::now();
            while begun.elapsed() < time {
                operator.act();
            }
        },
    );
    for worker in &mut workers {
        let mut wire = Wire::connect(server.port()).expect("the server answers");
        worker.release_everything(&mut wire).expect("the server accepts the releases");
    }
    // The server may still execute requests of disconnected clients.
    until("no lock is held and no client waits", || {
        let gauges = ["dlock_held", "dlock_holders", "dlock_waiting", "dlock_queued", "blocked_clients"];
        server.numbers(gauges) == [0; 5]
    });
    let figures = Figures::of(&workers, &operator);
    let Operator { reports, breaks, .. } = operator;
    let history = History { breaks, ..history(workers, reports) };
    let faults =
        [history.exclusion(), history.fences(), history.queue(), history.reported_holders()].concat();
    assert!(faults.is_empty(), "{:#?}", &faults[..faults.len().min(20)]);
    figures
}
