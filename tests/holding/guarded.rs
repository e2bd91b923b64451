//! Guarded writes: GUARD runs a command if a token holds a lock. FENCED compares a fence with the number in a
//! key (the gate). If the fence is not lower, FENCED raises the number to it and runs the command. Data
//! commands and dlock commands can be guarded; scripts, and commands about the connection or server, cannot.

use dlock_testkit::{Server, ServerKind, Value, each_server};

/// Returns the first word of an error.
fn error_word(refused: &Value) -> &str {
    refused.error().split(' ').next().unwrap_or_default()
}

#[each_server]
fn guard_returns_the_reply_of_its_command_in_both_protocols(kind: &ServerKind) {
    let server = Server::start(kind);
    let (mut conn, mut plain) = (server.connect(), server.connect());
    conn.ok("DLOCK.ACQUIRE k t MAX");
    conn.ok("HSET hash field value");
    conn.ok("ZADD set 1.5 a");
    for _ in 0..2 {
        for command in [
            "GET none",
            "HGETALL hash",
            "ZSCORE set a",
            "ZRANGE set 0 -1 WITHSCORES",
            "SMEMBERS none",
            "LPUSH hash x",
            "INCR hash",
            "PING",
            "ECHO text",
            "SET a",
            "NOSUCH a b",
            "LRANGE none 0 -1",
        ] {
            let guarded = conn.say(&format!("DLOCK.GUARD k t {command}"));
            assert_eq!(guarded, plain.say(command), "{command}");
        }
        conn.hello3();
        plain.hello3();
    }
}

#[each_server]
fn guarded_commands_that_may_use_memory_are_refused_when_memory_is_full(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    conn.ok("SET x 1");
    conn.ok("DLOCK.FENCED g 5 PING");
    conn.ok("CONFIG SET maxmemory 1");
    assert_eq!(error_word(&conn.say("DLOCK.GUARD k t SET x 2")), "OOM");
    assert_eq!(error_word(&conn.say("DLOCK.FENCED g 5 SET x 2")), "OOM");
    // The gate is at 5. Raising it to 6 is a SET.
    assert_eq!(error_word(&conn.say("DLOCK.FENCED g 6 DEL x")), "OOM");
    assert_eq!(conn.ok("DLOCK.GUARD k t GET x"), "1");
    assert_eq!(conn.ok("DLOCK.GUARD k t DEL x"), 1);
    assert_eq!(conn.ok("DLOCK.FENCED g 5 DLOCK.RELEASE k t"), 1);
    conn.ok("CONFIG SET maxmemory 0");
    assert_eq!(conn.ok("GET g"), "5");
}

/// If a command could lower its own gate, the gate would let a stale writer through.
#[each_server]
fn a_fenced_command_cannot_lower_its_own_gate(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let steps = [
        ("DEL g", "5"),
        ("SET g 3", "5"),
        ("SET g text", "5"),
        ("GETDEL g", "5"),
        ("EXPIREAT g 1", "5"),
        ("RENAME g other", "5"),
        ("FLUSHALL", "5"),
        ("DECR g", "5"),
        ("SETEX g 1000 9", "9"),
        ("INCR g", "6"),
        ("SUNIONSTORE g set", "5"),
    ];
    for (command, after) in steps {
        conn.ok("SADD set a");
        conn.ok("SET g 4");
        conn.ok(&format!("DLOCK.FENCED g 5 {command}"));
        assert_eq!(conn.ok("GET g"), after, "{command}");
    }
}

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
    // A guard within a script must refuse these commands too: WAIT in a script crashes Valkey 8.0.
    let script = ["EVAL", "return redis.pcall(unpack(ARGV))", "1", "k", "DLOCK.GUARD", "k", "t"];
    for command in ["WAIT 0 0", "WAITAOF 0 0 0", "READONLY"] {
        let words: Vec<&str> = script.into_iter().chain(command.split(' ')).collect();
        assert!(conn.call(&words).error().contains("cannot be guarded"), "{command}");
    }
    // The module API takes the name of a command as a C string, and would run SET here.
    assert!(conn.call(&["DLOCK.GUARD", "k", "t", "SET\0", "x", "1"]).error().contains("cannot be guarded"));
    assert_eq!(conn.ok("EXISTS x"), 0);
    // No command has selected a database, or begun a transaction (x).
    let connected = conn.ok("CLIENT LIST").text();
    assert!(connected.contains("db=0") && !connected.contains("flags=x"), "{connected}");
}

/// During a slow script, the server serves other clients. It neither frees the client that sent the script
/// nor reads from that client. In an earlier version, an internal client sent guarded scripts. The server
/// crashed when the client of the guard disconnected or sent its next command.
#[each_server]
fn scripts_cannot_be_guarded_and_may_guard_their_own_writes(kind: &ServerKind) {
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
    // A client sends an endless script behind a guard and disconnects. The server must refuse the script, so
    // SCRIPT KILL finds none.
    other.ok("CONFIG SET busy-reply-threshold 1");
    conn.send(&["DLOCK.GUARD", "k", "t", "EVAL", "while true do end", "0"]);
    conn.send(&["PING"]);
    drop(conn);
    other.until_error("SCRIPT KILL", "NOTBUSY");
    assert_eq!(other.ok("PING"), "PONG");
}

#[each_server]
fn a_long_chain_of_guards_is_refused(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("DLOCK.ACQUIRE k t MAX");
    let chain = ["DLOCK.GUARD", "k", "t"].repeat(100_000);
    let refused = conn.call(&[&chain[..], &["PING"]].concat());
    assert!(refused.error().starts_with("ERR no guard within a guard"), "{refused:?}");
    assert_eq!(conn.ok("DLOCK.GUARD k t SET x 1"), "OK", "a single guard works afterwards");
}

#[each_server]
fn a_guarded_command_may_remove_the_lock_of_its_guard(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    for removal in ["DEL l", "DLOCK.BREAK l", "RENAME l m", "FLUSHALL", "SET l x", "MOVE l 3", "SWAPDB 0 3"] {
        conn.ok("FLUSHALL");
        conn.ok("DLOCK.ACQUIRE l t 600000");
        conn.ok(&format!("DLOCK.GUARD l t {removal}"));
        let wanted = if removal == "SET l x" { "WRONGTYPE" } else { "NOTHELD" };
        assert_eq!(error_word(&conn.say("DLOCK.GUARD l t PING")), wanted, "{removal}");
        // At most the renamed key, or the string, is left.
        assert!(conn.ok("DBSIZE").int() < 2, "{removal}");
    }
}
