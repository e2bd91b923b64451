//! `run`: mutual exclusion, several resources, permits, re-entry and limits.

use super::*;
use dlock_testkit::{ServerKind, each_server};

/// A script that fails if the folder `inside` exists, because another instance is running. It also fails if
/// its fence is not greater than that of the instance before, which is in the file `fence`.
const GUARDED: &str = r#"
    mkdir inside || exit 99
    [ "$DLOCK_FENCE" -gt "$(cat fence)" ] || exit 98
    echo "$DLOCK_FENCE" > fence
    echo done >> log
    rmdir inside"#;

const RUNS: usize = 12;

#[each_server]
fn parallel_runs_exclude_each_other_and_their_fences_rise(kind: &ServerKind) {
    for (servers, options) in [(1, ""), (3, "--fenced")] {
        let stage = Stage::with(kind, servers);
        stage.write("fence", "0\n");
        // Another token holds the lock until all runs wait.
        stage.on_each("DLOCK.ACQUIRE r other 600000");
        let runs: Vec<Running> = (0..RUNS).map(|_| stage.start(stage.run(options, GUARDED))).collect();
        stage.until_waiting("r", RUNS);
        stage.on_each("DLOCK.RELEASE r other");
        for run in runs {
            let done = run.wait();
            assert_eq!((done.code, done.stderr), (Some(0), String::new()));
        }
        assert_eq!(stage.lines("log").len(), RUNS);
        assert_eq!(stage.held_on("r"), 0);
    }
}

#[each_server]
fn shared_runs_overlap_and_exclude_exclusive_ones(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let meet = "echo here >> met; until [ -e go ]; do sleep 0.02; done";
    let sharers: Vec<Running> = (0..2).map(|_| stage.start(stage.run("--shared", meet))).collect();
    until("both sharers run", || stage.file("met").lines().count() == 2);
    assert_eq!(stage.execute(stage.run("--no-wait", "true")).code, Some(75));
    for sharer in sharers {
        assert_eq!(stage.create_go_and_wait(sharer).code, Some(0));
    }
    assert_eq!(stage.execute(stage.run("--no-wait", "true")).code, Some(0));
}

/// A script that writes the variables of its hold into the file `variables`, and waits until the file `go`
/// exists.
const REPORTS: &str = "echo \"$DLOCK_RESOURCE/$DLOCK_TOKEN/${DLOCK_FENCE-none}\" > variables; echo > ready; \
    until [ -e go ]; do sleep 0.02; done";

#[each_server]
fn run_holds_all_of_its_resources_or_none(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    // `stage.run` adds the resource `r`. The variables list all three in sorted order.
    let run = stage.start(stage.run("b a", REPORTS));
    stage.until_written("ready");
    assert_eq!(["a", "b", "r"].map(|resource| stage.held_on(resource)), [3; 3]);
    let variables = stage.file("variables");
    let (resources, rest) = variables.trim_end().split_once('/').expect("resources");
    assert_eq!(resources, "a\nb\nr");
    let tokens: Vec<&str> = rest.split('/').next().expect("tokens").lines().collect();
    for (resource, token) in ["a", "b", "r"].into_iter().zip(tokens) {
        assert_eq!(queue::holders(&mut stage.connect(), resource), [token]);
    }
    let done = stage.execute(stage.dlock("run --no-wait free b -- true"));
    assert_eq!(done.code, Some(75), "{}", done.stderr);
    // The default label begins with the name of the holder's command.
    done.assert_stderr_starts("dlock: b is taken by sh@");
    assert_eq!(stage.held_on("free"), 0);

    // The loss of one lock ends the command.
    stage.servers.iter().for_each(|server| drop(server.connect().ok("DLOCK.BREAK b")));
    let done = run.wait();
    assert_eq!(done.code, Some(79), "{}", done.stderr);
    assert_eq!(["a", "b", "r"].map(|resource| stage.held_on(resource)), [0; 3]);
}

#[each_server]
fn permits_bound_the_number_of_parallel_runs(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let runs = [0, 1].map(|_| stage.start(stage.run("--permits 2", "until [ -e go ]; do sleep 0.02; done")));
    until("both commands run", || queue::holders(&mut stage.connect(), "r").len() == 2);
    assert_eq!(stage.execute(stage.run("--permits 2 --no-wait", "true")).code, Some(75));
    stage.write("go", "");
    for run in runs {
        assert_eq!(run.wait().code, Some(0));
    }
    // Majorities cannot count permits, so a quorum is refused.
    let done = stage.execute(Stage::with(kind, 2).run("--permits 2 --no-wait", "true"));
    assert_eq!(done.code, Some(64), "{}", done.stderr);
}

#[each_server]
fn a_conflict_ends_with_the_requested_code_and_message(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let fence = stage.connect().ok("DLOCK.ACQUIRE r t 600000 LABEL nightly@host7").int();
    let conflict = |options: &str| {
        let run = stage.execute(stage.run(&format!("--no-wait {options}"), "echo ran"));
        let acquire = stage.execute(stage.dlock(&format!("acquire --no-wait {options} r")));
        assert_eq!((run.code, run.stdout.as_str()), (acquire.code, ""));
        (run.code, run.stderr)
    };
    let (code, output) = conflict("");
    assert_eq!(code, Some(75));
    assert!(output.starts_with("dlock: r is taken by nightly@host7 for "), "{output}");
    assert!(output.ends_with(&format!("s (fence {fence})\n")), "{output}");
    assert_eq!(conflict("-E 3").0, Some(3));
    assert_eq!(conflict("--quiet --conflict-code 0"), (Some(0), String::new()));
    // These options do not change other errors.
    stage.servers[0].kill9();
    let done = stage.execute(stage.dlock("run --no-wait --quiet -E 3 r -- true"));
    assert_eq!(done.code, Some(69));
    done.assert_stderr("down: ");
}

/// A script must tell it from a lock that another owner holds: nothing waits, and this run must come again.
#[each_server]
fn a_full_queue_is_said_and_exits_with_75_whatever_the_options(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.on_each("CONFIG SET dlock.max-waiters-per-key 0");
    stage.connect().ok("DLOCK.ACQUIRE r t 600000");
    let hold = format!("hold --quiet -E 3 r --pid {}", std::process::id());
    for words in ["run --quiet -E 3 r -- true", "acquire --quiet -E 3 r", &hold] {
        let done = stage.execute(stage.dlock(words));
        assert_eq!(done.code, Some(75), "{words}: {}", done.stderr);
        done.assert_stderr_starts("dlock: the queue for r is full (");
    }
}

/// The lease is longer than this test, so only --max-hold can end the command.
#[each_server]
fn run_ends_a_command_that_exceeds_its_time_limit(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = stage.execute(stage.run("--ttl 10m --max-hold 100ms", "exec sleep 1000"));
    assert_eq!(done.code, Some(79), "{}", done.stderr);
    done.assert_stderr("--max-hold");
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn run_takes_defaults_from_the_environment(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut run = stage.run("", "echo > ready; until [ -e go ]; do sleep 0.02; done");
    run.env("DLOCK_LABEL", "ours").env("DLOCK_TTL", "1h").env("DLOCK_NODE_TIMEOUT", "9s");
    let run = stage.start(run);
    stage.until_written("ready");
    let hold = stage.connect().ok("DLOCK.INSPECT r").field("holders").items()[0].clone();
    assert_eq!(hold.field("label"), &"ours");
    assert!(hold.field("pttl").int() > 3_000_000);
    assert_eq!(stage.create_go_and_wait(run).code, Some(0));
    // An address with a password, in the wrong variable. The error must not repeat it.
    let mut wrong = stage.run("", "true");
    wrong.env("DLOCK_TTL", "redis://u:s3cret@host");
    let done = stage.execute(wrong);
    assert!(done.code == Some(64) && !done.stderr.contains("s3cret"), "{}", done.stderr);
}

/// The environment of a command has the token of its run's hold. A nested run re-enters this hold instead
/// of waiting for it, and does not release it.
#[each_server]
fn a_nested_run_reenters_the_hold_of_its_parent(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let report = "echo $DLOCK_RESOURCE $DLOCK_TOKEN $DLOCK_FENCE";
    let inner = format!(
        "{report}; $DLOCK run --fenced r -- sh -c '{report}; exit 7'; echo $?; $DLOCK inspect r --json"
    );
    let done = stage.execute(stage.run("--fenced", &inner));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let lines: Vec<&str> = done.stdout.lines().collect();
    assert!(lines[0] == lines[1] && lines[2] == "7", "{lines:?}");
    assert!(lines[3].contains("\"state\":\"held\""), "{}", lines[3]);

    // For resources that the parent does not hold, the nested run acquires locks of its own.
    let inner = format!("$DLOCK run a r b -- sh -c '{report}; $DLOCK list --json'; $DLOCK list");
    let done = stage.execute(stage.run("", &inner));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert!(done.stdout.starts_with("r a b "), "{}", done.stdout);
    assert_eq!(done.stdout.matches("\"state\":\"held\"").count(), 3, "{}", done.stdout);
    // The last line shows that the parent still has its hold of `r`.
    assert!(done.stdout.lines().last().expect("a row").starts_with(" r "), "{}", done.stdout);

    // A nested run that needs an exclusive lock cannot re-enter a shared hold.
    let done = stage.execute(stage.run("--shared", "$DLOCK run r -- echo wrote"));
    assert_eq!((done.code, done.stdout.as_str()), (Some(64), ""), "{}", done.stderr);
    let done = stage.execute(stage.run("", "$DLOCK run --shared r -- echo read"));
    assert_eq!((done.code, done.stdout.as_str()), (Some(0), "read\n"), "{}", done.stderr);
}

/// A process that outlives its run still has DLOCK_RESOURCE and DLOCK_TOKEN, but no lock.
#[each_server]
fn a_nested_run_does_not_reenter_a_hold_that_has_ended(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let done = stage.execute(stage.run("", "echo $DLOCK_TOKEN > token"));
    assert_eq!(done.code, Some(0));
    let mut inner = stage.run("--no-wait", "echo $DLOCK_TOKEN");
    inner.env("DLOCK_RESOURCE", "r").env("DLOCK_TOKEN", stage.file("token").trim());
    let done = stage.execute(inner);
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_ne!(done.stdout, stage.file("token"), "the inner run has a hold of its own");
    stage.connect().ok("DLOCK.ACQUIRE r somebody 600000");
    let mut inner = stage.run("--no-wait", "true");
    inner.env("DLOCK_RESOURCE", "r").env("DLOCK_TOKEN", stage.file("token").trim());
    assert_eq!(stage.execute(inner).code, Some(75));
}
