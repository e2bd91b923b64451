//! Nested runs, and the deadlocks of runs that wait for each other.

use super::*;
use dlock_testkit::{ServerKind, each_server};

/// Starts a run that holds `own` and, as soon as the other run holds its lock too, waits for `other`.
fn crossing(stage: &Stage, own: &str, other: &str) -> Running {
    let inner = "touch has-$1; until [ -e has-$2 ]; do sleep 0.02; done; exec $DLOCK run $2 -- echo inside";
    let mut run = stage.dlock(&format!("run {own} -- sh -c"));
    run.args([inner, "sh", own, other]);
    stage.start(run)
}

#[each_server]
fn a_deadlock_of_two_runs_ends_one_and_runs_the_other(kind: &ServerKind) {
    for masters in [1, 3] {
        let stage = Stage::with(kind, masters);
        let runs = [crossing(&stage, "a", "b"), crossing(&stage, "b", "a")];
        let mut done = runs.map(Running::wait);
        done.sort_by_key(|done| done.code);
        let [ran, ended] = done;
        assert_eq!((ran.code, &*ran.stdout, &*ran.stderr), (Some(0), "inside\n", ""));
        // 75 is the exit code of a run that did not acquire its lock.
        assert_eq!((ended.code, &*ended.stdout), (Some(75), ""));
        let expected = [
            " is taken by sh@",
            "would be a deadlock",
            "release the locks you hold and try again",
            "in the same order",
        ];
        assert!(expected.iter().all(|words| ended.stderr.contains(words)), "{}", ended.stderr);
        let counts = stage.servers.iter().map(|server| server.info("dlock_deadlocks"));
        let counts: Vec<String> = counts.filter(|count| count != "0").collect();
        assert_eq!(counts, ["1"], "one server refuses one waiter as a deadlock");
        assert_eq!((stage.held_on("a"), stage.held_on("b")), (0, 0));
    }
}

/// The first member is stopped for a moment, so that the second run waits in the queue of another member.
#[each_server]
fn a_deadlock_over_the_queues_of_two_members_ends_one_run(kind: &ServerKind) {
    let mut stage = Stage::with(kind, 3);
    stage.servers.sort_by_cached_key(|server| server.info("run_id"));
    let start = |own: &str, other: &str| {
        let inner =
            "touch has-$1; until [ -e go-$1 ]; do sleep 0.02; done; exec $DLOCK run $2 -- echo inside";
        let mut run = stage.dlock(&format!("run {own} -- sh -c"));
        run.args([inner, "sh", own, other]).env("DLOCK_NODE_TIMEOUT", "1s");
        stage.start(run)
    };
    let runs = [start("a", "b"), start("b", "a")];
    let waits_at = |server: usize, lock: &str| {
        until("a run waits", || queue::tokens(&mut stage.servers[server].connect(), lock).len() == 1);
    };
    until("both hold their locks", || ["a", "b"].iter().all(|lock| stage.held_on(lock) == 3));
    stage.write("go-a", "");
    waits_at(0, "b");
    stage.servers[0].pause();
    stage.write("go-b", "");
    waits_at(1, "a");
    stage.servers[0].resume();
    let mut done = runs.map(Running::wait);
    done.sort_by_key(|done| done.code);
    assert_eq!((done[0].code, &*done[0].stdout), (Some(0), "inside\n"), "{}", done[0].stderr);
    assert_eq!(done[1].code, Some(75), "{}", done[1].stderr);
    done[1].assert_stderr("would be a deadlock");
    stage.servers.iter().for_each(queue::until_no_waiters);
    until("all is released", || (stage.held_on("a"), stage.held_on("b")) == (0, 0));
}

/// The runs are children of one script, in one parent run. They must not share the owner of the parent run:
/// the servers assume that an owner releases nothing while it waits, and would refuse the second run as a
/// deadlock. Orphaned runs become children of the parent run's dlock process, like its command, but must not
/// share the owner either.
#[each_server]
fn parallel_and_orphaned_runs_of_one_script_take_turns(kind: &ServerKind) {
    let inner = "$DLOCK run x -- sh -c 'until [ -e go ]; do sleep 0.02; done; echo turn >> turns'";
    let parallel = format!("{inner} & {inner} & wait");
    let orphaned = format!(
        "start() {{ (sh -c \"$1\" &); }}; start \"{inner}\"; start \"{inner}\"; \
        until [ \"$(grep -c turn turns 2>/dev/null)\" = 2 ]; do sleep 0.02; done"
    );
    for script in [parallel, orphaned] {
        let stage = Stage::one(kind);
        let run = stage.start(stage.run("", &script));
        stage.until_waiting("x", 1);
        let done = stage.create_go_and_wait(run);
        assert_eq!((done.code, &*done.stderr), (Some(0), ""), "{script}");
        assert_eq!(stage.lines("turns"), ["turn", "turn"], "{script}");
    }
}

/// Without the variables that name the parent's hold, the nested run cannot re-enter it. DLOCK_OWNER stays,
/// so the servers see that the owner would wait for itself.
#[each_server]
fn a_nested_run_is_refused_when_it_waits_for_its_parent(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let inner = "unset DLOCK_TOKEN DLOCK_RESOURCE; exec $DLOCK run r -- echo inside";
    let done = stage.execute(stage.run("", inner));
    assert_eq!((done.code, &*done.stdout), (Some(75), ""), "{}", done.stderr);
    done.assert_stderr("would be a deadlock");
}
