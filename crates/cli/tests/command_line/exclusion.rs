//! Mutual exclusion of commands.

use super::*;
use dlock_testkit::{Conn, Server, ServerKind, each_server};

/// Fails if another one is inside (mkdir), or if its fence is not greater than the last one in the file
/// `fence`.
const GUARDED: &str = r#"
    mkdir inside || exit 99
    [ "$DLOCK_FENCE" -gt "$(cat fence)" ] || exit 98
    echo "$DLOCK_FENCE" > fence
    echo done >> log
    rmdir inside"#;

const RUNS: usize = 12;

fn guarded(kind: &ServerKind, servers: usize, options: &str) {
    let stage = Stage::with(kind, servers);
    stage.write("fence", "0\n");
    // Another token holds the lock until all runs wait.
    let mut conns: Vec<Conn> = stage.servers.iter().map(Server::connect).collect();
    conns.iter_mut().for_each(|conn| drop(conn.ok("DLOCK.ACQUIRE r other 600000")));
    let runs: Vec<Running> = (0..RUNS).map(|_| stage.start(stage.run(options, GUARDED))).collect();
    until("all of them wait", || {
        conns.iter_mut().map(|conn| queue::clients(conn, "r").len()).sum::<usize>() == RUNS
    });
    conns.iter_mut().for_each(|conn| assert_eq!(conn.say("DLOCK.RELEASE r other"), 1));
    for run in runs {
        let done = run.end();
        assert_eq!((done.code, done.stderr), (Some(0), String::new()));
    }
    assert_eq!(stage.lines("log").len(), RUNS);
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn parallel_runs_exclude_each_other_and_their_fences_rise(kind: &ServerKind) {
    guarded(kind, 1, "");
}

#[each_server]
fn parallel_runs_exclude_each_other_in_a_quorum(kind: &ServerKind) {
    guarded(kind, 3, "--fenced");
}

#[each_server]
fn shared_runs_overlap_and_exclude_exclusive_ones(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let meet = "echo here >> met; until [ -e go ]; do sleep 0.02; done";
    let sharers: Vec<Running> = (0..2).map(|_| stage.start(stage.run("--shared", meet))).collect();
    until("both are at work", || stage.file("met").lines().count() == 2);
    assert_eq!(stage.end(stage.run("--no-wait", "true")).code, Some(75));
    stage.write("go", "");
    for sharer in sharers {
        assert_eq!(sharer.end().code, Some(0));
    }
    assert_eq!(stage.end(stage.run("--no-wait", "true")).code, Some(0));
}
