//! A lock that is lost ends the command, and everything it has started, before the lease expires.

use std::io::{PipeReader, Read};
use std::process::{Child, Command, Stdio};

use super::*;
use crate::stage::{full_pipe, is_alive, is_stopped, signal, status, until_renewed};
use dlock_testkit::{Conn, ServerKind, each_server};

/// Ends by SIGTERM, and says so.
const OBEYS: &str = "trap 'echo TERM > heard; exit 0' TERM; echo $$ > ready; while :; do sleep 0.02; done";

/// Does not, and what it starts does not either.
const IGNORES: &str = "trap '' TERM; setsid sh -c 'echo $$ > far; exec sleep 1000' & sleep 1000 & echo $! > near; \
    echo $$ > ready; while :; do sleep 0.02; done";

/// Waits until the command is at work and then breaks its lock.
#[track_caller]
fn broken(stage: &Stage) -> u32 {
    let command = stage.process("ready");
    assert_eq!(stage.connect().say("DLOCK.BREAK r"), 1);
    command
}

#[each_server]
fn run_ends_its_command_and_exits_with_79_when_the_lock_is_broken(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("--ttl 2s", OBEYS));
    let command = broken(&stage);
    let done = run.end();
    assert!(!is_alive(command));
    assert_eq!(stage.file("heard"), "TERM\n");
    assert_eq!(done.code, Some(79), "whatever the command's own was");
    done.says_first("dlock: the lock is lost: it was taken away");
    assert!(!done.stderr.contains("killed"), "{}", done.stderr);
}

#[each_server]
fn run_kills_a_command_that_ignores_sigterm_and_its_children(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("--ttl 2s --kill-after 100ms", IGNORES));
    let pids = [stage.process("far"), stage.process("near"), broken(&stage)];
    let done = run.end();
    assert_eq!(pids.map(is_alive), [false; 3]);
    assert_eq!(done.code, Some(79));
    done.says("is killed");
}

#[each_server]
fn a_stopped_command_handles_sigterm_when_the_lock_is_lost(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("--ttl 8s --kill-after 3s", OBEYS));
    let command = stage.process("ready");
    signal(command, "STOP");
    until("it is stopped", || is_stopped(command));
    broken(&stage);
    let done = run.end();
    assert_eq!((done.code, stage.file("heard").as_str()), (Some(79), "TERM\n"), "{}", done.stderr);
}

#[each_server]
fn run_kills_a_stopped_command_that_ignores_sigterm(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("--ttl 2s --kill-after 100ms", IGNORES));
    let pids = [stage.process("far"), stage.process("near"), stage.process("ready")];
    pids.iter().for_each(|pid| signal(*pid, "STOP"));
    broken(&stage);
    assert_eq!(run.end().code, Some(79));
    assert_eq!(pids.map(is_alive), [false; 3]);
}

/// The masters hear nothing of renewals any more, as behind a cut network, but can still be asked what they
/// think: the lease goes on there when the command is seen dead.
fn cut_off(kind: &ServerKind, servers: usize, options: &str, script: &str) {
    let stage = Stage::with(kind, servers);
    let run = stage.start(stage.run(options, script));
    let command = stage.process("ready");
    let mut conns: Vec<Conn> = stage.servers.iter().map(|server| server.connect()).collect();
    conns.iter_mut().for_each(|conn| assert_eq!(conn.say("CLIENT PAUSE 600000 WRITE"), "OK"));
    let mut longest = || conns.iter_mut().map(|conn| conn.ok("DLOCK.PTTL r").int()).max().expect("a server");
    loop {
        // In this order: what is left may only shrink between the two looks.
        let (alive, left) = (is_alive(command), longest());
        assert!(alive || left > 0, "the lease had ended when the command was seen dead");
        if !alive {
            break;
        }
        assert!(left > 0, "the command outlived its lease");
        std::thread::yield_now();
    }
    let done = run.end();
    assert_eq!(done.code, Some(79));
    done.says_first("dlock: the lock is lost: it was not renewed in time");
}

#[each_server]
fn a_command_that_obeys_sigterm_ends_before_its_lease_when_the_masters_are_silent(kind: &ServerKind) {
    cut_off(kind, 3, "--ttl 6s", OBEYS);
}

#[each_server]
fn a_command_that_ignores_sigterm_ends_before_its_lease_when_the_master_is_silent(kind: &ServerKind) {
    cut_off(kind, 1, "--ttl 9s --kill-after 1s", IGNORES);
}

#[each_server]
fn run_ends_its_command_when_a_majority_is_killed(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let run = stage.start(stage.run("--ttl 3s", OBEYS));
    let command = stage.process("ready");
    stage.servers[..2].iter().for_each(|server| server.kill9());
    let done = run.end();
    assert!(!is_alive(command));
    assert_eq!((done.code, stage.file("heard").as_str()), (Some(79), "TERM\n"), "{}", done.stderr);
}

#[each_server]
fn run_goes_on_when_a_minority_is_killed_or_stopped(kind: &ServerKind) {
    let stage = Stage::with(kind, 5);
    let run = stage.start(stage.run("--ttl 3s", "echo > ready; until [ -e go ]; do sleep 0.02; done"));
    stage.lines("ready");
    stage.servers[0].kill9();
    stage.servers[1].pause();
    let mut conn = stage.servers[2].connect();
    for _ in 0..2 {
        until_renewed(&mut conn, "r");
    }
    stage.servers[1].resume();
    stage.write("go", "");
    let done = run.end();
    assert_eq!((done.code, done.stderr), (Some(0), String::new()));
}

/// The command was done before it could be ended, and yet it was not alone all the time. The release tells,
/// if the server's push has not done so before.
#[each_server]
fn run_reports_a_loss_that_it_finds_at_the_release(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("--ttl 10m", "echo $$ > ready; until [ -e go ]; do sleep 0.02; done"));
    broken(&stage);
    stage.write("go", "");
    let done = run.end();
    assert_eq!(done.code, Some(79));
    let told = ["lost before the command ended", "lost while the command ended", "the lock is lost"];
    assert!(told.iter().any(|words| done.stderr.contains(words)), "{}", done.stderr);
}

#[each_server]
fn the_command_is_killed_when_dlock_is(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = stage.start(stage.run("", "trap '' TERM; echo $$ > ready; while :; do sleep 0.02; done"));
    let command = stage.process("ready");
    run.signal("KILL");
    assert_eq!(run.end().signal, Some(9));
    until("the command is dead", || !is_alive(command));
}

/// A pipe to a logger that has ended, a disk that is full.
#[each_server]
fn run_ends_its_command_when_stderr_is_full(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("script", OBEYS);
    let run = stage.start(stage.shell("exec \"$DLOCK\" run --ttl 2s r -- sh script 2> /dev/full"));
    let command = broken(&stage);
    assert_eq!((run.end().code, is_alive(command)), (Some(79), false));
    assert_eq!(stage.file("heard"), "TERM\n");
}

/// Whoever becomes dlock by exec hands over children that dlock knows nothing of.
#[each_server]
fn run_leaves_earlier_children_of_its_process_alone(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("inner", OBEYS);
    let script = "sleep 1000 & echo $! > before; exec \"$DLOCK\" run --ttl 2s r -- sh inner";
    let run = stage.start(stage.shell(script));
    let (before, command) = (stage.process("before"), broken(&stage));
    assert_eq!(run.end().code, Some(79));
    let lives = is_alive(before);
    signal(before, "KILL");
    assert_eq!((lives, is_alive(command)), (true, false));
}

/// The kernel shows such a process as a zombie.
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
    assert_eq!(stage.end(stage.shell("cc -o command command.c -pthread")).code, Some(0));
    let run = stage.start(stage.dlock("run --ttl 30s --kill-after 100ms r -- ./command"));
    let command = stage.process("ready");
    until("its first thread has ended", || {
        status(command, "State").is_some_and(|state| state.starts_with('Z'))
    });
    broken(&stage);
    let done = run.end();
    assert_eq!(done.code, Some(79));
    done.says("is killed");
    assert!(!done.stderr.contains("could not kill"), "{}", done.stderr);
}

/// What dlock says goes into a pipe that is full.
fn unheard(mut command: Command) -> (Child, PipeReader) {
    let (reader, writer) = full_pipe();
    let child = command.stdout(Stdio::null()).stderr(writer).spawn().expect("it starts");
    (child, reader)
}

/// Or a terminal that Ctrl-S has stopped.
#[each_server]
fn run_ends_its_command_when_stderr_is_not_read(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let (mut run, mut reader) = unheard(stage.run("--ttl 2s --kill-after 100ms", IGNORES));
    let pids = [stage.process("far"), stage.process("near"), broken(&stage)];
    until("all have ended", || pids.map(is_alive) == [false; 3]);
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("text");
    assert_eq!(run.wait().expect("it ends").code(), Some(79));
    let complaints: Vec<&str> = said.trim_start_matches('.').lines().collect();
    assert!(complaints[0].contains("the lock is lost") && complaints[1].contains("is killed"), "{said}");
}

#[each_server]
fn run_renews_the_lock_when_stderr_is_not_read(kind: &ServerKind) {
    let stage = Stage::with(kind, 2);
    let mut alone = stage.run("--ttl 2s", OBEYS);
    alone.env("DLOCK_SERVERS", stage.urls().split(',').next().expect("one"));
    let (mut run, mut reader) = unheard(alone);
    stage.process("ready");
    // Its list is another one, of which the first is told.
    assert_eq!(stage.end(stage.dlock("run --node-timeout 5s other -- true")).code, Some(0));
    let mut conn = stage.connect();
    let token = queue::holders(&mut conn, "r");
    for _ in 0..4 {
        until_renewed(&mut conn, "r");
    }
    assert_eq!(queue::holders(&mut conn, "r"), token);
    signal(run.id(), "TERM");
    let mut said = String::new();
    reader.read_to_string(&mut said).expect("text");
    assert_eq!(run.wait().expect("it ends").code(), Some(0));
    assert!(said.contains("names 2 servers, this one 1"), "{said}");
}
