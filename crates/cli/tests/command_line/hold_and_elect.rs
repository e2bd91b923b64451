//! `elect` and `hold`, and their behaviour after a loss.

use dlock_testkit::{ServerKind, each_server};
use std::os::unix::process::CommandExt;

use super::*;
use crate::stage::{is_alive, signal, until_renewed};
use dlock_testkit::wall_clock::{self, WallClock};

/// The leader's script: appends the candidate's name and its own process id to the file `leads`, and runs
/// until the file `end-NAME` exists.
const LEADER_SCRIPT: &str = "echo $NAME $$ >> leads; until [ -e end-$NAME ]; do sleep 0.02; done; exit 7";

/// Starts a candidate. `-k 1s`: if the command of a deposed leader survives SIGTERM for 1 s, it gets SIGKILL.
fn candidate(stage: &Stage, name: &str) -> Running {
    let mut elect = stage.dlock("elect --ttl 10m -k 1s scheduler --label");
    elect.arg(name).env("NAME", name).args(["--", "sh", "-c", LEADER_SCRIPT]);
    stage.start(elect)
}

/// Waits until the candidates have led in this order. Returns the process id of the last leader.
#[track_caller]
fn until_led_by(stage: &Stage, names: &[&str]) -> u32 {
    let mut last = String::new();
    until(&format!("{names:?} have led in this order"), || {
        let text = stage.file("leads");
        last = text.lines().last().unwrap_or_default().to_owned();
        text.ends_with('\n')
            && text.lines().map(|line| line.split(' ').next().expect("a name")).eq(names.iter().copied())
    });
    last.split(' ').nth(1).expect("a process").parse().expect("a number")
}

#[each_server]
fn a_deposed_leader_stands_for_election_again(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let observer = stage.start(stage.dlock("elect scheduler --observe"));
    until("the observer sees no leader", || observer.stdout().contains("scheduler has no leader"));
    let json = stage.start(stage.dlock("elect scheduler --observe --json"));
    let first = candidate(&stage, "one");
    let process = until_led_by(&stage, &["one"]);
    let second = candidate(&stage, "two");
    stage.until_waiting("scheduler", 1);
    until("the observer sees the first leader", || observer.stdout().contains("scheduler is led by one"));

    stage.servers.iter().for_each(|server| drop(server.connect().ok("DLOCK.BREAK scheduler")));
    until_led_by(&stage, &["one", "two"]);
    until("the command of the first candidate has ended", || !is_alive(process));
    until("the first candidate stands again", || first.stderr().contains("standing for election again"));
    until("the observers see the second leader", || {
        observer.stdout().contains("is led by two") && json.stdout().contains("\"leader\":\"two\"")
    });
    stage.write("end-two", "");
    assert_eq!(second.wait().code, Some(7), "dlock exits with the code of its command");
    until_led_by(&stage, &["one", "two", "one"]);
    until("the observer has seen every change", || observer.stdout().matches("is led by one").count() == 2);
    stage.write("end-one", "");
    assert_eq!(first.wait().code, Some(7));
    until("the observer sees no leader", || observer.stdout().ends_with("scheduler has no leader\n"));
    until("the JSON names no leader", || {
        let text = json.stdout();
        let last = text.lines().last().and_then(|line| serde_json::from_str::<serde_json::Value>(line).ok());
        last.is_some_and(|last| last["leader"].is_null() && last["known"] == true)
    });
    stage.servers[..2].iter().for_each(|server| server.kill9());
    until("the leader is unknown", || observer.stdout().ends_with("too few servers answer\n"));
    until("the reason is printed", || observer.stderr().matches(": down: ").count() >= 1);
}

/// A queue that is full, or from which an operator removes the candidate, does not take the candidate out of
/// the election.
#[each_server]
fn a_candidate_without_a_place_in_the_queue_stands_again(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("CONFIG SET dlock.max-waiters-per-key 0");
    conn.ok("DLOCK.ACQUIRE scheduler other 600000");
    let one = candidate(&stage, "one");
    until("the candidate was refused twice", || stage.servers[0].number("dlock_queue_refusals") >= 2);
    conn.ok("CONFIG SET dlock.max-waiters-per-key 10");
    stage.until_waiting("scheduler", 1);
    let token = queue::tokens(&mut conn, "scheduler").remove(0);
    conn.ok(&format!("DLOCK.CANCEL scheduler {token}"));
    until("the candidate waits again", || {
        queue::tokens(&mut conn, "scheduler").first().is_some_and(|now| *now != token)
    });
    conn.ok("DLOCK.RELEASE scheduler other");
    until_led_by(&stage, &["one"]);
    stage.write("end-one", "");
    let done = one.wait();
    assert_eq!(done.code, Some(7));
    done.assert_stderr_starts("dlock: the queue for scheduler is full (");
    assert_eq!(done.stderr.lines().count(), 1, "it is said once: {}", done.stderr);
}

/// A script that holds the lock, writes its token into the file `held`, and runs until the file `go` exists.
const SCRIPT: &str = "trap 'echo TERM > signals; exit 3' TERM; \
    held=$(\"$DLOCK\" hold r --pid $$ --ttl 6s) || exit; \
    echo $held > held; echo $$ > ready; until [ -e go ]; do sleep 0.02; done";

/// A shell reads the output of `$(..)` until the last process has closed it.
#[each_server]
fn hold_closes_a_pipe_on_its_standard_error_once_the_lock_is_held(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let script = "held=$(\"$DLOCK\" hold r --pid $$ --ttl 10m 2>&1); echo $held > held; until [ -e go ]; do sleep \
                  0.02; done";
    let script = stage.start(stage.shell(script));
    stage.until_written("held");
    assert_eq!(stage.held_on("r"), 1);
    assert_eq!(stage.create_go_and_wait(script).code, Some(0));
}

#[each_server]
fn hold_ends_when_its_script_ends(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    let script = stage.start(stage.shell(SCRIPT));
    stage.until_written("ready");
    let lock = conn.ok("DLOCK.INSPECT r").field("holders").items()[0].clone();
    let (token, fence) = (lock.field("token").text(), lock.field("fence").int());
    assert_eq!(stage.file("held"), format!("{token} {fence}\n"));
    assert!(lock.field("label").text().starts_with("process "), "{lock:?}");
    until_renewed(&mut conn, "r");
    // 75: another owner holds the lock.
    assert_eq!(
        stage.execute(stage.dlock(&format!("hold --no-wait r --pid {}", std::process::id()))).code,
        Some(75)
    );
    let done = stage.create_go_and_wait(script);
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    until("the lock is released", || stage.held_on("r") == 0);

    // The lock is released when its script is killed, too.
    assert_eq!(stage.execute(stage.shell("rm go ready")).code, Some(0));
    let script = stage.start(stage.shell(SCRIPT));
    signal(stage.process_id("ready"), "KILL");
    until("the lock is released", || stage.held_on("r") == 0);
    drop(script);
}

#[each_server]
fn hold_ends_its_script_when_the_lock_is_lost(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let script = stage.start(stage.shell(SCRIPT));
    stage.until_written("ready");
    stage.connect().ok("DLOCK.BREAK r");
    assert_eq!(script.wait().code, Some(3));
    assert_eq!(stage.file("signals"), "TERM\n");
    // No process has this id, so `hold` fails with a usage error.
    let done = stage.execute(stage.dlock("hold r --pid 999999999"));
    assert_eq!(done.code, Some(64), "{}", done.stderr);
}

/// A service manager sends SIGTERM to all processes of a service. The lock must be held until the script has
/// ended.
#[each_server]
fn hold_continues_when_its_script_survives_a_signal_to_the_group(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut script = stage.shell(&SCRIPT.replace("exit 3", "true"));
    script.process_group(0);
    let script = stage.start(script);
    stage.until_written("ready");
    let all = format!("kill -TERM -{}", script.id());
    assert_eq!(stage.execute(stage.shell(&all)).code, Some(0));
    assert_eq!(stage.lines("signals"), ["TERM"]);
    until_renewed(&mut stage.connect(), "r");
    stage.write("go", "");
    script.wait();
    until("the lock is released", || stage.held_on("r") == 0);
}

/// `dlock hold` starts a background process, which waits for the lock. This wait must end when the script or
/// the `dlock hold` that the script has called is killed.
#[each_server]
fn a_wait_of_hold_ends_when_its_script_or_dlock_is_killed(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("DLOCK.ACQUIRE r other 600000");
    for killed in ["script", "dlock"] {
        let script = format!(
            "\"$DLOCK\" hold r --pid $$ --wait 1m & echo $! > dlock-{killed}; echo $$ > script-{killed}; wait"
        );
        let script = stage.start(stage.shell(&script));
        stage.until_waiting("r", 1);
        // The file `script-{killed}` has the id of the script, and `dlock-{killed}` that of its `dlock hold`.
        signal(stage.process_id(&format!("{killed}-{killed}")), "KILL");
        until("the client has left the queue", || queue::tokens(&mut conn, "r").is_empty());
        drop(script);
    }
}

/// The clock of a machine without a battery starts in 1970.
#[each_server]
fn an_observer_with_an_unset_clock_names_the_leader(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("DLOCK.ACQUIRE scheduler t 600000 LABEL ada");
    let (preloaded, clock) = WallClock::of(kind);
    let acquired = wall_clock::seconds(&mut conn);
    // The observer's clock starts at 0, which is 1970. By this clock, a hold of 3 s began before 1970.
    until("the hold is 3 s old", || wall_clock::seconds(&mut conn) > acquired + 3);
    clock.set_offset(-wall_clock::seconds(&mut conn));
    let mut elect = stage.dlock("elect scheduler --observe");
    // Preloads the library with that clock into dlock.
    let variables = preloaded.command.iter().filter_map(|word| word.split_once('='));
    elect.envs(variables);
    let observer = stage.start(elect);
    until("the observer sees the leader", || {
        observer.stdout().starts_with("1970-01-01T00:00:00Z scheduler is led by ada")
    });
}
