//! Delay of other clients while 100,000 of 1,000,000 leases end together. `make stall` prints the figures.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_testkit::{Conn, Server, ServerKind, each_server, until};

const LIVE: usize = 1_000_000;
const DUE: usize = 100_000;

/// Acquires locks `from` to `to`, many in one script.
fn fill(conn: &mut Conn, from: usize, to: usize, ttl: &str) {
    const SCRIPT: &str =
        "for n = ARGV[1], ARGV[2] do redis.call('DLOCK.ACQUIRE', 'lock:' .. n, 'token:' .. n, ARGV[3]) end";
    for start in (from..to).step_by(10_000) {
        let (start, end) = (start.to_string(), (start + 9_999).min(to - 1).to_string());
        assert!(conn.call(&["EVAL", SCRIPT, "0", &start, &end, ttl]).is_nil());
    }
}

/// Returns the round-trip times of a client during `run`, shortest first.
#[allow(clippy::disallowed_methods, reason = "it measures")]
fn round_trips(server: &Server, run: impl FnOnce()) -> Vec<Duration> {
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        let pinging = scope.spawn(|| {
            let (mut conn, mut taken) = (server.connect(), Vec::new());
            while !done.load(Ordering::Relaxed) {
                let sent = Instant::now();
                assert_eq!(conn.ok("PING"), "PONG");
                taken.push(sent.elapsed());
            }
            taken.sort();
            taken
        });
        run();
        done.store(true, Ordering::Relaxed);
        pinging.join().expect("the pinging client is well")
    })
}

fn shown(times: &[Duration]) -> String {
    let at = |part: f64| times[((times.len() - 1) as f64 * part) as usize];
    format!("p50 {:?}, p99 {:?}, longest {:?} of {}", at(0.5), at(0.99), at(1.0), times.len())
}

#[each_server(in_turn)]
#[ignore = "half a minute and 500 MB: make stall"]
fn a_hundred_thousand_leases_that_end_together_stall_no_client(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    fill(&mut conn, DUE, LIVE, "86400000");
    let quiet = round_trips(&server, || thread::sleep(Duration::from_secs(2)));
    // Held back until all are due, so that they end together.
    fill(&mut conn, 0, DUE, "3000");
    assert_eq!(conn.ok("CLIENT PAUSE 600000 WRITE"), "OK");
    let last = format!("DLOCK.PTTL lock:{}", DUE - 1);
    until("all are due", || conn.ok(&last) == -2);
    let held = |conn: &mut Conn| {
        let info = conn.ok("INFO dlock").text();
        let line = info.lines().find_map(|line| line.strip_prefix("dlock_held:"));
        line.and_then(|number| number.parse::<usize>().ok()).expect("INFO has it")
    };
    let due = held(&mut conn) - (LIVE - DUE);
    let flood = round_trips(&server, || {
        assert_eq!(conn.ok("CLIENT UNPAUSE"), "OK");
        until("all of them have ended", || held(&mut conn) == LIVE - DUE);
    });
    assert_eq!(conn.ok("DBSIZE"), (LIVE - DUE) as i64);
    println!("{} {}: {LIVE} holds live", kind.name, kind.version);
    println!("  nothing due:      {}", shown(&quiet));
    println!("  {due} due together: {}", shown(&flood));
    assert!(due > DUE / 2, "most of them had ended before the flood: {due}");
}
