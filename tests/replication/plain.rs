//! Plain commands in the log, which replicas and the append only file get. Each change of a lock is logged as
//! an effect (a `DLOCK._SET` with the new state as bytes) or as a plain command (an ACQUIRE without options,
//! or a RELEASE, verbatim). A plain command is logged only if all readers of the log derive the same state
//! from it and the last effect. So the first grant after a new reader has joined is an effect. An ACQUIRE is
//! verbatim only in the millisecond of the last effect, so these tests stop the clocks of their masters.

mod nested;
mod readers;

use dlock_testkit::{Conn, Layout, Options, Server, ServerKind, Stream, each_server, line, preloaded, until};

/// Stops the server's clock by a preloaded library. `each_server(shimmed)` leaves out the servers whose
/// modules do not call a preloaded library.
fn with_frozen_clock(kind: &ServerKind) -> Options {
    Server::options(&preloaded(kind, "tests/replication/frozen_clock.c", &[]))
}

/// Formats the commands of the log, except SELECT. Leaves out the bytes of effects.
fn words(log: &[Vec<Vec<u8>>]) -> Vec<String> {
    let word = |command: &Vec<Vec<u8>>| match &command[..] {
        [name, key, _] if name == b"DLOCK._SET" => format!("effect {}", key.escape_ascii()),
        command => line(command),
    };
    log.iter().map(word).filter(|word| !word.starts_with("SELECT")).collect()
}

fn grant(conn: &mut Conn, key: &str) -> i64 {
    conn.ok(&format!("DLOCK.ACQUIRE {key} t 600000")).int()
}

/// Acquires two locks with consecutive fences.
fn grant_both(conn: &mut Conn, keys: [&str; 2]) {
    let [first, second] = keys.map(|key| grant(conn, key));
    assert_eq!(second, first + 1);
}

/// Returns the number of log entries that the server could not apply.
fn skipped(server: &Server) -> i64 {
    server.number("dlock_effects_skipped")
}

#[each_server(shimmed)]
fn plain_commands_within_the_millisecond_of_an_effect_are_logged_verbatim(kind: &ServerKind) {
    let master = with_frozen_clock(kind).start();
    let mut conn = master.connect();
    let mut stream = Stream::of(&master);
    let first = grant(&mut conn, "a");
    assert_eq!(["b", "c"].map(|key| grant(&mut conn, key)), [first + 1, first + 2]);
    for command in [
        "DLOCK.RELEASE a t",
        "dlock.acquire a u 600000",
        "DLOCK.ACQUIRE d t 600000 LABEL host",
        "DLOCK.ACQUIRE e t MAX",
        "DLOCK.ACQUIRE f t 600000 SHARED",
        "DLOCK.ACQUIRE g t 600000",
        "DLOCK.EXTEND g t 700000",
        "DLOCK.ACQUIRE g t 800000",
        "DLOCK.RELEASE g t ALL",
        "DLOCK.RELEASE b t DELAY 0",
        "DLOCK.RELEASE c t DELAY 600000",
    ] {
        assert!(conn.ok(command).int() > 0, "{command}");
    }
    let sent = stream.drain();
    assert_eq!(
        words(&sent),
        [
            "effect a",
            "DLOCK.ACQUIRE b t 600000",
            "DLOCK.ACQUIRE c t 600000",
            "DLOCK.RELEASE a t",
            "dlock.acquire a u 600000",
            "effect d",
            "effect e",
            "effect f",
            "DLOCK.ACQUIRE g t 600000",
            "effect g",
            "effect g",
            "DLOCK.RELEASE g t ALL",
            "DLOCK.RELEASE b t DELAY 0",
            // The lock is not empty: the readers get the end of the delay.
            "effect c",
        ]
    );
    // From the time and the fence in the effect, the readers of the log derive the holds of the verbatim
    // commands after it. The deadline in the effect is rounded up to a whole ms.
    let effect = sent.iter().find(|command| command[0] == b"DLOCK._SET").expect("an effect");
    let (last, change) = effect[2].split_first_chunk().expect("a fence");
    assert_eq!(u64::from_le_bytes(*last), first as u64);
    let change = Layout::of(change);
    assert_eq!((change.put[0].granted, change.put[0].deadline), (change.at, change.at + 600_001));
}

/// A node of a cluster sends the log of a single slot to a node that takes the slot over. A verbatim grant
/// could build on an effect of another slot, which the new node does not get.
#[each_server(shimmed)]
fn grants_are_effects_in_a_cluster(kind: &ServerKind) {
    let node = with_frozen_clock(kind).conf("cluster-enabled yes").start();
    let mut conn = node.connect();
    conn.ok("CLUSTER ADDSLOTSRANGE 0 16383");
    until("the node serves its slots", || conn.say("DLOCK.HOLDS x t") == 0);
    let mut stream = Stream::of(&node);
    grant_both(&mut conn, ["a", "b"]);
    conn.ok("DLOCK.RELEASE a t");
    assert_eq!(words(&stream.drain()), ["effect a", "effect b", "DLOCK.RELEASE a t"]);
}
