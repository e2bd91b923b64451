//! When a lock is lost, dlock ends the command and its children before the lease expires.

use std::io::{PipeReader, Read};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::Duration;

use super::*;
use crate::stage::{full_pipe, is_alive, is_stopped, signal, status, until_renewed};
use dlock_testkit::{Conn, Server, ServerKind, each_server};

/// A command that writes `TERM` into the file `signals` when it receives SIGTERM, and exits.
const OBEYS: &str = "trap 'echo TERM > signals; exit 0' TERM; echo $$ > ready; while :; do sleep 0.02; done";

/// A command that ignores SIGTERM, with two children that ignore it too: `far` in a session of its own,
/// `near` in the command's process group.
const IGNORES: &str = "trap '' TERM; setsid sh -c 'echo $$ > far; exec sleep 1000' & sleep 1000 & echo $! > near; \
    echo $$ > ready; while :; do sleep 0.02; done";

/// Options that give the command more time to handle SIGTERM than it needs on a busy machine.
const PATIENT: &str = "--ttl 1m --kill-after 25s";

/// Waits until the command runs, and then breaks its lock. Returns the process id of the command.
#[track_caller]
fn break_lock(stage: &Stage) -> u32 {
    let command = stage.process_id("ready");
    assert_eq!(stage.connect().say("DLOCK.BREAK r"), 1);
    command
}

#[each_server]
fn run_ends_its_command_and_exits_with_79_when_the_lock_is_broken(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run(PATIENT, OBEYS));
    let command = break_lock(&stage);
    let done = run.wait();
    assert!(!is_alive(command));
    assert_eq!(stage.file("signals"), "TERM\n");
    assert_eq!(done.code, Some(79), "dlock exits with 79 instead of the code of its command");
    done.assert_stderr("dlock: the lock is lost: it was taken away");
    assert!(!done.stderr.contains("killed"), "{}", done.stderr);
}

#[each_server]
fn run_kills_a_command_that_ignores_sigterm_and_its_children(kind: &ServerKind) {
    for stopped in [false, true] {
        let stage = Stage::one(kind);
        let run = stage.start(stage.run("--ttl 1m --kill-after 100ms", IGNORES));
        let pids = [stage.process_id("far"), stage.process_id("near"), stage.process_id("ready")];
        pids.iter().filter(|_| stopped).for_each(|pid| signal(*pid, "STOP"));
        break_lock(&stage);
        let done = run.wait();
        assert_eq!(pids.map(is_alive), [false; 3]);
        assert_eq!(done.code, Some(79));
        done.assert_stderr("is killed");
    }
}

#[each_server]
fn a_stopped_command_handles_sigterm_when_the_lock_is_lost(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run(PATIENT, OBEYS));
    let command = stage.process_id("ready");
    signal(command, "STOP");
    until("the command is stopped", || is_stopped(command));
    break_lock(&stage);
    let done = run.wait();
    assert_eq!((done.code, stage.file("signals").as_str()), (Some(79), "TERM\n"), "{}", done.stderr);
}

/// The servers do not answer renewals, as if the network were cut, but they still answer reads.
#[each_server]
fn a_command_ends_before_its_lease_when_the_servers_are_silent(kind: &ServerKind) {
    for (servers, options, script) in [(3, "--ttl 20s", OBEYS), (1, "--ttl 20s --kill-after 1s", IGNORES)] {
        let stage = Stage::with(kind, servers);
        let run = stage.start(stage.run(options, script));
        let command = stage.process_id("ready");
        let mut conns: Vec<Conn> = stage.servers.iter().map(|server| server.connect()).collect();
        conns.iter_mut().for_each(|conn| assert_eq!(conn.say("CLIENT PAUSE 600000 WRITE"), "OK"));
        let mut left = || conns.iter_mut().map(|conn| conn.ok("DLOCK.PTTL r").int()).max().expect("a server");
        loop {
            // The lease is read before the command is checked. If the lease is 0 and the command is still
            // alive at the check, it has outlived its lease.
            let left = left();
            if !is_alive(command) {
                break;
            }
            assert!(left > 0, "the command outlived its lease, with the script {script}");
            sleep(Duration::from_millis(5));
        }
        let done = run.wait();
        assert_eq!(done.code, Some(79));
        done.assert_stderr("dlock: the lock is lost: it was not renewed in time");
    }
}

#[each_server]
fn run_ends_its_command_when_a_majority_is_killed(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let run = stage.start(stage.run("--ttl 12s --kill-after 5s", OBEYS));
    let command = stage.process_id("ready");
    stage.servers[..2].iter().for_each(|server| server.kill9());
    let done = run.wait();
    assert!(!is_alive(command));
    assert_eq!((done.code, stage.file("signals").as_str()), (Some(79), "TERM\n"), "{}", done.stderr);
}

#[each_server]
fn run_continues_when_a_minority_is_killed_or_stopped(kind: &ServerKind) {
    let stage = Stage::with(kind, 5);
    let run = stage.start(stage.run("--ttl 6s", "echo > ready; until [ -e go ]; do sleep 0.02; done"));
    stage.until_written("ready");
    stage.servers[0].kill9();
    stage.servers[1].pause();
    let mut conn = stage.servers[2].connect();
    for _ in 0..2 {
        until_renewed(&mut conn, "r");
    }
    stage.servers[1].resume();
    let done = stage.create_go_and_wait(run);
    assert_eq!((done.code, done.stderr), (Some(0), String::new()));
}

/// The command ends directly after its lock is broken. The server's push message tells dlock of the loss. If
/// the command ends before the message arrives, the reply to dlock's RELEASE does.
#[each_server]
fn run_reports_a_loss_that_occurs_directly_before_the_command_ends(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("--ttl 10m", "echo $$ > ready; until [ -e go ]; do sleep 0.02; done"));
    break_lock(&stage);
    let done = stage.create_go_and_wait(run);
    assert_eq!(done.code, Some(79));
    let messages = ["lost before the command ended", "lost while the command ended", "the lock is lost"];
    assert!(messages.iter().any(|words| done.stderr.contains(words)), "{}", done.stderr);
}

#[each_server]
fn the_command_is_killed_when_dlock_is_killed(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("", "trap '' TERM; echo $$ > ready; while :; do sleep 0.02; done"));
    let command = stage.process_id("ready");
    run.signal("KILL");
    assert_eq!(run.wait().signal, Some(9));
    until("the command is dead", || !is_alive(command));
}

/// Every write to /dev/full fails, as on a full disk.
#[each_server]
fn run_ends_its_command_when_stderr_is_full(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("script", OBEYS);
    let run =
        stage.start(stage.shell("exec \"$DLOCK\" run --ttl 1m --kill-after 25s r -- sh script 2> /dev/full"));
    let command = break_lock(&stage);
    assert_eq!((run.wait().code, is_alive(command)), (Some(79), false));
    assert_eq!(stage.file("signals"), "TERM\n");
}

/// A shell that becomes dlock by exec may already have children, which are not part of the command.
#[each_server]
fn run_leaves_earlier_children_of_its_process_alone(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("inner", OBEYS);
    let script = "sleep 1000 & echo $! > before; exec \"$DLOCK\" run --ttl 1m --kill-after 25s r -- sh inner";
    let run = stage.start(stage.shell(script));
    let (before, command) = (stage.process_id("before"), break_lock(&stage));
    assert_eq!(run.wait().code, Some(79));
    let is_alive_after = is_alive(before);
    signal(before, "KILL");
    assert_eq!((is_alive_after, is_alive(command)), (true, false));
}

/// The first thread of this program ends while another one runs. The kernel shows the program as a zombie.
const FIRST_THREAD_ENDS: &str = r#"
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <unistd.h>

static void *stay(void *unused) {
    for (;;) pause();
}

int main(void) {
    pthread_t other;
    signal(SIGTERM, SIG_IGN);
    pthread_create(&other, 0, stay, 0);
    FILE *ready = fopen("ready", "w");
    fprintf(ready, "%d\n", getpid());
    fclose(ready);
    pthread_exit(0);
}
"#;

#[each_server]
fn run_kills_a_command_whose_first_thread_has_ended(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("command.c", FIRST_THREAD_ENDS);
    assert_eq!(stage.execute(stage.shell("cc -o command command.c -pthread")).code, Some(0));
    let run = stage.start(stage.dlock("run --ttl 30s --kill-after 100ms r -- ./command"));
    let command = stage.process_id("ready");
    until("the first thread of the command has ended", || {
        status(command, "State").is_some_and(|state| state.starts_with('Z'))
    });
    break_lock(&stage);
    let done = run.wait();
    assert_eq!(done.code, Some(79));
    done.assert_stderr("is killed");
    assert!(!done.stderr.contains("could not kill"), "{}", done.stderr);
}

/// Starts a command whose standard error is a full pipe.
fn start_with_full_stderr(mut command: Command) -> (Child, PipeReader) {
    let (reader, writer) = full_pipe();
    let child = command.stdout(Stdio::null()).stderr(writer).spawn().expect("dlock starts");
    (child, reader)
}

/// dlock cannot write to the full pipe, as to a terminal that Ctrl-S has stopped.
#[each_server]
fn run_ends_its_command_when_stderr_is_not_read(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let (mut run, mut reader) = start_with_full_stderr(stage.run("--ttl 1m --kill-after 100ms", IGNORES));
    let pids = [stage.process_id("far"), stage.process_id("near"), break_lock(&stage)];
    until("the command and its children have ended", || pids.map(is_alive) == [false; 3]);
    let mut output = String::new();
    reader.read_to_string(&mut output).expect("text");
    assert_eq!(run.wait().expect("dlock ends").code(), Some(79));
    // `full_pipe` filled the pipe with dots.
    let messages: Vec<&str> = output.trim_start_matches('.').lines().collect();
    assert!(messages[0].contains("the lock is lost") && messages[1].contains("is killed"), "{output}");
}

#[each_server]
fn run_renews_the_lock_when_stderr_is_not_read(kind: &ServerKind) {
    let stage = Stage::with(kind, 2);
    // dlock warns of this member, because it lacks the module.
    let without_module = Server::options(kind).without_module().start();
    let mut command = stage.run("--ttl 3s", OBEYS);
    command.env("DLOCK_SERVERS", format!("{},redis://127.0.0.1:{}", stage.urls(), without_module.port()));
    let (mut run, mut reader) = start_with_full_stderr(command);
    stage.until_written("ready");
    let mut conn = stage.connect();
    let token = queue::holders(&mut conn, "r");
    for _ in 0..4 {
        until_renewed(&mut conn, "r");
    }
    assert_eq!(queue::holders(&mut conn, "r"), token);
    signal(run.id(), "TERM");
    let mut output = String::new();
    reader.read_to_string(&mut output).expect("text");
    assert_eq!(run.wait().expect("dlock ends").code(), Some(0));
    assert!(output.contains("cannot take part"), "{output}");
}
