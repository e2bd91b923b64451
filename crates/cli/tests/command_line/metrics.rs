//! `dlock metrics` and `dlock exporter`, checked by a strict parser of Prometheus' text format.

use dlock_testkit::{ServerKind, each_server};
use std::collections::{BTreeMap, HashSet};
use std::io::{Read, Write};
use std::net::TcpStream;

use super::*;

/// Samples by name and labels: `name{label="value"}`, the value unescaped.
type Samples = BTreeMap<String, f64>;

/// Parses Prometheus' text format, version 0.0.4. Panics at a deviation from it.
#[track_caller]
fn parse(text: &str) -> Samples {
    assert!(text.ends_with('\n'), "the last line has a line end");
    let (mut samples, mut families, mut family) = (Samples::new(), HashSet::new(), Vec::new());
    let is_name = |text: &str| text.bytes().all(|byte| byte.is_ascii_lowercase() || byte == b'_');
    let mut lines = text.lines();
    while let Some(line) = lines.next() {
        if let Some(help) = line.strip_prefix("# HELP ") {
            let (name, help) = help.split_once(' ').expect("a name and a help");
            assert!(families.insert(name.to_owned()) && !help.contains(['\\', '`']), "{line}");
            let kind = lines.next().and_then(|line| line.strip_prefix("# TYPE ")).expect("a TYPE");
            let kind = kind.strip_prefix(name).expect("the name that HELP has");
            assert_eq!(kind == " counter", name.ends_with("_total"), "{line}");
            assert!([" counter", " gauge", " histogram"].contains(&kind), "{line}");
            let parts = ["", "_bucket", "_count", "_sum"].map(|part| format!("{name}{part}"));
            family = if kind == " histogram" { parts[1..].to_vec() } else { parts[..1].to_vec() };
            continue;
        }
        let (sample, value) = line.rsplit_once(' ').expect("a sample and its value");
        let (name, labels) = sample.split_once('{').map_or((sample, ""), |(name, labels)| {
            (name, labels.strip_suffix('}').expect("the end of the labels"))
        });
        assert!(
            family.iter().any(|member| member == name),
            "a sample follows the header of its family: {line}"
        );
        let mut rest = labels;
        while let Some((label, value)) = rest.split_once("=\"") {
            assert!(is_name(label), "{line}");
            let mut end = 0;
            while !value[end..].starts_with('"') {
                end += if value[end..].starts_with('\\') {
                    2
                } else {
                    value[end..].chars().next().expect("an end").len_utf8()
                };
            }
            rest = value[end + 1..].trim_start_matches(',');
        }
        assert_eq!(rest, "", "{line}");
        let value: f64 = value.parse().expect("a number");
        assert_eq!(samples.insert(sample.replace("\\\"", "\"").replace("\\\\", "\\"), value), None, "{line}");
    }
    samples
}

fn metrics(stage: &Stage, options: &str, code: i32) -> Samples {
    let done = stage.execute(stage.dlock(&format!("metrics {options}")));
    assert_eq!(done.code, Some(code));
    parse(&done.stdout)
}

#[each_server]
fn metrics_equal_the_fields_of_info(kind: &ServerKind) {
    let stage = Stage::with(kind, 3);
    let mut conn = stage.connect();
    let server = format!("server=\"redis://127.0.0.1:{}\"", stage.servers[0].port());
    let hostile = "a\"b\\c\x1b[2J";
    for key in [hostile, "waited:1", "waited:2", "not-waited"] {
        conn.call(&["DLOCK.ACQUIRE", key, "t", "600000"]).int();
    }
    let _waiters = [
        queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE waited:1 a 600000 BLOCK 0"),
        queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE waited:1 b 600000 BLOCK 0"),
        queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE waited:2 c 600000 BLOCK 0"),
    ];
    let seen = metrics(&stage, "", 0);
    assert_eq!(seen["dlock_quorum"], 1.0);
    assert_eq!(seen[&format!("dlock_up{{{server}}}")], 1.0);
    assert_eq!(seen[&format!("dlock_held{{{server}}}")], 4.0);
    assert_eq!(seen[&format!("dlock_grants_total{{{server}}}")], 4.0);
    assert_eq!(seen[&format!("dlock_waiting{{{server}}}")], 3.0);
    assert_eq!(seen[&format!("dlock_warning{{{server},option=\"notify-keyspace-events\"}}")], 1.0);
    assert_eq!(seen["dlock_resource_waiters{resource=\"waited:1\"}"], 2.0);
    assert_eq!(seen.keys().filter(|name| name.starts_with("dlock_resource_waiters")).count(), 2);
    assert!(seen["dlock_resource_held_seconds{resource=\"waited:2\"}"] > 0.0);
    let longest = seen["dlock_longest_wait_lock_seconds{resource=\"waited:1\",holder=\"t\"}"];
    assert!(longest > 0.0 && longest >= seen[&format!("dlock_longest_wait_seconds{{{server}}}")]);
    // Each number of INFO has a metric.
    let info = conn.ok("INFO dlock").text();
    let numbers = info.lines().filter_map(|line| line.split_once(':'));
    let numbers: Vec<&str> =
        numbers.filter(|(_, value)| value.parse::<u64>().is_ok()).map(|(name, _)| name).collect();
    assert!(numbers.len() > 25, "{numbers:?}");
    for name in numbers {
        let name = name.replace("_ms", "_seconds");
        let names = [format!("{name}{{{server}}}"), format!("{name}_total{{{server}}}")];
        assert_eq!(names.iter().filter(|name| seen.contains_key(*name)).count(), 1, "{name}");
    }

    // The histograms are empty before a hold has ended, and then count one hold and one wait.
    let held = |samples: &Samples, what: &str| samples[&format!("dlock_held_seconds_{what}")];
    let bucket = |bound: &str| format!("bucket{{{server},le=\"{bound}\"}}");
    assert_eq!(held(&seen, &bucket("+Inf")), 0.0);
    conn.ok("DLOCK.RELEASE waited:2 t");
    let seen = metrics(&stage, "", 0);
    for what in [bucket("3600"), bucket("+Inf"), format!("count{{{server}}}")] {
        assert_eq!(held(&seen, &what), 1.0, "{what}");
        assert_eq!(seen[&format!("dlock_waited_seconds_{what}")], 1.0, "{what}");
    }
    let bounds = seen.keys().filter(|name| name.starts_with("dlock_held_seconds_bucket{")).count();
    assert_eq!(bounds, 3 * 13, "13 bounds for each of three servers");
    let fields = conn.ok("INFO dlock").text();
    let line = fields.split("dlock_held_ms:").nth(1).and_then(|rest| rest.lines().next()).expect("a line");
    let sum: f64 = line.split("sum=").nth(1).and_then(|sum| sum.parse().ok()).expect("a sum");
    assert_eq!(held(&seen, &format!("sum{{{server}}}")), sum / 1000.0);

    // The number of resources is limited (each has two samples), and names are escaped.
    let hottest = metrics(&stage, "--resources 1", 0);
    assert_eq!(hottest.keys().filter(|name| name.starts_with("dlock_resource_")).count(), 2);
    assert!(metrics(&stage, "--resources 0", 0).keys().all(|name| !name.starts_with("dlock_resource_")));
    let mut waiter = stage.connect();
    waiter.send(&["DLOCK.ACQUIRE", hostile, "d", "600000", "BLOCK", "0"]);
    until("the client waits", || conn.call(&["DLOCK.WAITERS", hostile]).items().len() == 1);
    let seen = metrics(&stage, "", 0);
    assert_eq!(seen["dlock_resource_waiters{resource=\"a\"b\\c\\u{1b}[2J\"}"], 1.0);
    // Names that are equal once they are escaped or cut share one sample.
    let long = ["a", "b"].map(|end| "n".repeat(256) + end);
    for key in ["new\nline", "new\\nline", &long[0], &long[1]] {
        conn.call(&["DLOCK.ACQUIRE", key, "t", "600000"]).int();
        assert!(conn.call(&["DLOCK.ACQUIRE", key, "w", "600000", "QUEUE", "600000"]).is_nil());
    }
    let seen = metrics(&stage, "", 0);
    for shown in ["new\\nline".to_owned(), "n".repeat(256) + "…"] {
        assert_eq!(seen[&format!("dlock_resource_waiters{{resource=\"{shown}\"}}")], 2.0);
    }

    stage.servers[0].kill9();
    let seen = metrics(&stage, "", 0);
    assert_eq!(seen[&format!("dlock_up{{{server}}}")], 0.0);
    assert!(!seen.contains_key(&format!("dlock_held{{{server}}}")));
    stage.servers[1].kill9();
    // Exit code 69: too few servers answered.
    assert_eq!(metrics(&stage, "", 69)["dlock_quorum"], 0.0);
}

/// Waits until the exporter listens, and returns its port.
#[track_caller]
pub fn port(exporter: &Running) -> u16 {
    until("the exporter listens", || exporter.stdout().ends_with("/metrics\n"));
    let output = exporter.stdout();
    let port = output.trim_end_matches("/metrics\n").rsplit(':').next().expect("a port");
    port.parse().expect("a number")
}

/// Sends one request. Returns the first line and the body of the answer.
pub fn get(port: u16, request: &str) -> (String, String) {
    let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    stream.write_all(format!("{request} HTTP/1.0\r\n\r\n").as_bytes()).expect("a request");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).expect("an answer");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    (head.lines().next().expect("a line").to_owned(), body.to_owned())
}

#[each_server]
fn the_exporter_asks_the_servers_at_each_scrape(kind: &ServerKind) {
    let mut stage = Stage::one(kind);
    let exporter = stage.start(stage.dlock("exporter --listen 127.0.0.1:0"));
    let port = port(&exporter);
    // Clients that send nothing, or read nothing, do not delay others.
    let _silent = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    let mut unread = TcpStream::connect(("127.0.0.1", port)).expect("a connection");
    unread.write_all(&b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n".repeat(10)).expect("requests");

    let scrape = || {
        let (status, body) = get(port, "GET /metrics");
        assert!(status.ends_with(" 200 OK"), "{status}");
        parse(&body)
    };
    let up = format!("dlock_up{{server=\"redis://127.0.0.1:{}\"}}", stage.servers[0].port());
    assert_eq!(scrape()[&up], 1.0);
    stage.connect().ok("DLOCK.ACQUIRE r t 600000");
    assert_eq!(
        scrape().iter().find(|(name, _)| name.starts_with("dlock_held{")).map(|(_, value)| *value),
        Some(1.0)
    );
    for (request, status) in [("GET /", "200"), ("GET /secret", "404"), ("POST /metrics", "405")] {
        assert!(get(port, request).0.contains(status), "{request}");
    }
    let (status, body) = get(port, "HEAD /metrics");
    assert!(status.ends_with(" 200 OK") && body.is_empty(), "{status}: {body}");
    stage.servers[0].terminate();
    assert_eq!(scrape()[&up], 0.0);
    stage.servers[0].restart();
    until("the server is back", || scrape()[&up] == 1.0);
    exporter.signal("TERM");
    assert_eq!(exporter.wait().signal, Some(15));
    // 71: a system error, because this machine does not have the address.
    let done = stage.execute(stage.dlock("exporter --listen 203.0.113.1:1"));
    assert_eq!(done.code, Some(71), "{}", done.stderr);
}

/// More connections than the exporter accepts do not end it.
#[each_server]
fn the_exporter_outlasts_too_many_connections(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let script = "ulimit -n 64; exec \"$DLOCK\" exporter --listen 127.0.0.1:0";
    let mut exporter = stage.start(stage.shell(script));
    let port = port(&exporter);
    let silent: Vec<TcpStream> =
        (0..100).map(|_| TcpStream::connect(("127.0.0.1", port)).expect("a connection")).collect();
    let open = format!("/proc/{}/fd", exporter.id());
    let count = || std::fs::read_dir(&open).map_or(0, Iterator::count);
    // `ulimit` allows 64 open files.
    until("the exporter accepts no more, or has ended", || exporter.has_ended() || count() >= 60);
    drop(silent);
    let (status, body) = get(port, "GET /metrics");
    assert!(status.ends_with(" 200 OK"), "{status}");
    parse(&body);
}

/// 40 scrapes at the same time, each on its own connection. The exporter accepts 16 at a time, and asks the
/// silent server for each of them, one after the other.
#[each_server]
fn the_exporter_refuses_scrapes_beyond_its_limit(kind: &ServerKind) {
    let stage = Stage::one(kind);
    let exporter = stage.start(stage.dlock("exporter --listen 127.0.0.1:0 --node-timeout 500ms"));
    let port = port(&exporter);
    stage.servers[0].pause();
    let scrapes: Vec<_> = (0..40).map(|_| std::thread::spawn(move || get(port, "GET /metrics").0)).collect();
    let answers: Vec<String> = scrapes.into_iter().map(|scrape| scrape.join().expect("no panic")).collect();
    stage.servers[0].resume();
    let count = |code: &str| answers.iter().filter(|answer| answer.contains(code)).count();
    assert!(count(" 200 ") >= 16 && count(" 503 ") > 0, "{answers:?}");
    assert!(get(port, "GET /metrics").0.ends_with(" 200 OK"));
}

const RULES: &str = include_str!("../../../../contrib/prometheus/dlock.rules.yml");
const DASHBOARD: &str = include_str!("../../../../contrib/grafana/dlock.json");

/// `make test-contrib` tests that each alert fires.
#[each_server]
fn alert_rules_and_dashboard_name_only_exported_metrics(kind: &ServerKind) {
    let stage = Stage::one(kind);
    stage.on_each("DLOCK.ACQUIRE r t 600000");
    let _waiter = queue::waiter(&stage.servers[0], "DLOCK.ACQUIRE r u 600000 BLOCK 0");
    let exported = metrics(&stage, "", 0);
    let exported: HashSet<&str> =
        exported.keys().map(|sample| sample.split('{').next().expect("a name")).collect();
    for (file, text, min_metrics) in [("rules", RULES, 9), ("dashboard", DASHBOARD, 25)] {
        let words = text.split(|char: char| !(char.is_ascii_alphanumeric() || char == '_'));
        let named: HashSet<&str> = words.filter(|word| word.starts_with("dlock_")).collect();
        assert!(named.len() >= min_metrics, "{file}: {named:?}");
        let missing: Vec<_> = named.difference(&exported).collect();
        assert!(missing.is_empty(), "{file}: {missing:?} of {exported:?}");
    }
}

/// The same sentence as that of the other subcommands, from the exporter once.
#[each_server]
fn an_address_that_cannot_be_used_says_why(kind: &ServerKind) {
    let (master, replica) = dlock_testkit::Server::with_replica(kind);
    let node = dlock_testkit::Server::options(kind).conf("cluster-enabled yes").start();
    let stage = Stage::at(vec![master, replica, node], String::new());
    let place = |at: usize| format!("127.0.0.1:{}", stage.servers[at].port());
    for (address, part) in [
        (
            format!("redis://{}", place(2)),
            format!("is a node of a cluster: write redis-cluster://{}", place(2)),
        ),
        (
            format!("redis://{}", place(1)),
            format!("is a replica: write the address of its master, {}", place(0)),
        ),
        (
            format!("redis-cluster://{}", place(0)),
            format!("is no node of a cluster: write redis://{}", place(0)),
        ),
    ] {
        let mut once = stage.dlock("metrics");
        once.env("DLOCK_SERVERS", &address);
        let done = stage.execute(once);
        assert_eq!(done.code, Some(69), "{}", done.stdout);
        done.assert_stderr(&part);
        let mut serve = stage.dlock("exporter --listen 127.0.0.1:0");
        serve.env("DLOCK_SERVERS", &address);
        let exporter = stage.start(serve);
        let port = port(&exporter);
        for _ in 0..3 {
            get(port, "GET /metrics");
        }
        until("the exporter says why", || exporter.stderr().contains(&part));
        assert_eq!(exporter.stderr(), done.stderr);
    }
    let wrong = stage.execute(stage.dlock("exporter --listen 127.0.0.1"));
    assert_eq!(wrong.code, Some(64), "{}", wrong.stderr);
}
