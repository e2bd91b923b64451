//! Signals that dlock receives: `dlock run` forwards them to its command, and ends the processes that a
//! killed command leaves behind. While no command runs, a signal ends dlock.

use std::os::unix::process::ExitStatusExt;

use super::*;
use crate::stage::{full_pipe, is_alive, is_stopped, signal, status, until_renewed};
use dlock_testkit::{ServerKind, each_server, until_some};

/// A script that writes the name of each signal that it receives into the file `signals`, and ends when the
/// file `go` exists.
const LISTEN: &str = r#"
    for name in $NAMES; do trap "echo $name >> signals" $name; done
    echo $$ > ready
    until [ -e go ]; do sleep 0.02; done"#;

#[each_server]
fn run_forwards_each_signal_once(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let names = [
        "TERM", "INT", "HUP", "QUIT", "USR1", "USR2", "TSTP", "ALRM", "VTALRM", "PROF", "XCPU", "XFSZ",
        "ABRT", "PWR", "WINCH", "CONT", "URG",
    ];
    let mut run = stage.run("", LISTEN);
    run.env("NAMES", names.join(" "));
    let run = stage.start(run);
    stage.until_written("ready");
    for (count, name) in names.into_iter().enumerate() {
        run.signal(name);
        until(&format!("the command receives SIG{name}"), || stage.file("signals").lines().count() > count);
    }
    let done = stage.create_go_and_wait(run);
    assert_eq!((done.code, done.stderr), (Some(0), String::new()));
    assert_eq!(stage.lines("signals"), names);
}

#[each_server]
fn the_command_inherits_the_ignored_signals_and_blocks_none(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let masks = "grep -E 'SigBlk|SigIgn' /proc/self/status";
    let masks_of = |script: &str| stage.execute(stage.shell(script)).stdout;
    let plain = masks_of(masks);
    assert!(plain.starts_with("SigBlk:\t0000000000000000\nSigIgn:\t"), "{plain}");
    assert_eq!(masks_of(&format!("\"$DLOCK\" run r -- {masks}")), plain);
    let ignored = masks_of(&format!("trap '' HUP USR2; {masks}"));
    assert_ne!(ignored, plain);
    assert_eq!(masks_of(&format!("trap '' HUP USR2; \"$DLOCK\" run r -- {masks}")), ignored);
}

/// A shell that is terminated leaves its children running, which must not continue without the lock.
#[each_server]
fn run_ends_the_children_of_a_terminated_shell_before_it_frees_the_lock(kind: &ServerKind) {
    let stage = Stage::one(kind);
    // `setsid` and `timeout` leave the shell's process group, so a signal to that group would not reach them.
    let script = "setsid sleep 1000 & echo $! > one; timeout 1000 sleep 1000 & echo $! > two; wait";
    let run = stage.start(stage.run("", script));
    let (one, two) = (stage.process_id("one"), stage.process_id("two"));
    assert_eq!(stage.held_on("r"), 1);
    run.signal("TERM");
    let done = run.wait();
    assert_eq!((done.code, done.stderr), (Some(143), String::new()));
    assert!(!is_alive(one) && !is_alive(two));
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn children_outlive_a_command_that_exits_by_itself(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = stage.execute(stage.run("", "sleep 1000 & echo $! > daemon"));
    let daemon = stage.process_id("daemon");
    let lives = is_alive(daemon);
    signal(daemon, "KILL");
    assert_eq!((done.code, lives), (Some(0), true));
    assert_eq!(stage.held_on("r"), 0);
}

/// Orphans become children of dlock, which must reap them, because a command may run for years and leave
/// many.
#[each_server]
fn run_reaps_adopted_orphans(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let script = "(sleep 0 & sleep 1000 & echo $! > orphan); until [ -e go ]; do sleep 0.02; done";
    let run = stage.start(stage.run("", script));
    let orphan = stage.process_id("orphan");
    until("dlock is the parent of the orphan", || status(orphan, "PPid") == Some(run.id().to_string()));
    signal(orphan, "KILL");
    until("the orphan is reaped", || status(orphan, "State").is_none());
    assert_eq!(stage.create_go_and_wait(run).code, Some(0));
}

#[each_server]
fn a_signal_ends_a_waiting_run_and_removes_it_from_the_queues(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    stage.on_each("DLOCK.ACQUIRE r other 600000");
    for (name, number) in [("TERM", 15), ("INT", 2), ("USR1", 10), ("ALRM", 14), ("SEGV", 11)] {
        let run = stage.start(stage.run("", "echo ran"));
        stage.until_waiting("r", 1);
        run.signal(name);
        let done = run.wait();
        assert_eq!((done.code, done.signal, done.stdout.as_str()), (None, Some(number), ""));
        stage.servers.iter().for_each(queue::until_no_waiters);
    }
    assert_eq!(stage.held_on("r"), 3, "the other client still holds the lock");
}

/// dlock blocks signals, so a signal does not interrupt a write to a full pipe. dlock must read the signal
/// (from a signalfd) while the write lasts.
#[each_server]
fn a_signal_ends_dlock_while_it_writes_to_a_full_pipe(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    // Makes an entry for `log`.
    conn.ok("DLOCK.ACQUIRE broken somebody 600000");
    conn.ok("DLOCK.BREAK broken");
    for (words, request) in [
        ("acquire r --ttl 10m", "dlock.acquire"),
        ("elect r --observe", "dlock.inspect"),
        ("log --follow", "dlock.log"),
    ] {
        conn.ok("CONFIG RESETSTAT");
        let (_reader, writer) = full_pipe();
        let mut child = stage.dlock(words).stdout(writer).spawn().expect("dlock starts");
        until(&format!("{words} has sent its request"), || {
            conn.ok("INFO commandstats").text().to_lowercase().contains(request)
        });
        signal(child.id(), "TERM");
        let status = until_some(&format!("{words} ends"), || child.try_wait().expect("the state of a child"));
        assert_eq!(status.signal(), Some(15), "{words}");
        until("the hold is released, because its token was not printed", || stage.held_on("r") == 0);
    }
}

/// The signal ends the command but not dlock, which releases the lock before the lease ends.
#[each_server]
fn run_frees_the_lock_when_a_signal_ends_its_command(kind: &ServerKind) {
    let stage = Stage::one(kind);
    for (name, number) in [("ALRM", 14), ("XCPU", 24), ("ABRT", 6), ("SEGV", 11), ("BUS", 7), ("FPE", 8)] {
        let run = stage.start(stage.run("--ttl 10m", "ulimit -c 0; echo $$ > ready; exec sleep 1000"));
        let command = stage.process_id("ready");
        run.signal(name);
        let done = run.wait();
        assert_eq!((done.code, done.stderr), (Some(128 + number), String::new()));
        assert!(!is_alive(command));
        assert_eq!(stage.held_on("r"), 0);
        // Empties the file, so that `process_id` waits for the next command.
        stage.write("ready", "");
    }
}

#[each_server]
fn run_renews_the_lock_of_a_stopped_command(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut run = stage.start(stage.run("--ttl 3s", "echo $$ > ready; until [ -e go ]; do sleep 0.02; done"));
    let command = stage.process_id("ready");
    signal(command, "STOP");
    until("the command is stopped", || is_stopped(command));
    until_renewed(&mut stage.connect(), "r");
    assert!(!run.has_ended() && !is_stopped(run.id()));
    signal(command, "CONT");
    assert_eq!(stage.create_go_and_wait(run).code, Some(0));
}

/// Some supervisors ignore SIGCHLD when they start a program. For a process that ignores it, the kernel
/// discards the exit status of children.
#[each_server]
fn run_sees_its_command_end_when_sigchld_was_ignored(kind: &ServerKind) {
    let stage = Stage::one(kind);
    for (script, code) in [("exit 3", 3), ("kill -TERM $$", 143)] {
        let mut run = stage.command("env");
        run.args(["--ignore-signal=CHLD", stage::DLOCK, "run", "r", "--", "sh", "-c", script]);
        let done = stage.execute(run);
        assert_eq!((done.code, done.stderr.as_str()), (Some(code), ""));
        assert_eq!(stage.held_on("r"), 0);
    }
}

/// These signals would not end or stop a process that does not handle them: SIGWINCH, SIGCONT and SIGURG by
/// default; SIGHUP under nohup; SIGTSTP in a session without a shell (as after `ssh -t host dlock run`),
/// where no process could continue a stopped one, so the kernel does not stop it.
#[each_server]
fn a_waiting_run_ignores_signals_that_would_not_end_it(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let run = "\"$DLOCK\" run r -- echo ran";
    for (before, signals) in [
        ("exec", &["WINCH", "CONT", "URG"][..]),
        ("exec setsid", &["TSTP"]),
        ("exec env --ignore-signal=HUP", &["HUP"]),
    ] {
        stage.on_each("DLOCK.ACQUIRE r other 600000");
        let run = stage.start(stage.shell(&format!("{before} {run}")));
        stage.until_waiting("r", 1);
        for name in signals {
            run.signal(name);
            until(&format!("the run has read SIG{name}"), || {
                status(run.id(), "ShdPnd").is_some_and(|pending| pending.bytes().all(|digit| digit == b'0'))
            });
        }
        stage.on_each("DLOCK.RELEASE r other");
        let done = run.wait();
        assert_eq!(
            (done.code, done.stdout.as_str(), done.stderr.as_str()),
            (Some(0), "ran\n", ""),
            "{before}"
        );
    }
}
