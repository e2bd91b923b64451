//! The fields of INFO.

use std::collections::{BTreeMap, BTreeSet};

use dlock_testkit::{Conn, Server, ServerKind, documents, each_server, until};

/// Returns the numeric fields of INFO dlock.
fn numbers(conn: &mut Conn) -> BTreeMap<String, u64> {
    let text = conn.ok("INFO dlock").text();
    let is_not_a_number = |line: &str| {
        let is_histogram = ["dlock_waited_ms:", "dlock_held_ms:"].iter().any(|name| line.starts_with(name));
        let is_text = ["dlock_warning_words:", "dlock_longest_wait_lock:", "dlock_fence_mark_status:ok"];
        is_histogram || is_text.iter().any(|name| line.starts_with(name))
    };
    let mut lines = text.lines().filter(|line| !line.is_empty() && !is_not_a_number(line));
    assert_eq!(lines.next(), Some("# dlock"));
    let pairs = lines.map(|line| line.split_once(':').unwrap_or_else(|| panic!("{line:?}")));
    pairs.map(|(name, value)| (name.to_string(), value.parse().expect("a number"))).collect()
}

#[each_server]
fn info_counts_grants_releases_and_refusals(kind: &ServerKind) {
    // Without this option, INFO would count a warning, so `dlock_warnings` would not be 0.
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut conn = server.connect();
    // When the server starts, it writes the fence mark: a number that is ahead of the fences that it issues.
    for (field, value) in numbers(&mut conn) {
        if field != "dlock_fence_mark" {
            assert_eq!(value, 0, "{field} on a fresh server");
        }
    }
    for command in [
        "DLOCK.ACQUIRE a t 600000",
        "DLOCK.ACQUIRE a t 600000 REENTRANT",
        "DLOCK.ACQUIRE a other 600000",
        "DLOCK.ACQUIRE a other 600000",
        "DLOCK.ACQUIRE a other 600000",
        "DLOCK.ACQUIRE b t 600000 SHARED",
        "DLOCK.ACQUIRE b u 600000 SHARED",
        "DLOCK.ACQUIRE c t 600000",
        "DLOCK.ACQUIRE d t 600000",
        "DLOCK.RELEASE d t",
        "DLOCK.RELEASE d t",
        "DLOCK.BREAK c",
        "DLOCK.ACQUIRE e t 1",
    ] {
        conn.ok(command);
    }
    until("the short lease has expired", || server.number("dlock_expiries") == 1);
    let fields = numbers(&mut conn);
    let value = |name: &str| fields[&format!("dlock_{name}")];
    for (name, wanted) in [
        ("held", 2),
        ("holders", 3),
        ("waiting", 0),
        ("grants", 6),
        ("handoffs", 0),
        ("denials", 3),
        ("releases", 1),
        ("expiries", 1),
        ("disconnects", 0),
        ("breaks", 1),
        ("timeouts", 0),
        ("cancels", 0),
        ("deadlocks", 0),
        ("queue_refusals", 0),
        ("fences_beyond_mark", 0),
        ("waited_ms_p50", 0),
        ("waited_ms_p99", 0),
        ("waited_ms_max", 0),
    ] {
        assert_eq!(value(name), wanted, "{name}");
    }
    assert!(value("held_ms_p50") <= value("held_ms_p99") && value("held_ms_p99") <= value("held_ms_max"));
    // Three holds have ended: c was broken, d released, e expired. None lasted an hour.
    let lengths = server.info("dlock_held_ms");
    assert!(lengths.starts_with("1=") && lengths.contains(",3600000=3,inf=3,sum="), "{lengths}");
    assert!(server.info("dlock_waited_ms").ends_with(",3600000=0,inf=0,sum=0"));
    assert!(value("fence") > 1_700_000_000_000_000, "a fence is at least the Unix time in µs");
    assert!(value("fence_mark") > value("fence"));
    // `Server::number` reads INFO everything, which shows the same value as INFO dlock.
    assert_eq!(server.number("dlock_grants"), 6);
}

#[each_server]
fn every_field_of_info_is_documented(kind: &ServerKind) {
    let text = Server::start(kind).connect().ok("INFO dlock").text();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let fields: BTreeSet<&str> = fields.map(|(name, _)| name).collect();
    let document = documents::read("docs/info.md");
    let rows = document.lines().filter(|line| line.starts_with("| `dlock_"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let documented: BTreeSet<&str> = names.flat_map(|names| names.split(['`', ' '])).collect();
    let documented: BTreeSet<&str> = documented.into_iter().filter(|name| !name.is_empty()).collect();
    assert_eq!(fields, documented);
}

#[each_server]
fn the_longest_wait_is_that_of_the_client_that_has_waited_longest(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let longest = || (server.number("dlock_longest_wait_ms"), server.info("dlock_longest_wait_lock"));
    assert_eq!(longest(), (0, String::new()));
    conn.ok("SELECT 1");
    let long = "x".repeat(257);
    for key in ["jobs:1", "b % c", &long] {
        conn.call(&["DLOCK.ACQUIRE", key, "holder", "600000"]).int();
        assert!(conn.call(&["DLOCK.ACQUIRE", key, "waiter", "600000", "QUEUE", "600000"]).is_nil());
    }
    until("the wait grows", || longest().0 >= 20);
    assert_eq!(longest().1, "1 jobs%3A1");
    // A repeated call continues the same wait.
    conn.ok("DLOCK.ACQUIRE jobs:1 waiter 600000 QUEUE 600000");
    assert!(longest().0 >= 20 && longest().1 == "1 jobs%3A1");
    conn.ok("DLOCK.RELEASE jobs:1 waiter");
    assert_eq!(longest().1, "1 b%20%25%20c");
    assert_eq!(conn.call(&["DLOCK.RELEASE", "b % c", "waiter"]), 0);
    assert_eq!(longest().1, "", "the key is too long");
    assert!(longest().0 > 0);
    assert_eq!(conn.call(&["DLOCK.RELEASE", &long, "waiter"]), 0);
    assert_eq!(longest(), (0, String::new()));
}
