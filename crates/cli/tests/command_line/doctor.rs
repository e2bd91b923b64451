//! The findings of `dlock doctor`.

use super::operators::{dlock, json};
use super::*;
use dlock_testkit::Value as Reply;
use dlock_testkit::wall_clock::WallClock;
use dlock_testkit::{Server, ServerKind, each_server};
use serde_json::Value;

/// The findings, each as `server: finding -> remedy`.
fn findings(stage: &Stage, words: &str, code: i32) -> Vec<String> {
    let found = json(stage, words, code);
    let text = |finding: &Value| {
        let part = |name: &str| finding[name].as_str().unwrap_or("null").to_owned();
        format!("{}: {} -> {}", part("server"), part("what"), part("fix"))
    };
    found["findings"].as_array().expect("findings").iter().map(text).collect()
}

#[each_server]
fn doctor_names_each_fault_and_passes_after_its_repair(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    // The default configuration has no persistence and no keyspace events.
    let found = findings(&stage, "doctor", 1);
    assert_eq!(found.len(), 2, "{found:?}");
    for setting in ["maxmemory-policy allkeys-lru", "dlock.fence-mark no"] {
        conn.ok(&format!("CONFIG SET {setting}"));
    }
    let found = findings(&stage, "doctor --ttl 48h", 1);
    assert_eq!(found.len(), 5, "{found:?}");
    let shown = dlock(&stage, "doctor --ttl 48h", 1).stdout;
    assert!(shown.contains("CONFIG REWRITE"), "{shown}");
    // Runs each remedy up to its first parenthesis.
    for finding in &found {
        let (_, fix) = finding.split_once(" -> ").expect("a remedy");
        let command = fix.split(" (").next().expect("a command");
        assert!(command.starts_with("CONFIG SET "), "{fix}");
        conn.ok(command);
    }
    assert_eq!(findings(&stage, "doctor --ttl 48h", 0), Vec::<String>::new());
    assert_eq!(dlock(&stage, "doctor", 0).stdout, "nothing to change (1 server)\n");
    conn.ok("CONFIG SET dlock.max-ttl 86400000 dlock.restart-grace 172800000");
    let found = findings(&stage, "doctor --ttl 1h", 0);
    assert!(found.is_empty(), "a grace period above the longest lease is fine: {found:?}");
    conn.ok("CONFIG SET dlock.restart-grace 60000");
    let found = findings(&stage, "doctor --ttl 1h", 1);
    assert!(found.iter().any(|finding| finding.contains("leases in between are refused")), "{found:?}");
    assert!(found.iter().any(|finding| finding.contains("its longest lease is 60000 ms")), "{found:?}");
    // No remedy lowers an option: leases that worked must not be refused.
    for finding in &found {
        let (_, fix) = finding.split_once(" -> CONFIG SET ").expect("a remedy");
        assert!(fix.starts_with("dlock.restart-grace 86400000"), "{finding}");
    }
    conn.ok("CONFIG SET appendonly no dlock.restart-grace 0");
    let found = findings(&stage, "doctor", 1);
    assert!(found.iter().any(|finding| finding.contains("dlock.restart-grace 86400000 (")), "{found:?}");
    stage.servers[0].kill9();
    // The exit code is 69 if too few servers answer.
    let found = findings(&stage, "doctor", 69);
    assert!(found[0].contains("down: ") && found[0].contains("start it"), "{found:?}");
}

#[each_server]
fn doctor_reports_missing_rights_of_its_user(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let mut conn = stage.connect();
    conn.ok("ACL SETUSER zoe on >s3cret ~other:* +dlock.acquire +ping +acl|whoami");
    let urls = stage.urls().replace("redis://", "redis://zoe:s3cret@");
    let mut doctor = stage.dlock("doctor lock:1 --json");
    doctor.env("DLOCK_SERVERS", &urls);
    let output = stage.execute(doctor).stdout;
    assert!(output.contains("+info") && output.contains("NOPERM"), "{output}");
    conn.ok("ACL SETUSER zoe +info +config|get");
    let run_as_zoe = || {
        let mut doctor = stage.dlock("doctor lock:1 --json");
        doctor.env("DLOCK_SERVERS", &urls);
        stage.execute(doctor).stdout
    };
    let output = run_as_zoe();
    let fix = "ACL SETUSER zoe +dlock.extend +dlock.release ~lock:1";
    assert!(output.contains("the user zoe may not lock lock:1") && output.contains(fix), "{output}");
    conn.ok(fix);
    let output = run_as_zoe();
    assert!(!output.contains("zoe"), "{output}");
    assert_eq!(conn.ok("DLOCK.LIST 0").items()[1].items().len(), 0, "nothing was locked");
}

/// The server's errors contain the user's name, and clients of a quorum report that a member without +info
/// could be another member.
#[each_server]
fn doctor_advises_by_the_kind_of_an_error_and_not_by_words_in_it(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    stage.on_each("ACL SETUSER keycloak on >s3cret ~lock:1 +@all -dlock.acquire");
    stage.on_each("ACL SETUSER zoe on >s3cret ~* +@all -info");
    let doctor_as = |user: &str| {
        let mut doctor = stage.dlock("doctor lock:1 --json");
        doctor.env("DLOCK_SERVERS", stage.urls().replace("redis://", &format!("redis://{user}:s3cret@")));
        stage.execute(doctor).stdout
    };
    let output = doctor_as("keycloak");
    assert_eq!(output.matches("\"ACL SETUSER keycloak +dlock.acquire\"").count(), 3, "{output}");
    let output = doctor_as("zoe");
    assert_eq!(output.matches("give its user the right +info").count(), 3, "{output}");
    assert!(!output.contains("name each server once") && !output.contains("may not lock"), "{output}");
}

/// A stopped server delays the answers of all servers together, but not those of the others.
#[each_server]
fn doctor_compares_clocks_while_a_server_is_silent(kind: &ServerKind) {
    let (shifted_kind, clock) = WallClock::of(kind);
    clock.set_offset(2);
    let mut stage = Stage::with(kind, 2);
    stage.servers.push(Server::start(&shifted_kind));
    stage.servers[0].pause();
    let mut doctor = stage.dlock("doctor --json");
    doctor.env("DLOCK_NODE_TIMEOUT", "1200ms");
    let output = stage.execute(doctor).stdout;
    stage.servers[0].resume();
    assert!(output.contains(" ahead of the others'") || output.contains(" behind the others'"), "{output}");
}

#[each_server]
fn doctor_compares_the_members_of_a_quorum(kind: &ServerKind) {
    let (shifted_kind, clock) = WallClock::of(kind);
    // The clock of the third server is 90 s ahead. `doctor` reports clocks that are more than 1 s apart.
    clock.set_offset(90);
    let mut stage = Stage::with(kind, 2);
    stage.servers.push(Server::start(&shifted_kind));
    let found = findings(&stage, "doctor", 1);
    let port = stage.servers[2].port();
    let skew = found.iter().find(|finding| finding.contains("its clock")).expect("a finding on the clock");
    assert!(skew.starts_with(&format!("redis://127.0.0.1:{port}: ")), "{skew}");
    assert!(skew.contains(" ahead of the others'"), "{skew}");
    assert_eq!(found.iter().filter(|finding| finding.contains("its clock")).count(), 1, "{found:?}");

    let mut doctor = stage.dlock("doctor --json");
    let [first, second] = [0, 1].map(|server: usize| stage.servers[server].port());
    let urls = format!("redis://127.0.0.1:{first},redis://localhost:{first},redis://127.0.0.1:{second}");
    doctor.env("DLOCK_SERVERS", urls);
    let output = stage.execute(doctor).stdout;
    assert!(output.contains("it would vote twice") && output.contains("name each server once"), "{output}");

    let mut doctor = stage.dlock("doctor --json");
    doctor.env("DLOCK_SERVERS", format!("redis://127.0.0.1:{first},redis://127.0.0.1:{second}"));
    assert!(stage.execute(doctor).stdout.contains("name 1 or 3 servers"));

    stage.servers[1].connect().ok(&format!("REPLICAOF 127.0.0.1 {first}"));
    let found = findings(&stage, "doctor", 1);
    assert!(found.iter().any(|finding| finding.contains("it is a replica")), "{found:?}");
    assert!(found.iter().any(|finding| finding.contains("are one deployment")), "{found:?}");
}

#[each_server]
fn doctor_reports_a_client_that_names_other_members(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let mut other = stage.servers[1].connect();
    // The library name of a client of a quorum: q, the number of members, and a digest of their run ids.
    if matches!(other.say("CLIENT SETINFO LIB-NAME dlock-py(q5-0badcafe)"), Reply::Error(_)) {
        return; // Redis 7.0 has no library names.
    }
    let about_members = |found: Vec<String>| -> Vec<String> {
        found.into_iter().filter(|finding| finding.contains("names other members")).collect()
    };
    let found = about_members(findings(&stage, "doctor", 1));
    assert_eq!(found.len(), 1, "{found:?}");
    assert!(found[0].starts_with(&format!("redis://127.0.0.1:{}: ", stage.servers[1].port())), "{found:?}");
    assert!(found[0].contains("(q5-0badcafe)"), "{found:?}");
    // Not reported: a client that has not reached all of its members yet, a client of one server, other
    // libraries.
    for name in ["dlock-client(q3)", "dlock-client", "redis-py(q5-0badcafe)"] {
        other.ok(&format!("CLIENT SETINFO LIB-NAME {name}"));
        let found = about_members(findings(&stage, "doctor", 1));
        assert!(found.is_empty(), "{name}: {found:?}");
    }
}

#[each_server]
fn doctor_and_status_report_a_cluster_node(kind: &ServerKind) {
    let mut stage = Stage::with(kind, 0);
    stage.servers.push(Server::options(kind).conf("cluster-enabled yes").start());
    let found = findings(&stage, "doctor", 69);
    assert!(found.iter().any(|finding| finding.contains("write redis-cluster://")), "{found:?}");
    let status = dlock(&stage, "status", 69).stdout;
    assert!(status.contains("write redis-cluster://"), "{status}");
}

/// The holder renews its lease, so nothing expires and no other subcommand's advice would mention it.
#[each_server]
fn doctor_names_the_holder_for_which_a_client_waits_longer_than_a_lease(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let key = "jobs: %\u{e9}";
    let mut conn = stage.connect();
    conn.call(&["DLOCK.ACQUIRE", key, "t", "600000", "LABEL", "worker-7"]).int();
    assert!(conn.call(&["DLOCK.ACQUIRE", key, "u", "600000", "QUEUE", "600000"]).is_nil());
    let found = || findings(&stage, "doctor --ttl 100ms", 1);
    let is_named = |finding: &String| {
        finding.starts_with("null: a client has waited ")
            && finding.contains(&format!(" for {key}, held by worker-7 from 127.0.0.1:"))
            && finding.contains(&format!("dlock break {key}"))
    };
    until("doctor names the holder", || found().iter().any(is_named));
    assert!(!findings(&stage, "doctor --ttl 1h", 1).iter().any(|finding| finding.contains("has waited")));
}
