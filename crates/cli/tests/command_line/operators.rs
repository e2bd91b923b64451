//! The subcommands list, log and status. Also `inspect` and `break` of keys that hold no lock, errors of the
//! server, and output to a closed pipe.

use super::*;
use dlock_testkit::{ServerKind, each_server};
use serde_json::Value;
use std::io::Read;

pub fn dlock(stage: &Stage, words: &str, code: i32) -> Done {
    let done = stage.execute(stage.dlock(words));
    assert_eq!(done.code, Some(code), "{words}: {}{}", done.stdout, done.stderr);
    done
}

pub fn json(stage: &Stage, words: &str, code: i32) -> Value {
    let done = dlock(stage, &format!("{words} --json"), code);
    serde_json::from_str(&done.stdout).unwrap_or_else(|why| panic!("{words}: {why}: {}", done.stdout))
}

/// The locks that `dlock list --json` prints, one per line, sorted by name.
fn listed(stage: &Stage, words: &str, code: i32) -> Vec<Value> {
    let done = dlock(stage, &format!("list {words} --json"), code);
    let mut locks: Vec<Value> =
        done.stdout.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    locks.sort_by_key(|lock| lock["resource"].to_string());
    locks
}

/// The rows of a table, split into words, without the heading.
fn rows(text: &str) -> Vec<Vec<&str>> {
    text.lines().skip(1).map(|line| line.split_whitespace().collect()).collect()
}

#[each_server]
fn list_shows_all_locks_of_all_servers(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    assert_eq!(dlock(&stage, "list", 0).stdout, "no locks\n");
    // A server knows the address of a holder only while the holder's connection is open.
    let mut holders = [0, 1].map(|server: usize| stage.servers[server].connect());
    for conn in &mut holders {
        conn.ok("DLOCK.ACQUIRE invoice:1 0123456789abcdef 600000 LABEL by-hand");
        conn.ok("SET no-lock x");
    }
    stage.servers[0].connect().ok("DLOCK.ACQUIRE invoice:2 only-here 600000");
    for token in ["a", "b"] {
        stage.servers.iter().for_each(|server| {
            server.connect().ok(&format!("DLOCK.ACQUIRE report {token} 600000 SHARED"));
        });
    }
    let _waiter = queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE invoice:1 next 600000 BLOCK 0");

    let shown = dlock(&stage, "list", 0).stdout;
    let rows = rows(&shown);
    assert_eq!(rows.len(), 3, "{shown}");
    assert_eq!(&rows[0][..4], ["invoice:1", "exclusive", "by-hand", "127.0.0.1"], "{shown}");
    assert_eq!(rows[0].last(), Some(&"1"), "one client waits: {shown}");
    assert_eq!(&rows[1][..3], ["invoice:2", "free", "only-her…"], "on one of three: {shown}");
    assert_eq!(&rows[2][..4], ["report", "shared", "(2)", "a"], "{shown}");
    assert!(!shown.contains("0123456789"), "a token is secret: {shown}");

    let locks = listed(&stage, "invoice:*", 0);
    assert_eq!(locks.len(), 2, "{locks:?}");
    let first = &locks[0];
    assert_eq!((&first["resource"], &first["state"]), (&"invoice:1".into(), &"held".into()));
    assert_eq!((&first["servers"], &first["waiters"]), (&2.into(), &1.into()));
    assert_eq!(first["holder"]["label"], "by-hand");
    assert!((500_000..=600_000).contains(&first["left_ms"].as_u64().expect("ms")), "{first}");

    // Each held lock is on two or three servers, so any two of the three servers show all held locks.
    stage.servers[2].kill9();
    assert!(dlock(&stage, "list", 0).stderr.contains("down: "));
    stage.servers[1].kill9();
    // The exit code 69: no majority answered, so the list may not contain all held locks.
    assert_eq!(listed(&stage, "", 69).len(), 3);
    assert_eq!(dlock(&stage, "list --json", 69).stderr.matches("down: ").count(), 2);
}

#[each_server]
fn list_shortens_a_long_name_in_tables_but_not_in_json(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    let name = "k".repeat(65_536);
    conn.ok(&format!("DLOCK.ACQUIRE {name} t 600000 LABEL {}", "l".repeat(255)));
    conn.ok(&format!("DLOCK.ACQUIRE {name} t2 600000 QUEUE 600000 LABEL {}", "l".repeat(255)));
    conn.ok(&format!("DLOCK.ACQUIRE {name}2 t 600000"));
    conn.ok(&format!("DLOCK.BREAK {name}2"));
    for words in ["list", "log", &format!("inspect {name}")] {
        let shown = dlock(&stage, words, 0).stdout;
        assert!(shown.contains(&format!("{}…", &name[..64])), "{shown}");
        let widest = shown.lines().map(|line| line.chars().count()).max();
        assert!(widest < Some(250), "{widest:?}: {shown}");
    }
    assert_eq!(listed(&stage, "", 0)[0]["resource"], name);
    // JSON shows the name as in the server's log: only its beginning, but more of it than the table shows.
    assert!(json(&stage, "log", 0)["resource"].as_str().is_some_and(|shown| shown.len() > 100));
}

/// A table shows the name escaped. If a script passed the escaped text to `inspect`, the text would name
/// another lock.
#[each_server]
fn list_shows_an_unprintable_name_whole_in_json(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let name = "two\nlines";
    let mut held = stage.dlock("acquire --ttl 10m");
    held.arg(name);
    assert_eq!(stage.execute(held).code, Some(0));
    assert!(dlock(&stage, "list", 0).stdout.contains("two\\nlines "));
    let listed = listed(&stage, "", 0);
    let mut inspect = stage.dlock("inspect --json");
    inspect.arg(listed[0]["resource"].as_str().expect("a name"));
    let output: Value = serde_json::from_str(&stage.execute(inspect).stdout).expect("JSON");
    assert_eq!((&output["resource"], &output["state"]), (&name.into(), &"held".into()));
}

/// JSON has only UTF-8 text, so it has the bytes of another name in base64, which a script can pass on.
#[each_server]
fn json_has_every_name_without_loss(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let script = "one=$(printf 'a\\377') two=$(printf 'a\\376'); \
        for name in \"$one\" \"$two\"; do \"$DLOCK\" acquire --ttl 10m \"$name\" > token; done; \
        for name in $(\"$DLOCK\" list --json | grep -o '_base64\":\"[^\"]*' | cut -d'\"' -f3); do \
        \"$DLOCK\" inspect \"$(echo $name | base64 -d)\"; \"$DLOCK\" inspect --json \"$(echo $name | base64 -d)\"; done";
    let done = stage.execute(stage.shell(script));
    for shown in
        ["a\\xff is held", "a\\xfe is held", "\"resource_base64\":\"Yf8=\"", "\"resource_base64\":\"Yf4=\""]
    {
        assert!(done.stdout.contains(shown), "{shown}: {}{}", done.stdout, done.stderr);
    }
}

#[each_server]
fn the_log_names_every_lock_without_loss(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    for name in [&b"win\\dir"[..], b"a\xfe"] {
        conn.call(&[b"DLOCK.ACQUIRE", name, b"t", b"600000"]).int();
        assert_eq!(conn.call(&[b"DLOCK.BREAK", name]).int(), 1);
    }
    let logged = dlock(&stage, "log --json", 0).stdout;
    let entry = |line: &str| serde_json::from_str::<Value>(line).expect("JSON");
    let [bytes, text] = &*logged.lines().map(entry).collect::<Vec<_>>() else { panic!("{logged}") };
    assert_eq!((&text["resource"], &text["resource_base64"]), (&"win\\dir".into(), &Value::Null));
    assert_eq!((&bytes["resource"], &bytes["resource_base64"]), (&"a\\xfe".into(), &"Yf4=".into()));
}

/// Without --fenced, each member of a quorum has its own fence for the hold.
#[each_server]
fn list_shows_no_fence_that_only_one_member_has(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    // Raises the last fence of the second server by one minute, and that of the third by two minutes. So each
    // server grants `r` with a fence of its own. CONFIRM accepts fences that are ahead of the clock by up to
    // half of the grace period.
    for (server, minutes) in stage.servers.iter().zip(0..) {
        let mut conn = server.connect();
        conn.ok("CONFIG SET dlock.restart-grace 600000");
        let fence = conn.ok("DLOCK.ACQUIRE other t 600000").int() + minutes * 60_000_000;
        conn.ok(&format!("DLOCK.CONFIRM other t {fence} 600000"));
    }
    dlock(&stage, "acquire --ttl 10m --label ada r", 0);
    dlock(&stage, "acquire --ttl 10m --label ada --fenced fenced", 0);
    until("each server has both locks", || (stage.held_on("r"), stage.held_on("fenced")) == (3, 3));
    let taken =
        |resource: &str| stage.execute(stage.dlock(&format!("run --no-wait {resource} -- true"))).stderr;
    let [plain, fenced] = ["r", "fenced"].map(taken);
    assert!(plain.starts_with("dlock: r is taken by ada for ") && !plain.contains("fence"), "{plain}");
    assert!(fenced.contains(" (fence "), "{fenced}");
    // Sorted by name: `fenced`, `other`, `r`.
    let locks = listed(&stage, "", 0);
    let fence = |at: usize| &locks[at]["holder"]["fence"];
    assert!(fence(0).is_u64() && fence(2).is_null(), "{locks:?}");
    // The line about the lock with a fence ends with "(fence N)".
    for (resource, ending) in [("r", "r is led by ada\n"), ("fenced", ")\n")] {
        let observer = stage.start(stage.dlock(&format!("elect {resource} --observe")));
        until("the observer sees the leader", || observer.stdout().ends_with(ending));
    }
}

#[each_server]
fn server_errors_come_with_a_remedy(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.connect().ok("SET data x");
    let done = stage.execute(stage.dlock("run data -- true"));
    assert_eq!(done.code, Some(64));
    assert!(
        done.stderr.contains("WRONGTYPE: ") && done.stderr.contains("choose another name"),
        "{}",
        done.stderr
    );
    let mut run = stage.dlock("run r -- true");
    run.env("DLOCK_SERVERS", format!("{}/999", stage.urls()));
    let done = stage.execute(run);
    assert_eq!(done.code, Some(69));
    let expected = ["DB index is out of range", "use a lower one in the address"];
    assert!(expected.iter().all(|words| done.stderr.contains(words)), "{}", done.stderr);
}

/// In `dlock list | head -1`, for example, `head` closes the pipe after one line. 141 is the exit code of a
/// program that SIGPIPE kills.
#[each_server]
fn subcommands_end_quietly_when_their_reader_has_closed(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.connect().ok("DLOCK.ACQUIRE r t 600000");
    stage.connect().ok("DLOCK.BREAK r");
    for words in ["list", "log --follow", "status --json", "inspect r", "doctor", "metrics", "man run"] {
        let done = stage.execute(stage.shell(&with_closed_pipe_as_stdout(&format!("\"$DLOCK\" {words}"))));
        assert_eq!((done.code, &*done.stderr), (Some(141), ""), "{words}");
    }
}

/// One call of DLOCK.LIST examines at most 250 locks, so dlock must follow the cursor.
#[each_server]
fn list_shows_a_thousand_locks_once_each(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    (0..1000).for_each(|lock| {
        conn.ok(&format!("DLOCK.ACQUIRE lock:{lock:04} t 600000"));
    });
    let shown = dlock(&stage, "list", 0).stdout;
    let mut names: Vec<String> = rows(&shown).iter().map(|row| row[0].to_owned()).collect();
    names.sort();
    let all: Vec<String> = (0..1000).map(|lock| format!("lock:{lock:04}")).collect();
    assert_eq!(names, all);
    assert_eq!(listed(&stage, "", 0).len(), 1000);
    let requests = conn.ok("INFO commandstats").text().to_lowercase();
    assert!(!requests.contains("dlock.inspect"), "LIST tells all that a row needs: {requests}");
}

/// The list goes into a pipe that is not read, so dlock can only print the first rows.
#[each_server]
fn list_prints_the_first_rows_before_it_has_read_all_locks(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    for lock in 0..5000 {
        conn.ok(&format!("DLOCK.ACQUIRE lock:{lock:04} t 600000 LABEL {}", "l".repeat(200)));
    }
    for words in ["list", "list --json"] {
        conn.ok("CONFIG RESETSTAT");
        let (mut reader, writer) = std::io::pipe().expect("a pipe");
        let mut list = stage.dlock(words).stdout(writer).spawn().expect("dlock starts");
        let mut first = [0; 1000];
        reader.read_exact(&mut first).expect("the first rows");
        assert!(list.try_wait().expect("the state of a child").is_none(), "{words}");
        let stats = conn.ok("INFO commandstats").text().to_lowercase();
        let calls = stats.split("cmdstat_dlock.list:calls=").nth(1).and_then(|rest| rest.split(',').next());
        let calls: u32 = calls.and_then(|calls| calls.parse().ok()).expect("a number");
        assert!(calls < 20, "{words} has sent {calls} of 20 requests");
        let mut rest = Vec::new();
        reader.read_to_end(&mut rest).expect("the other rows");
        assert!(list.wait().expect("an exit status").success(), "{words}");
    }
}

#[each_server]
fn log_merges_the_logs_of_all_servers_by_time(kind: &ServerKind) {
    let stage = Stage::with(kind, 2);
    assert_eq!(dlock(&stage, "log", 0).stdout, "");
    let break_lock = |server: usize, resource: &str| {
        let mut conn = stage.servers[server].connect();
        conn.ok(&format!("DLOCK.ACQUIRE {resource} t 600000 LABEL by-hand"));
        conn.ok(&format!("DLOCK.BREAK {resource}"));
        // The next entry must have a later time.
        let then = conn.ok("TIME").items()[0].text();
        until("the clock of the server shows a later time", || conn.ok("TIME").items()[0].text() != then);
    };
    (0..4).for_each(|at| break_lock(at % 2, &format!("r{at}")));
    let shown = dlock(&stage, "log", 0).stdout;
    let resources: Vec<&str> = rows(&shown).iter().map(|row| row[3]).collect();
    assert_eq!(resources, ["r3", "r2", "r1", "r0"], "{shown}");
    assert_eq!((rows(&shown)[0][2], rows(&shown)[0][4]), ("broken", "by-hand"), "{shown}");
    assert_eq!(rows(&dlock(&stage, "log -n 1", 0).stdout).len(), 2, "one row for each server");

    let entry: Value = serde_json::from_str(&dlock(&stage, "log r2 --json", 0).stdout).expect("JSON");
    assert_eq!((&entry["resource"], &entry["what"]), (&"r2".into(), &"broken".into()));
    assert_eq!(entry["server"], format!("redis://127.0.0.1:{}", stage.servers[0].port()));

    let log = stage.start(stage.dlock("log --follow --json"));
    until("the old entries are shown", || log.stdout().lines().count() == 4);
    break_lock(1, "new");
    until("the new entry is shown", || log.stdout().lines().count() == 5);
    let output = log.stdout();
    let last: Value = serde_json::from_str(output.lines().last().expect("a line")).expect("JSON");
    assert_eq!(last["resource"], "new");
    log.signal("INT");
    assert_eq!(log.wait().signal, Some(2));
    stage.servers[0].kill9();
    let partial = dlock(&stage, "log", 69);
    assert!(
        partial.stderr.contains(&format!("{}: down: ", stage.urls().split(',').next().expect("an address"))),
        "{}",
        partial.stderr
    );
    assert_eq!(rows(&partial.stdout).len(), 3, "the entries of the other server: {}", partial.stdout);
    stage.servers[1].kill9();
    dlock(&stage, "log", 69);
}

#[each_server]
fn status_sets_the_exit_code(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    stage.on_each("CONFIG SET notify-keyspace-events Kd");
    stage.connect().ok("DLOCK.ACQUIRE r t 600000");
    let healthy = json(&stage, "status", 0);
    assert_eq!(healthy["status"], "ok");
    let first = &healthy["servers"][0];
    assert_eq!((&first["role"], &first["held"]), (&"master".into(), &1.into()), "{first}");
    let name = if kind.is_valkey { "valkey" } else { "redis" };
    assert!(first["version"].as_str().expect("a version").starts_with(name), "{first}");

    stage.connect().ok("CONFIG SET notify-keyspace-events Ed");
    // Clients need the letter K. Without it the server warns, which does not change the exit code.
    let warned = json(&stage, "status", 0);
    assert_eq!(warned["status"], "ok");
    assert_eq!(warned["servers"][0]["warnings"][0], "notify-keyspace-events");
    assert!(dlock(&stage, "status", 0).stdout.contains("notify-keyspace-events"));

    // FLUSHALL removes a hold, so a grace period begins, in which the server grants no lock.
    stage.connect().ok("CONFIG SET dlock.restart-grace 600000 dlock.max-ttl 600000");
    stage.connect().ok("FLUSHALL");
    let grace = json(&stage, "status", 1);
    assert!(grace["servers"][0]["grace_ms_left"].as_u64() > Some(1000), "{grace}");
    stage.servers[1].kill9();
    let without_quorum = json(&stage, "status", 69);
    assert_eq!(without_quorum["status"], "no_quorum");
    assert!(without_quorum["servers"][1]["unanswered"]["down"].is_string(), "{without_quorum}");
    assert!(dlock(&stage, "status", 69).stdout.contains("down: "));
}

#[each_server]
fn inspect_and_break_name_the_type_of_a_key_that_holds_data(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.connect().ok("RPUSH list x");
    stage.connect().ok("SET string x");
    for (name, text) in
        [("list", "the key holds a list, which is no lock"), ("string", "the key holds a string;")]
    {
        let inspected = dlock(&stage, &format!("inspect {name}"), 69).stdout;
        assert!(inspected.contains(text), "{inspected}");
        let broken = dlock(&stage, &format!("break --yes {name}"), 69).stderr;
        assert!(broken.contains(text), "{broken}");
    }
}

/// A server that answers, and refuses every grant.
#[each_server]
fn a_server_that_refuses_writes_is_no_quorum_and_says_why(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    // A folder blocks the path of the file.
    std::fs::create_dir_all(stage.servers[0].dir().join("dump.rdb/in")).expect("the folder can be created");
    conn.ok("CONFIG SET stop-writes-on-bgsave-error no");
    assert_eq!(conn.call(&["CONFIG", "SET", "save", "3600 1"]), "OK");
    conn.ok("BGSAVE");
    until("the save has failed", || stage.servers[0].info("rdb_last_bgsave_status") == "err");
    for (set, reset, word) in [
        ("stop-writes-on-bgsave-error yes", "stop-writes-on-bgsave-error no", "MISCONF"),
        ("min-replicas-to-write 2", "min-replicas-to-write 0", "NOREPLICAS"),
        ("maxmemory 1 maxmemory-policy noeviction", "maxmemory 0", "OOM"),
    ] {
        conn.ok(&format!("CONFIG SET {set}"));
        let refused = dlock(&stage, "run --no-wait r -- true", 69).stderr;
        assert!(refused.contains(word), "{refused}");
        assert_eq!(json(&stage, "status", 69)["servers"][0]["refusal"], word);
        assert!(dlock(&stage, "status", 69).stdout.contains(&format!("master ({word})")));
        let metrics = dlock(&stage, "metrics", 69);
        assert!(metrics.stdout.contains("\ndlock_quorum 0\n"), "{}", metrics.stdout);
        assert!(metrics.stdout.contains(&format!("error=\"{word}\"}} 1\n")), "{}", metrics.stdout);
        metrics.assert_stderr(word);
        let found = json(&stage, "doctor", 1)["findings"].to_string();
        assert!(found.contains(&format!("it grants no locks: {word}, ")), "{found}");
        conn.ok(&format!("CONFIG SET {reset}"));
        dlock(&stage, "run --no-wait r -- true", 0);
        dlock(&stage, "status", 0);
    }
}
