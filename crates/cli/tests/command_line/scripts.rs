//! The subcommands for single steps of a script: acquire, release, extend, inspect, wait, break.

use super::*;
use dlock_testkit::{ServerKind, each_server};

/// Runs a subcommand, which must exit with `code`, and returns its standard output.
#[track_caller]
fn step(stage: &Stage, words: &str, code: i32) -> String {
    let done = stage.execute(stage.dlock(words));
    assert_eq!(done.code, Some(code), "{words}: {}", done.stderr);
    assert_eq!(done.stderr.is_empty(), code == 0, "{words}: {}", done.stderr);
    done.stdout
}

#[each_server]
fn scripts_acquire_extend_and_release_a_hold(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let mut conn = stage.connect();
    let printed = step(&stage, "acquire --fenced --ttl 10m --label by-hand r", 0);
    let (token, fence) = printed.trim().split_once(' ').expect("a token and a fence");
    assert!(stage.count_confirmed("r", token, fence, "by-hand") >= 2);

    let lease = |conn: &mut dlock_testkit::Conn| conn.ok("DLOCK.PTTL r").int();
    assert!((540_000..=600_000).contains(&lease(&mut conn)));
    assert_eq!(step(&stage, &format!("extend r {token} --ttl 20m"), 0), "");
    assert!((1_140_000..=1_200_000).contains(&lease(&mut conn)));
    let mut extend = stage.dlock(&format!("extend r {token}"));
    extend.env("DLOCK_TTL", "30m");
    assert_eq!(stage.execute(extend).code, Some(0));
    assert!((1_740_000..=1_800_000).contains(&lease(&mut conn)));
    step(&stage, "acquire --no-wait r", 75);
    step(&stage, "release r wrong", 79);
    let wrong = stage.execute(stage.dlock("release r wrong"));
    assert!(!wrong.stderr.contains("no answer in time"), "no server was silent: {}", wrong.stderr);
    assert_eq!(step(&stage, &format!("release r {token}"), 0), "");
    assert_eq!(stage.held_on("r"), 0);
    step(&stage, &format!("release r {token}"), 79);
    step(&stage, &format!("extend r {token}"), 79);
}

/// Tokens of dlock never begin with a hyphen, but those of other clients may.
#[each_server]
fn a_token_after_a_double_hyphen_may_begin_with_a_hyphen(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    for server in &stage.servers {
        assert!(server.connect().ok("DLOCK.ACQUIRE r -Ab_c 60000").int() > 0);
    }
    step(&stage, "extend --ttl 20m r -- -Ab_c", 0);
    step(&stage, "release r -- -Ab_c", 0);
    assert_eq!(stage.held_on("r"), 0);
}

#[each_server]
fn acquire_waits_for_each_server_and_prints_json(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let json =
        |words: &str| -> serde_json::Value { serde_json::from_str(&step(&stage, words, 0)).expect("JSON") };
    // This server answers last. The lock is held on it too before the token is printed.
    stage.servers[2].connect().ok("CLIENT PAUSE 1000 WRITE");
    let hold = json("acquire --json --ttl 10m --node-timeout 30s r");
    assert_eq!(stage.held_on("r"), 3);
    assert_eq!(hold["token"].as_str().map(str::len), Some(27));
    assert_eq!((&hold["resource"], &hold["fence"]), (&"r".into(), &serde_json::Value::Null), "{hold}");
    assert!((540_000..600_000).contains(&hold["valid_ms"].as_u64().expect("milliseconds")), "{hold}");
    // A fence is at least the Unix time in µs.
    assert!(json("acquire --json --fenced other")["fence"].as_u64() > Some(1_000_000_000_000_000));
}

#[each_server]
fn extend_takes_the_token_from_the_environment(kind: &ServerKind) {
    let stage = Stage::one(kind);
    // `dlock run` sets DLOCK_TOKEN for its command.
    let done = stage.execute(stage.run("", "$DLOCK extend r --ttl 20m"));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
}

/// Without its token, the hold could not be released.
#[each_server]
fn acquire_releases_a_hold_whose_token_it_cannot_print(kind: &ServerKind) {
    let acquire = "\"$DLOCK\" acquire r";
    for (script, code, held, message) in [
        (format!("{acquire} > /dev/full"), 71, 0, "standard output"),
        (format!("{acquire} >&-"), 71, 0, "standard output"),
        (with_closed_pipe_as_stdout(acquire), 141, 0, ""),
        // A caller may discard the token, to keep other clients out until the lease ends.
        (format!("{acquire} > /dev/null"), 0, 1, ""),
    ] {
        let stage = Stage::one(kind);
        let done = stage.execute(stage.shell(&script));
        assert_eq!((done.code, stage.held_on("r")), (Some(code), held), "{script}: {}", done.stderr);
        done.assert_stderr(message);
    }
}

#[each_server]
fn inspect_prints_json(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let inspect = |code: i32| -> serde_json::Value {
        let done = stage.execute(stage.dlock("inspect --json r"));
        assert_eq!((done.code, done.stderr.as_str()), (Some(code), ""));
        serde_json::from_str(&done.stdout).expect("JSON")
    };
    let free = inspect(0);
    assert_eq!((&free["resource"], &free["state"]), (&"r".into(), &"free".into()));
    assert_eq!(free["masters"].as_array().map(Vec::len), Some(3));
    assert_eq!(free["masters"][0]["found"], serde_json::Value::Null);

    for server in &stage.servers[..2] {
        server.connect().ok("DLOCK.ACQUIRE r somebody 600000 LABEL by-hand");
    }
    let _waiter = queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE r next 600000 BLOCK 0 SHARED");
    let held = inspect(0);
    assert_eq!(held["state"], "held");
    let (first, last) = (&held["masters"][0], &held["masters"][2]);
    let address = format!("redis://127.0.0.1:{}", stage.servers[0].port());
    assert!(first["server"].as_str().expect("an address").starts_with(&address), "{first}");
    assert_eq!(first["found"]["holders"][0]["token"], "somebody");
    assert_eq!(first["found"]["holders"][0]["label"], "by-hand");
    assert_eq!((&first["queue"][0]["token"], &first["queue"][0]["mode"]), (&"next".into(), &"shared".into()));
    assert_eq!(last["found"], serde_json::Value::Null);

    stage.servers[1].kill9();
    let undecided = inspect(0);
    assert_eq!(undecided["state"], "undecided");
    assert!(undecided["masters"][1]["unanswered"]["down"].is_string(), "{undecided}");
    stage.servers[2].kill9();
    assert_eq!(inspect(69)["state"], "no_quorum");
}

#[each_server]
fn inspect_prints_text(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    assert!(step(&stage, "inspect r", 0).starts_with("r is free\n"));
    for server in &stage.servers[..2] {
        server.connect().ok("DLOCK.ACQUIRE r 0123456789abcdef 600000 LABEL by-hand");
    }
    let _waiter = queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE r next 600000 BLOCK 0");
    stage.servers[2].kill9();
    let shown = step(&stage, "inspect r", 0);
    let lines: Vec<Vec<&str>> = shown.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(lines[0], ["r", "is", "held"]);
    assert_eq!(lines[2], ["SERVER", "MODE", "HOLDER", "FENCE", "LEASE", "LEFT", "LABEL"]);
    for row in &lines[3..5] {
        assert_eq!((row[1], row[2], row[4], row[row.len() - 1]), ("exclusive", "01234567…", "9m", "by-hand"));
    }
    assert_eq!(lines[5][1], "down:");
    assert_eq!(lines[7], ["Waiting:"]);
    assert_eq!(lines[10][1..4], ["1", "next", "exclusive"]);
    assert!(!shown.contains("0123456789"), "a whole token is shown");
}

#[each_server]
fn wait_ends_when_the_lock_is_free(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    step(&stage, "wait r", 0);
    stage.on_each("DLOCK.ACQUIRE r somebody 600000");
    step(&stage, "wait --timeout 100ms r", 75);
    let mut waiter = stage.start(stage.dlock("wait r"));
    assert!(!waiter.has_ended());
    stage.on_each("DLOCK.RELEASE r somebody");
    assert_eq!(waiter.wait().code, Some(0));
    assert_eq!(stage.held_on("r"), 0);
    stage.servers[..2].iter().for_each(|server| server.kill9());
    step(&stage, "wait r", 69);
}

#[each_server]
fn break_ends_the_hold_on_each_server_that_answers(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    stage.on_each("DLOCK.ACQUIRE r somebody 600000");
    step(&stage, "break r", 64);
    assert_eq!(stage.held_on("r"), 3, "without a terminal to ask on, nothing is broken");
    stage.servers[2].kill9();
    let done = stage.execute(stage.dlock("break --yes r"));
    assert_eq!((done.code, stage.held_on("r")), (Some(69), 0));
    done.assert_stderr("not broken on every server");
    assert_eq!(done.stdout.matches(": ended 1 hold\n").count(), 2, "{}", done.stdout);
}

#[each_server]
fn acquire_prints_a_fence_of_a_quorum_only_with_fenced(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    for (fenced, words) in [("", 1), ("--fenced", 2)] {
        stage.on_each("DLOCK.ACQUIRE r other 600000");
        let waiter = stage.start(stage.dlock(&format!("acquire {fenced} r")));
        stage.until_waiting("r", 1);
        stage.on_each("DLOCK.RELEASE r other");
        let done = waiter.wait();
        assert_eq!(done.stdout.split_whitespace().count(), words, "{fenced}: {}", done.stdout);
        let token = done.stdout.split_whitespace().next().expect("a token");
        step(&stage, &format!("release r {token}"), 0);
    }
}

#[each_server]
fn a_servers_file_may_have_a_byte_order_mark_but_must_name_a_server(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.write("empty", "# no server\n");
    stage.write("marked", &format!("\u{feff}{}\n", stage.urls()));
    let wait_with_file = |file: &str| {
        let mut wait = stage.dlock("wait r");
        wait.env("DLOCK_SERVERS", "").env("DLOCK_SERVERS_FILE", file);
        stage.execute(wait)
    };
    let done = wait_with_file("empty");
    assert_eq!((done.code, done.stderr.contains("empty names no server")), (Some(64), true));
    assert_eq!(wait_with_file("marked").code, Some(0));
}
