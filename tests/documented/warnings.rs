//! Warnings for operators: INFO shows a warning while its cause lasts, and the log shows when it begins.

use dlock_testkit::{Conn, Server, ServerKind, each_server, until};

/// Returns the number of warnings and their words, as `1 fence-mark`.
fn warnings(conn: &mut Conn) -> String {
    let info = conn.ok("INFO dlock").text();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    let (count, words) = (field("dlock_warnings:"), field("dlock_warning_words:"));
    format!("{} {}", count.expect("a number of warnings"), words.expect("their words"))
}

#[each_server]
fn a_warning_is_shown_while_its_cause_lasts_and_logged_when_it_begins(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut conn = server.connect();
    let logged = |text: &str| server.log().matches(text).count();
    assert_eq!(warnings(&mut conn), "0 ");
    for (cause, cure, word, text) in [
        ("maxmemory-policy allkeys-lru", "volatile-lru", "maxmemory-policy", "evicts locks that are held"),
        ("notify-keyspace-events Ed", "KEd", "notify-keyspace-events", "must contain K and d"),
        ("dlock.restart-grace 60000", "0", "restart-grace", "so longer leases are refused"),
        ("dlock.fence-mark no", "yes", "fence-mark", "dlock.fence-mark is no"),
    ] {
        let (option, _) = cause.split_once(' ').expect("a value");
        assert_eq!(logged(text), 0, "{cause}");
        for round in 1..=2 {
            assert_eq!(conn.ok(&format!("CONFIG SET {cause}")), "OK");
            assert_eq!(warnings(&mut conn), format!("1 {word}"), "{cause}");
            // A change of another option does not log the warning again.
            assert_eq!(conn.ok("CONFIG SET hz 11"), "OK");
            assert_eq!((warnings(&mut conn), logged(text)), (format!("1 {word}"), round), "{cause}");
            assert_eq!(conn.ok(&format!("CONFIG SET {option} {cure}")), "OK");
            assert_eq!(warnings(&mut conn), "0 ", "{cause}");
        }
    }
    assert_eq!(conn.ok("CONFIG SET dlock.restart-grace 60000 dlock.max-ttl 60000"), "OK");
    assert_eq!(warnings(&mut conn), "0 ", "the grace period covers the longest lease");
    for (events, suffices) in [("Kd", true), ("KA", true), ("KEAd", true), ("Kg", false), ("A", false)] {
        conn.ok(&format!("CONFIG SET notify-keyspace-events {events}"));
        assert_eq!(warnings(&mut conn), if suffices { "0 " } else { "1 notify-keyspace-events" }, "{events}");
    }
}

/// The fence mark is a file that keeps the fences of a restarted server above its earlier ones.
#[each_server]
fn the_fence_mark_warning_is_shown_while_the_mark_cannot_be_written(kind: &ServerKind) {
    let server = Server::options(kind).conf("notify-keyspace-events Kd").start();
    let mut conn = server.connect();
    until("the mark is written", || server.info("dlock_fence_mark_status") == "ok");
    // A folder in place of the file makes the next write of the mark fail.
    let file = server.dir().join(format!("dlock-{}.fence", server.port()));
    std::fs::remove_file(&file).expect("the file can be removed");
    std::fs::create_dir(&file).expect("the folder can be created");
    until("the mark cannot be written", || warnings(&mut conn) == "1 fence-mark");
    std::fs::remove_dir(&file).expect("the folder can be removed");
    until("the mark can be written again", || warnings(&mut conn) == "0 ");
}

#[each_server]
fn warnings_are_logged_at_the_start_and_the_example_configuration_has_none(kind: &ServerKind) {
    let conf = "maxmemory-policy allkeys-random";
    let server = Server::options(kind).conf(conf).conf("dlock.fence-mark no").start();
    let words = "3 maxmemory-policy,notify-keyspace-events,fence-mark";
    assert_eq!(warnings(&mut server.connect()), words);
    let log = server.log();
    for text in ["evicts locks that are held", "must contain K and d", "dlock.fence-mark is no"] {
        assert_eq!(log.matches(text).count(), 1, "{text}: {log}");
    }
    let mut options = Server::options(kind);
    for line in include_str!("../../redis.conf.example").lines() {
        if line.starts_with("dlock.") || line.starts_with("notify-") || line.starts_with("maxmemory") {
            options = options.conf(line);
        }
    }
    assert_eq!(warnings(&mut options.start().connect()), "0 ");
}

/// Hardened servers rename CONFIG. The module once read the port and the eviction policy by CONFIG: two such
/// servers in one folder then wrote the same mark file, and the warning about the policy was missing.
#[each_server]
fn a_server_with_a_renamed_config_command_warns_and_uses_its_own_files(kind: &ServerKind) {
    let options = Server::options(kind).conf("rename-command CONFIG \"\"").conf("notify-keyspace-events Kd");
    let server = options.conf("maxmemory-policy allkeys-lru").start();
    let mut conn = server.connect();
    assert_eq!(warnings(&mut conn), "1 maxmemory-policy");
    let file = server.dir().join(format!("dlock-{}.fence", server.port()));
    until("the server has written its mark", || file.exists());
}
