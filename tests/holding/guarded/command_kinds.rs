//! Kinds of commands behind a guard: data commands and dlock commands run; scripts, and commands about the
//! connection or the server, are refused.

use super::word;
use dlock_testkit::{Server, ServerKind, Value, each_server, until};

#[each_server]
fn commands_about_the_connection_or_the_server_are_refused(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    for command in [
        "SELECT 1",
        "WAIT 0 0",
        "WAITAOF 0 0 0",
        "READONLY",
        "READWRITE",
        "ASKING",
        "MULTI",
        "EXEC",
        "DISCARD",
        "WATCH x",
        "UNWATCH",
        "AUTH x",
        "HELLO 3",
        "RESET",
        "QUIT",
        "SUBSCRIBE c",
        "PSUBSCRIBE c",
        "SSUBSCRIBE c",
        "UNSUBSCRIBE",
        "MONITOR",
        "SYNC",
        "PSYNC ? -1",
        "SHUTDOWN NOSAVE",
        "DEBUG SEGFAULT",
        "CONFIG SET maxmemory 1",
        "CLIENT KILL TYPE normal",
        "CLIENT PAUSE 1000",
        "CLIENT REPLY OFF",
        "SCRIPT FLUSH",
        "FUNCTION FLUSH",
        "REPLICAOF NO ONE",
        "SAVE",
        "ACL SETUSER x on",
        "MODULE UNLOAD dlock",
        "FAILOVER ABORT",
    ] {
        for guard in ["GUARD k t", "FENCED g 1"] {
            let refused = conn.say(&format!("DLOCK.{guard} {command}"));
            assert!(
                refused.error().starts_with("ERR this command cannot be guarded"),
                "{command}: {refused:?}"
            );
        }
        assert_eq!(conn.ok("PING"), "PONG");
    }
    let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "1", "k", "DLOCK.GUARD", "k", "t"];
    for command in ["WAIT 0 0", "WAITAOF 0 0 0", "READONLY"] {
        let words: Vec<&str> = script.into_iter().chain(command.split(' ')).collect();
        assert!(conn.call(&words).error().contains("cannot be guarded"), "{command}");
    }
    assert!(conn.call(&["DLOCK.GUARD", "k", "t", "SET\0", "x", "1"]).error().contains("cannot be guarded"));
    assert_eq!(conn.ok("EXISTS x"), 0);
    let connected = conn.ok("CLIENT LIST").text();
    assert!(connected.contains("db=0") && !connected.contains("flags=x"), "{connected}");
}

#[each_server]
fn blocking_commands_try_once_behind_a_guard(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    conn.ok("DLOCK.ACQUIRE taken other MAX");
    for command in [
        "BLPOP none 0",
        "BRPOP none 0",
        "BLMOVE none n LEFT LEFT 0",
        "BRPOPLPUSH none n 0",
        "BLMPOP 0 1 none LEFT",
        "BZPOPMIN none 0",
        "BZPOPMAX none 0",
        "BZMPOP 0 1 none MIN",
        "XREAD BLOCK 0 STREAMS none 0",
        "DLOCK.ACQUIRE taken t 1000 BLOCK 0",
    ] {
        assert_eq!(conn.ok(&format!("DLOCK.GUARD k t {command}")), Value::Nil, "{command}");
    }
    conn.ok("RPUSH list a");
    assert_eq!(conn.ok("DLOCK.GUARD k t BLPOP list 0"), ["list", "a"]);
    assert_eq!(server.info("blocked_clients"), "0");
}

/// During a slow script the server reads from and frees other clients. The sender of a guarded script was
/// among them: the server crashed when it disconnected or sent its next command.
#[each_server]
fn scripts_and_functions_are_refused_and_guard_their_own_writes(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut other) = (server.connect(), server.connect());
    conn.ok("DLOCK.ACQUIRE k t MAX");
    let script = "return redis.call('INCR', KEYS[1])";
    let sha = conn.call(&["SCRIPT", "LOAD", script]).text();
    let library = format!("#!lua name=l\nredis.register_function('add', function(KEYS, ARGV) {script} end)");
    assert_eq!(conn.call(&["FUNCTION", "LOAD", &library]), "l");
    let guards = [["DLOCK.GUARD", "k", "t"], ["DLOCK.FENCED", "g", "5"]];
    let scripts = [["EVAL", script], ["EVALSHA", &sha], ["EVAL_RO", script], ["EVALSHA_RO", &sha]];
    for call in scripts.into_iter().chain([["FCALL", "add"], ["fcall_ro", "add"]]) {
        for guard in guards {
            let refused = conn.call(&[&guard[..], &call, &["1", "x"]].concat());
            assert!(refused.error().starts_with("ERR this command cannot be guarded"), "{refused:?}");
        }
    }
    assert_eq!(conn.ok("EXISTS x"), 0);
    for guard in guards {
        let inside = format!("return redis.call('{}', 'INCR', KEYS[1])", guard.join("', '"));
        conn.call(&["EVAL", &inside, "1", "x"]).int();
    }
    assert_eq!(conn.ok("GET x"), "2");
    // An endless script of a client that disconnects.
    other.ok("CONFIG SET busy-reply-threshold 1");
    conn.send(&["DLOCK.GUARD", "k", "t", "EVAL", "while true do end", "0"]);
    conn.send(&["PING"]);
    drop(conn);
    until(
        "it has ended",
        || matches!(other.say("SCRIPT KILL"), Value::Error(text) if text.starts_with("NOTBUSY")),
    );
    assert_eq!(other.ok("PING"), "PONG");
}

#[each_server]
fn a_guard_inside_a_guard_is_refused(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    let guards = [vec!["DLOCK.GUARD", "k", "t"], vec!["DLOCK.FENCED", "g", "5"]];
    for outer in &guards {
        for inner in &guards {
            let nested = conn.call(&[&outer[..], inner, &["SET", "x", "1"]].concat());
            assert!(nested.error().starts_with("ERR no guard within a guard"), "{nested:?}");
        }
    }
    assert_eq!(conn.ok("EXISTS x"), 0);
    let chain = ["DLOCK.GUARD", "k", "t"].repeat(100_000);
    assert!(conn.call(&[&chain[..], &["PING"]].concat()).error().contains("no guard within a guard"));
    assert_eq!(conn.ok("DLOCK.GUARD k t SET x 1"), "OK", "and one after the other does");
}

#[each_server]
fn dlock_commands_run_behind_a_guard_of_the_same_lock(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let fence = conn.ok("DLOCK.ACQUIRE k t 600000").int();
    let ephemeral = conn.say("DLOCK.GUARD k t DLOCK.ACQUIRE e t 600000 EPHEMERAL");
    assert!(ephemeral.error().starts_with("ERR EPHEMERAL"), "{ephemeral:?}");
    assert_eq!(conn.ok("DLOCK.GUARD k t DLOCK.ACQUIRE k t 600000"), fence);
    assert_eq!(conn.ok("DLOCK.GUARD k t DLOCK.EXTEND k t MAX"), 1);
    assert_eq!(conn.ok("DLOCK.GUARD k t DLOCK.INSPECT k").field("fence"), &fence);
    assert!(conn.ok("DLOCK.GUARD k t DLOCK.ACQUIRE l t 600000").int() > fence);
    assert_eq!(conn.ok("DLOCK.GUARD k t DLOCK.RELEASE k t"), 1);
    assert_eq!(word(&conn.say("DLOCK.GUARD k t PING")), "NOTHELD");
    for end in ["DEL l", "DLOCK.BREAK l", "RENAME l m", "FLUSHALL", "SET l x", "MOVE l 3", "SWAPDB 0 3"] {
        conn.ok("FLUSHALL");
        conn.ok("DLOCK.ACQUIRE l t 600000");
        conn.ok(&format!("DLOCK.GUARD l t {end}"));
        assert!(word(&conn.say("DLOCK.GUARD l t PING")).len() > 3, "{end}");
        assert!(conn.ok("DBSIZE").int() < 2, "{end}");
    }
}
