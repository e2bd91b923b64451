//! Locks that stay closed after their command has ended: `--at-least` and `--done-for`.

use super::*;
use dlock_testkit::{Conn, ServerKind, each_server};

/// The ms for which the lock is granted to nobody. 0 if it is free or held.
fn delay(conn: &mut Conn, resource: &str) -> i64 {
    let lock = conn.ok(&format!("DLOCK.INSPECT {resource}"));
    if lock.is_nil() { 0 } else { lock.field("delay").int() }
}

/// Two crontabs start the same job in the same minute, by clocks that differ by 20 s. The job takes no time.
/// BREAK stands for the time that passes until the next minute.
#[each_server]
fn a_job_of_two_crontabs_runs_once_per_minute(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        let start = || stage.execute(stage.run("--no-wait --at-least 30s", "echo ran >> runs"));
        for minute in 1..=3 {
            for machine in ["ahead", "behind"] {
                let done = start();
                let code = if machine == "ahead" { 0 } else { 75 };
                assert_eq!(done.code, Some(code), "minute {minute}, {machine}: {}", done.stderr);
            }
            assert_eq!(stage.lines("runs").len(), minute);
            for server in &stage.servers {
                let mut conn = server.connect();
                assert!(
                    (1..=30_000).contains(&delay(&mut conn, "r")),
                    "the closed time counts from the grant"
                );
                conn.ok("DLOCK.BREAK r");
            }
        }
    }
}

#[each_server]
fn a_waiting_run_gets_a_closed_lock_when_its_time_is_up(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let closed = stage.execute(stage.run("--at-least 2s", "exit 3"));
    assert_eq!(closed.code, Some(3), "{}", closed.stderr);
    assert!(delay(&mut stage.connect(), "r") > 0, "a command that fails leaves the lock closed, too");
    let next = stage.execute(stage.run("--wait 10m", "echo ran"));
    assert_eq!((next.code, &*next.stdout), (Some(0), "ran\n"), "{}", next.stderr);
    assert_eq!(delay(&mut stage.connect(), "r"), 0);
}

#[each_server]
fn done_for_closes_the_lock_after_success_and_frees_it_after_a_failure(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        let run = |script: &str| stage.execute(stage.run("--no-wait --done-for 24h", script));
        for (script, code) in [("exit 3", 3), ("kill -TERM $$", 143), ("echo done", 0)] {
            assert_eq!(run(script).code, Some(code));
        }
        let again = run("echo again");
        assert_eq!((again.code, &*again.stdout), (Some(75), ""), "{}", again.stderr);
        again.assert_stderr_starts("dlock: r is closed for another 23h ");
        let day = 24 * 3_600_000;
        let closed =
            stage.servers.iter().filter(|server| delay(&mut server.connect(), "r") > day - 3_600_000);
        assert!(closed.count() > masters / 2, "a majority keeps the lock closed");
        for command in ["inspect r", "list"] {
            let shown = stage.execute(stage.dlock(command)).stdout;
            assert!(shown.contains("delayed 23h"), "{command}: {shown}");
        }
    }
}

/// An older server refuses the word DELAY in the same way as this one refuses a delay that is too long.
#[each_server]
fn a_delay_that_the_servers_do_not_allow_is_refused_before_the_command_starts(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.on_each("CONFIG SET dlock.max-ttl 3600000");
    for option in ["--at-least 2h", "--done-for 24h"] {
        let done = stage.execute(stage.run(option, "echo ran"));
        assert_eq!((done.code, &*done.stdout), (Some(64), ""), "{}", done.stderr);
        done.assert_stderr("requires dlock 0.1.0");
    }
    assert_eq!(stage.held_on("r"), 0);
    assert_eq!(stage.execute(stage.run("--done-for 1h", "true")).code, Some(0));
}

/// A lock that has no holder and is only closed needs no change: to break it would run a job twice.
#[each_server]
fn doctor_advises_no_break_of_a_closed_lock_and_break_says_that_it_ends_the_delay(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        for setting in [
            "appendonly yes",
            "dlock.restart-grace 86400000",
            "notify-keyspace-events Kd",
            "dlock.fence-mark yes",
        ] {
            stage.on_each(&format!("CONFIG SET {setting}"));
        }
        assert_eq!(stage.execute(stage.run("--done-for 23h", "true")).code, Some(0));
        until("each server has the delay", || {
            stage.servers.iter().all(|server| delay(&mut server.connect(), "r") > 0)
        });
        assert!(stage.connect().ok("DLOCK.ACQUIRE r u 600000 QUEUE 600000").is_nil());
        let note = "a client has waited ";
        let doctor = || stage.execute(stage.dlock("doctor --ttl 100ms")).stdout;
        until("doctor reports the wait", || doctor().contains(note));
        let shown = doctor();
        assert!(shown.contains(" for r, closed for another 22h "), "{shown}");
        assert!(!shown.contains("dlock break") && shown.contains("nothing to change"), "{shown}");

        let broken = stage.execute(stage.dlock("break --yes r")).stdout;
        assert_eq!(broken.matches(": ended 0 holds, and a delay that had 22h ").count(), masters, "{broken}");
        assert!(stage.servers.iter().all(|server| delay(&mut server.connect(), "r") == 0));
    }
}

#[each_server]
fn a_nested_run_cannot_close_the_lock_of_its_parent(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = stage.execute(stage.run("", "$DLOCK run --done-for 1h r -- echo ran"));
    assert_eq!((done.code, &*done.stdout), (Some(64), ""), "{}", done.stderr);
    done.assert_stderr("the parent run releases r");
}
