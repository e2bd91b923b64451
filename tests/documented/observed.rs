//! INFO, the log and SLOWLOG, as an operator reads them.

use std::collections::BTreeSet;

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

const INFO: &str = include_str!("../../docs/info.md");

/// Returns the numeric fields of the section as pairs.
fn section(conn: &mut Conn) -> Vec<(String, u64)> {
    let text = conn.ok("INFO dlock").text();
    let is_not_a_number = |line: &str| {
        let is_histogram = ["dlock_waited_ms:", "dlock_held_ms:"].iter().any(|name| line.starts_with(name));
        is_histogram || line.starts_with("dlock_warning_words:") || line == "dlock_fence_mark_status:ok"
    };
    let mut lines = text.lines().filter(|line| !line.is_empty() && !is_not_a_number(line));
    assert_eq!(lines.next(), Some("# dlock"));
    let pairs = lines.map(|line| line.split_once(':').unwrap_or_else(|| panic!("{line:?}")));
    pairs.map(|(name, value)| (name.to_string(), value.parse().expect("a number"))).collect()
}

#[each_server]
fn info_counts_grants_releases_and_refusals(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut conn = server.connect();
    for (field, value) in section(&mut conn) {
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
    until("the short lease has expired", || server.info("dlock_expiries") == "1");
    let section = section(&mut conn);
    let shown: Vec<&str> = section.iter().map(|(name, _)| name.trim_start_matches("dlock_")).collect();
    let value =
        |name: &str| section.iter().find(|(n, _)| n.ends_with(&format!("dlock_{name}"))).map(|(_, v)| *v);
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
        assert_eq!(value(name), Some(wanted), "{name}");
    }
    for name in ["fence", "held_ms_p50", "held_ms_p99", "held_ms_max"] {
        assert!(value(name).is_some(), "{name} is not in {shown:?}");
    }
    assert!(value("held_ms_p50") <= value("held_ms_p99") && value("held_ms_p99") <= value("held_ms_max"));
    // Three holds have ended: c was broken, d released, e expired. None lasted an hour.
    let lengths = server.info("dlock_held_ms");
    assert!(lengths.starts_with("1=") && lengths.contains(",3600000=3,inf=3,sum="), "{lengths}");
    assert!(server.info("dlock_waited_ms").ends_with(",3600000=0,inf=0,sum=0"));
    assert!(value("fence") > Some(1_700_000_000_000_000));
    assert!(value("fence_mark") > value("fence"));
    // INFO everything shows the same value as INFO dlock.
    assert_eq!(server.info("dlock_grants"), "6");
}

#[each_server]
fn every_field_of_info_is_documented(kind: &ServerKind) {
    let text = Server::start(kind).connect().ok("INFO dlock").text();
    let fields = text.lines().filter_map(|line| line.split_once(':'));
    let fields: BTreeSet<&str> = fields.map(|(name, _)| name).collect();
    let rows = INFO.lines().filter(|line| line.starts_with("| `dlock_"));
    let names = rows.filter_map(|row| row.split('|').nth(1));
    let documented: BTreeSet<&str> = names.flat_map(|names| names.split(['`', ' '])).collect();
    let documented: BTreeSet<&str> = documented.into_iter().filter(|name| !name.is_empty()).collect();
    assert_eq!(fields, documented);
}

#[each_server]
fn tokens_stay_out_of_slowlog_and_log_and_info(kind: &ServerKind) {
    let options = Server::options(kind).conf("slowlog-log-slower-than 0").conf("slowlog-max-len 1000");
    let server = options.conf("loglevel debug").conf("latency-monitor-threshold 1").start();
    let mut conn = server.connect();
    const SECRET: &str = "5ecret5ecret5ecret";
    for command in [
        "ACQUIRE k {} 600000 LABEL host",
        "ACQUIRE k {} 600000 DEPTH 2",
        "ACQUIRE k other{} 600000",
        "ACQUIRE k {} 600000 {}",
        "ACQUIRE k {} {}",
        "RELEASE k {}",
        "RELEASE k {} {}",
        "EXTEND k {} 600000",
        "CONFIRM k {} 1 600000",
        "CONFIRM k {} 9007199254740991 600000",
        "HOLDS k {}",
        "PTTL k {}",
        "CANCEL k {}",
        "CANCEL k CLIENT {}",
        "_SET k {}",
        "WAITERS k",
        "INSPECT k",
        "BREAK k",
    ] {
        let reply = conn.say(&format!("DLOCK.{}", command.replace("{}", SECRET)));
        if let Value::Error(line) = reply {
            assert!(!line.contains(SECRET), "{line}");
        }
    }
    conn.ok("MULTI");
    conn.ok(&format!("DLOCK.ACQUIRE k {SECRET} 600000"));
    conn.ok("EXEC");
    // The secret as invalid bytes of a lock.
    assert!(conn.call(&["RESTORE", "r", "0", SECRET]).error().starts_with("ERR"));

    let slow = format!("{:?}", conn.ok("SLOWLOG GET 1000"));
    assert!(slow.contains("DLOCK.BREAK"), "SLOWLOG must be on for this test: {slow}");
    // RESTORE is a command of the server, so SLOWLOG shows its arguments.
    let slow = slow.replace(&format!(r#"["RESTORE", "r", "0", "{SECRET}"]"#), "");
    assert!(!slow.contains(SECRET), "{slow}");
    let info = conn.ok("INFO everything").text();
    assert!(info.contains("cmdstat_DLOCK.ACQUIRE") && !info.contains(SECRET), "{info}");
    let latency = format!("{:?} {:?}", conn.ok("LATENCY LATEST"), conn.ok("LATENCY HISTOGRAM"));
    assert!(!latency.contains(SECRET), "{latency}");
    let log = server.log();
    assert!(log.contains("dlock") && !log.contains(SECRET), "{log}");
}

#[each_server]
fn the_log_warns_when_no_client_can_be_notified_of_a_release(kind: &ServerKind) {
    const WARNING: &str = "notify-keyspace-events must contain K and d";
    for (events, suffices) in [
        ("\"\"", false),
        ("Kd", true),
        ("KA", true),
        ("KEAd", true),
        ("Ed", false),
        ("Kg", false),
        ("A", false),
    ] {
        let server = Server::options(kind).conf(&format!("notify-keyspace-events {events}")).start();
        let warnings = server.log().lines().filter(|line| line.contains(WARNING)).count();
        assert_eq!(warnings, usize::from(!suffices), "notify-keyspace-events {events}");
    }
}
