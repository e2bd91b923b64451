//! Tests of the testkit. Some helpers, such as the crash check and `assert_none`, exist to make a test fail,
//! so their failures are tested too. The servers run without the module.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;
use std::{fs, thread};

use dlock_testkit::{
    Conn, Events, Server, ServerKind, Stream, Value, aof, each_server, line, module_path, project, until,
};

fn plain(kind: &ServerKind) -> Server {
    Server::options(kind).without_module().start()
}

/// Returns the text of the panic in which `action` must end.
fn panic_of(action: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(action)).expect_err("the action must panic");
    panic.downcast_ref::<String>().cloned().unwrap_or_default()
}

#[test]
fn a_failure_names_the_server() {
    let text = panic_of(|| each_server(|kind| assert!(kind.version.is_empty(), "broken on purpose")));
    each_server(|kind| {
        let line = format!("on {} ({}): broken on purpose", kind.name, kind.version);
        assert!(text.lines().any(|found| found == line), "{text}");
    });
}

#[test]
fn the_module_is_built_before_the_tests() {
    let built = module_path().metadata().and_then(|file| file.modified()).expect("the module is a file");
    let source = fs::metadata(project().join("src/lib.rs")).and_then(|file| file.modified());
    assert!(built >= source.expect("the module's source"));
}

#[each_server]
fn replies_compare_with_plain_values(kind: &ServerKind) {
    let server = plain(kind);
    let mut conn = server.connect();
    assert_eq!(conn.call(&["SET", "a", "with blanks"]), "OK");
    assert_eq!(conn.say("GET a"), "with blanks");
    assert_eq!(conn.say("GET b"), Value::Nil);
    assert_eq!(conn.say("INCR n"), 1);
    assert_eq!(conn.call(&[&b"SET"[..], b"bytes", b"\xff\r\n"]), "OK");
    assert_eq!(conn.say("GET bytes").bytes(), b"\xff\r\n");
    assert_eq!(conn.say("MGET a b"), Value::from(vec![Value::from("with blanks"), Value::Nil]));
    assert_eq!(conn.say("ECHO a"), Value::from("a"));
    assert_eq!(conn.say("HSET h f v g w"), 2);
    assert_eq!(conn.say("HGETALL h").field("g"), &"w");
    assert_eq!(conn.say("HMGET h f g"), ["v", "w"]);
    assert_eq!(conn.say("LPUSH h x").error().split(' ').next(), Some("WRONGTYPE"));
    // An error never equals a text.
    assert_ne!(conn.say("LPUSH h x"), "WRONGTYPE");

    conn.hello3();
    assert_eq!(conn.say("HGETALL h").field("g"), &"w");
    assert_eq!(conn.say("GET b"), Value::Nil);
    assert_eq!(format!("{:?}", conn.say("HGETALL h")), r#"{"f": "v", "g": "w"}"#);
    assert_eq!(conn.say("ZADD z 1.5 m"), 1);
    assert_eq!(conn.say("ZSCORE z m"), Value::Double(1.5));
    assert!(panic_of(|| assert_eq!(conn.say("GET a").int(), 1)).contains("with blanks"));
    assert!(panic_of(|| drop(conn.ok("LPUSH h x"))).contains("WRONGTYPE"));
}

#[each_server]
fn a_batch_is_answered_in_order(kind: &ServerKind) {
    let server = plain(kind);
    let mut conn = server.connect();
    conn.send_batch(&[&["SET", "a", "1"], &["INCR", "a"], &["GET", "a"]]);
    assert_eq!(conn.read(), "OK");
    assert_eq!(conn.read(), 2);
    assert_eq!(conn.read(), "2");
    assert_eq!(conn.try_read(Duration::from_millis(1)), None);
    assert!(conn.client_id() > 0);
}

#[each_server]
fn a_read_that_timed_out_loses_no_bytes(kind: &ServerKind) {
    let server = plain(kind);
    let (mut waiter, mut other) = (server.connect(), server.connect());
    waiter.send(&["BLPOP", "list", "0"]);
    assert_eq!(waiter.try_read(Duration::from_millis(1)), None);
    until("the client waits", || server.info("blocked_clients") == "1");
    assert_eq!(other.say("RPUSH list x"), 1);
    assert_eq!(waiter.read(), ["list", "x"]);
}

#[each_server]
fn a_push_that_arrives_before_a_reply_is_kept_for_a_later_read(kind: &ServerKind) {
    let server = plain(kind);
    let (mut listener, mut other) = (server.connect(), server.connect());
    listener.hello3();
    listener.send(&["SUBSCRIBE", "news"]);
    assert_eq!(listener.read().items()[0], "subscribe");
    assert_eq!(other.say("PUBLISH news x"), 1);
    assert_eq!(listener.say("PING"), "PONG");
    assert_eq!(listener.read(), ["message", "news", "x"]);
}

#[each_server]
fn a_connection_reports_that_it_is_closed(kind: &ServerKind) {
    let server = plain(kind);
    let (mut victim, mut other) = (server.connect(), server.connect());
    let id = victim.client_id();
    assert!(!victim.closed());
    assert_eq!(other.say(&format!("CLIENT KILL ID {id}")), 1);
    until("the connection is closed", || victim.closed());
}

#[each_server]
fn servers_end_and_restart(kind: &ServerKind) {
    let options = Server::options(kind).without_module();
    let mut server = options.synced().start();
    let (port, pid) = (server.port(), server.pid());
    server.connect().ok("SET a 1");
    server.kill9();
    assert!(!server.is_alive());
    server.restart();
    assert_eq!((server.port(), server.connect().say("GET a")), (port, Value::from("1")));
    assert_ne!(server.pid(), pid);

    assert!(server.terminate().success());
    server.restart_with(|options| options.conf("maxclients 77"));
    assert_eq!(server.connect().say("CONFIG GET maxclients"), ["maxclients", "77"]);
    assert_eq!(server.connect().say("GET a"), "1");
    server.connect().send(&["SHUTDOWN", "NOSAVE"]);
    assert!(server.expect_exit().success());
    assert!(server.log().contains("Ready to accept connections"));
}

#[each_server]
fn a_refusal_to_start_returns_the_log(kind: &ServerKind) {
    let options = Server::options(kind).without_module().conf("no-such-option yes");
    let log = options.try_start().map(|_| ()).expect_err("the server must not start");
    assert!(log.contains("no-such-option"), "{log}");
}

#[each_server]
fn a_server_that_crashes_fails_its_test(kind: &ServerKind) {
    let text = panic_of(|| {
        let server = plain(kind);
        server.connect().send(&["DEBUG", "SEGFAULT"]);
        until("the server is dead", || !server.is_alive());
        drop(server);
    });
    assert!(text.contains("ended by itself") && text.contains(&kind.name), "{text}");
    remove_kept_folder(&text);

    let server = plain(kind);
    server.connect().send(&["DEBUG", "SEGFAULT"]);
    assert!(!server.expect_exit().success());
}

#[each_server]
fn a_panic_in_the_log_fails_its_test(kind: &ServerKind) {
    let text = panic_of(|| {
        let server = plain(kind);
        server.connect().call(&["DEBUG", "LOG", "thread main panicked at src/lib.rs"]).text();
        drop(server);
    });
    assert!(text.contains("panicked at"), "{text}");
    remove_kept_folder(&text);
}

/// Removes the folder that the testkit leaves for inspection after a failure.
fn remove_kept_folder(report: &str) {
    let dir =
        report.split_whitespace().find(|word| word.contains("dlock-test-")).expect("the folder is named");
    fs::remove_dir_all(dir.trim_end_matches(':')).expect("the folder is kept");
}

#[each_server]
fn a_paused_server_answers_later(kind: &ServerKind) {
    let server = plain(kind);
    let mut conn = server.connect();
    server.pause();
    conn.send(&["PING"]);
    assert_eq!(conn.try_read(Duration::from_millis(20)), None);
    server.resume();
    assert_eq!(conn.read(), "PONG");
}

#[each_server]
fn wait_in_sync_returns_when_the_replica_has_every_write(kind: &ServerKind) {
    let (master, replica) = (plain(kind), plain(kind));
    master.connect().ok("SET a 1");
    replica.replicate(&master);
    assert_eq!(replica.connect().say("GET a"), "1");
    for n in 0..100 {
        master.connect().ok(&format!("SET a {n}"));
    }
    replica.wait_in_sync(&master);
    assert_eq!(replica.connect().say("GET a"), "99");
}

#[each_server]
fn commands_are_read_from_all_parts_of_the_aof(kind: &ServerKind) {
    let options = Server::options(kind).without_module().conf("appendonly yes");
    let server = options.conf("aof-use-rdb-preamble no").conf("aof-timestamp-enabled yes").start();
    let mut conn = server.connect();
    conn.ok("SET a 1");
    conn.ok("BGREWRITEAOF");
    until("the rewrite is done", || {
        server.info("aof_rewrite_in_progress") == "0" && server.info("aof_rewrites") == "1"
    });
    conn.ok("SELECT 3");
    assert_eq!(conn.call(&["SET", "b", "x y\n"]), "OK");
    server.wait_written();
    let lines: Vec<String> = aof::commands(server.dir()).iter().map(|command| line(command)).collect();
    assert_eq!(lines, ["SELECT 0", "SET a 1", "SELECT 3", "SET b x y\\n"]);
}

#[test]
fn a_stream_yields_the_commands_that_a_replica_gets() {
    for diskless in ["yes", "no"] {
        each_server(|kind| {
            let options = Server::options(kind).without_module();
            let master = options.conf(&format!("repl-diskless-sync {diskless}")).start();
            let mut conn = master.connect();
            conn.ok("SET before x");
            let mut stream = Stream::of(&master);
            assert!(stream.drain().is_empty());
            conn.ok("SETEX a 100 v");
            conn.ok("SELECT 1");
            conn.ok("INCRBYFLOAT f 1.5");
            assert_eq!(line(&stream.read()), "SELECT 0");
            assert!(line(&stream.read()).starts_with("SET a v PXAT "));
            let rest: Vec<String> = stream.drain().iter().map(|command| line(command)).collect();
            assert_eq!(rest, ["SELECT 1", "SET f 1.5 KEEPTTL"]);
            conn.ok("GET f");
            assert!(stream.drain().is_empty());
            // WAIT counts the stream as a replica that has received every write.
            conn.ok("SET z 1");
            conn.send(&["WAIT", "1", "0"]);
            stream.drain();
            assert_eq!(conn.read(), 1);
        });
    }
}

#[each_server]
fn events_are_read_in_order_and_assert_none_fails_after_a_change(kind: &ServerKind) {
    let server = plain(kind);
    let mut events = Events::subscribe(&server, "__keyevent@0__:*");
    let mut conn = server.connect();
    conn.ok("SET a 1");
    assert_eq!(events.read(), ("__keyevent@0__:set".to_string(), "a".to_string()));
    events.assert_none();
    conn.ok("GET a");
    events.assert_none();
    conn.ok("DEL a");
    assert_eq!(events.so_far(), [("__keyevent@0__:del".to_string(), "a".to_string())]);
    conn.ok("SET a 1");
    assert!(panic_of(|| events.assert_none()).contains("keyevent"));
}

#[each_server]
fn parallel_servers_have_different_ports(kind: &ServerKind) {
    thread::scope(|scope| {
        for round in 0..4 {
            scope.spawn(move || {
                let servers: Vec<Server> = (0..3).map(|_| plain(kind)).collect();
                for server in &servers {
                    assert_eq!(server.info("process_id"), server.pid().to_string());
                    assert_eq!(Conn::open(server.port()).say(&format!("INCRBY a {round}")), round);
                }
            });
        }
    });
}
