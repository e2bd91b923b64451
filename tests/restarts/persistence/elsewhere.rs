//! Snapshots that contain locks, loaded by other servers and by servers without the module. Also MEMORY USAGE
//! of a lock.

use std::fs;

use super::{acquire_all_kinds, all_states};
use dlock_testkit::{Server, ServerKind, each_server};

#[each_server]
fn a_snapshot_loads_on_every_server_that_reads_its_format(writer_kind: &ServerKind) {
    let writer = Server::start(writer_kind);
    let mut conn = writer.connect();
    acquire_all_kinds(&mut conn);
    let before = all_states(&mut conn);
    conn.ok("SAVE");
    each_server(|reader_kind| {
        let mut reader = Server::start(reader_kind);
        reader.kill9();
        let copied = fs::copy(writer.dir().join("dump.rdb"), reader.dir().join("dump.rdb"));
        copied.expect("the snapshot can be copied");
        match reader.try_restart() {
            Ok(()) => assert_eq!(all_states(&mut reader.connect()), before),
            // A server reads its own format and older ones of its family, independent of the module.
            Err(log) => {
                let other_format = ["RDB format version", "Wrong signature", "foreign"];
                assert!(other_format.iter().any(|words| log.contains(words)), "{log}");
                let is_other_version = (writer_kind.is_valkey, &writer_kind.version)
                    != (reader_kind.is_valkey, &reader_kind.version);
                assert!(is_other_version, "{} does not read its own snapshot", writer_kind.name);
            }
        }
    });
}

#[each_server]
fn a_server_without_the_module_refuses_a_snapshot_with_locks(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k t 600000");
    conn.ok("SAVE");
    let log = start_without_module(&mut server, kind).expect_err("the server must not start");
    assert!(log.contains("dlock-key"), "{log}");
}

#[each_server]
fn a_server_without_the_module_loads_a_snapshot_from_before_the_first_grant(kind: &ServerKind) {
    let mut server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("SET a 1");
    conn.ok("SAVE");
    let started = start_without_module(&mut server, kind);
    // Redis 7.0 writes a header for the module even if the module has no data. Without the module, it then
    // refuses to load the snapshot.
    assert_eq!(started.is_ok(), kind.is_valkey || kind.is_at_least(7, 2), "{started:?}");
}

/// Starts a server without the module on this server's snapshot.
fn start_without_module(server: &mut Server, kind: &ServerKind) -> Result<(), String> {
    let mut plain = Server::options(kind).without_module().start();
    plain.kill9();
    fs::copy(server.dir().join("dump.rdb"), plain.dir().join("dump.rdb"))
        .expect("the snapshot can be copied");
    plain.try_restart()
}

#[each_server]
fn memory_usage_counts_token_label_and_holders(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let mut usage = |key: &str, token_length: usize, options: &[&str]| {
        let token = "t".repeat(token_length);
        let acquire = [&["DLOCK.ACQUIRE", key, &token, "600000"][..], options].concat();
        assert!(conn.call(&acquire).int() > 0);
        conn.ok(&format!("MEMORY USAGE {key}")).int()
    };
    let label = "l".repeat(200);
    let small = usage("aaaa", 4, &[]);
    assert!((50..400).contains(&small), "{small}");
    assert_eq!(usage("eeee", 27, &[]), small, "a token of DLOCK.TOKEN is stored inline");
    let long = usage("bbbb", 204, &[]);
    assert!(long >= small + 200, "{long} with a token of 204 bytes, {small} with 4");
    let labelled = usage("cccc", 4, &["LABEL", &label]);
    assert!(labelled >= small + 200, "{labelled} with a label of 200 bytes, {small} without");
    let one = usage("dddd", 4, &["SHARED"]);
    let mut many = one;
    // The tokens differ in their length.
    for n in 5..105 {
        many = usage("dddd", n, &["SHARED"]);
    }
    assert!(many > one + 100 * 50, "{many} with 101 holders, {one} with one");
}
