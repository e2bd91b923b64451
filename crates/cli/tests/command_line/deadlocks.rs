//! Runs inside of runs, and what they wait for.

use super::*;
use dlock_testkit::{ServerKind, each_server};

/// Holds its own lock until the other run has one too, then wants that.
fn crossing(stage: &Stage, own: &str, other: &str) -> Running {
    let script = format!(
        "touch has-{own}; until [ -e has-{other} ]; do sleep 0.02; done
         $DLOCK run --node-timeout 5s {other} -- echo inside"
    );
    let mut run = stage.dlock(&format!("run --node-timeout 5s {own} -- sh -c"));
    run.arg(script);
    stage.start(run)
}

#[each_server]
fn a_deadlock_of_two_runs_ends_one_and_runs_the_other(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        let runs = [crossing(&stage, "a", "b"), crossing(&stage, "b", "a")];
        let mut done = runs.map(Running::end);
        done.sort_by_key(|done| done.code);
        let [ran, ended] = done;
        assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(0), "inside\n", ""));
        assert_eq!((ended.code, &*ended.stdout), (Some(75), ""));
        let says = [
            " is taken by sh@",
            "would be a deadlock",
            "release the locks you hold and try again",
            "in the same order",
        ];
        assert!(says.iter().all(|words| ended.stderr.contains(words)), "{}", ended.stderr);
        let counts = stage.servers.iter().map(|server| server.info("dlock_deadlocks"));
        let counts: Vec<String> = counts.filter(|count| count != "0").collect();
        assert_eq!(counts, ["1"], "one deadlock of one waiter");
        assert_eq!((stage.held_on("a"), stage.held_on("b")), (0, 0));
    }
}

/// Both are inside of one run, and neither keeps the other waiting for ever.
#[each_server]
fn parallel_runs_take_turns(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let inner = "$DLOCK run --node-timeout 5s x -- sh -c 'until [ -e go ]; do sleep 0.02; done; echo turn'";
    let run = stage.start(stage.run("", &format!("{inner} & {inner} & wait")));
    until("one waits for the other", || queue::clients(&mut stage.connect(), "x").len() == 1);
    stage.write("go", "");
    let done = run.end();
    assert_eq!((done.code, &*done.stdout, &*done.stderr), (Some(0), "turn\nturn\n", ""));
}

/// What it has been told to enter is gone from its environment.
#[each_server]
fn a_nested_run_is_refused_when_it_waits_for_its_parent(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let inner = "unset DLOCK_TOKEN DLOCK_RESOURCE; $DLOCK run --node-timeout 5s r -- echo inside";
    let done = stage.end(stage.run("", inner));
    assert_eq!((done.code, &*done.stdout), (Some(75), ""), "{}", done.stderr);
    done.says("would be a deadlock");
}
