//! What is refused, and in which words.

use super::{granted, state};
use dlock_testkit::{Server, ServerKind, each_server};

#[each_server]
fn every_command_refuses_a_key_of_another_type(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    for (key, make) in [("text", "SET text x"), ("list", "RPUSH list x"), ("hash", "HSET hash f v")] {
        conn.ok(make);
        let before = conn.ok(&format!("DUMP {key}"));
        for command in [
            "ACQUIRE {} t 600000",
            "ACQUIRE {} t 600000 BLOCK 0",
            "RELEASE {} t",
            "EXTEND {} t 600000",
            "CONFIRM {} t 1 600000",
            "HOLDS {} t",
            "PTTL {}",
            "PTTL {} t",
            "INSPECT {}",
            "WAITERS {}",
            "CANCEL {} t",
            "BREAK {}",
        ] {
            let command = format!("DLOCK.{}", command.replace("{}", key));
            let refused = conn.say(&command);
            let words = "WRONGTYPE Operation against a key holding the wrong kind of value";
            assert_eq!(refused.error(), words, "{command}");
        }
        assert_eq!(conn.ok(&format!("DUMP {key}")), before);
    }
    // And the other way round.
    granted(conn.ok("DLOCK.ACQUIRE lock t 600000"));
    assert!(conn.say("GET lock").error().starts_with("WRONGTYPE"));
    assert!(conn.say("APPEND lock x").error().starts_with("WRONGTYPE"));
    assert_eq!(conn.ok("DLOCK.HOLDS lock t"), 1);
}

/// The server's own refusal, in which the command's name stands for {}.
const ARITY: &str = "ERR wrong number of arguments for '{}' command";
const FORMS: &str = "ERR syntax error: wrong number of arguments, DLOCK.HELP lists every form";
const COUNT: &str = "must be a whole number from 1 to 2147483647";
const TOKEN: &str = "ERR a token has 1 to 255 bytes, DLOCK.TOKEN makes one";

#[each_server]
fn invalid_arguments_are_refused_and_change_nothing(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let unknown =
        |word: &str| format!("ERR syntax error: unknown option '{word}', DLOCK.HELP lists every form");
    let twice = |what: &str| format!("ERR syntax error: {what} may be given only once");
    let exclusive = |one: &str, other: &str| {
        format!("ERR syntax error: {one} and {other} exclude each other: give one of them, once")
    };
    let no_value = |what: &str| format!("ERR syntax error: {what} requires a value");
    let cases = [
        ("ACQUIRE k t", ARITY.into()),
        ("ACQUIRE k t 600000 RENTRANT", unknown("RENTRANT")),
        ("ACQUIRE k t 600000 600000", unknown("..")),
        ("ACQUIRE k t 600000 ALL", unknown("ALL")),
        // It may be a token out of place: never sent back.
        ("ACQUIRE k t 600000 averylongsecrettoken", unknown("..")),
        ("ACQUIRE k t 600000 REENTRANT reentrant", exclusive("REENTRANT", "DEPTH")),
        ("ACQUIRE k t 600000 REENTRANT DEPTH 2", exclusive("REENTRANT", "DEPTH")),
        ("ACQUIRE k t 600000 SHARED PERMITS 2", exclusive("SHARED", "PERMITS")),
        ("ACQUIRE k t 600000 LABEL a LABEL b", twice("LABEL")),
        ("ACQUIRE k t 600000 BLOCK 1 BLOCK 1", twice("BLOCK")),
        ("ACQUIRE k t 600000 DELAY 1 DELAY 1", twice("DELAY")),
        ("ACQUIRE k t 600000 EPHEMERAL EPHEMERAL", twice("EPHEMERAL")),
        ("ACQUIRE k t 600000 DEPTH", no_value("DEPTH")),
        ("ACQUIRE k t 600000 PERMITS", no_value("PERMITS")),
        ("ACQUIRE k t 600000 BLOCK", no_value("BLOCK")),
        ("ACQUIRE k t 600000 DELAY", no_value("DELAY")),
        ("ACQUIRE k t 600000 LABEL", no_value("LABEL")),
        ("ACQUIRE k t 600000 DEPTH 0", format!("ERR DEPTH {COUNT}")),
        ("ACQUIRE k t 600000 DEPTH 2147483648", format!("ERR DEPTH {COUNT}")),
        ("ACQUIRE k t 600000 PERMITS -1", format!("ERR PERMITS {COUNT}")),
        (
            "ACQUIRE k t 600000 DELAY 86400001",
            "ERR DELAY ms must be a whole number from 0 to 86400000".into(),
        ),
        (
            "ACQUIRE k t 600000 BLOCK 1000000000001",
            "ERR BLOCK ms must be a whole number from 0 to 1000000000000".into(),
        ),
        ("RELEASE k", ARITY.into()),
        ("RELEASE k t ALL ALL", exclusive("ALL", "DEPTH")),
        ("RELEASE k t ALL DEPTH 1", exclusive("ALL", "DEPTH")),
        ("RELEASE k t DEPTH", no_value("DEPTH")),
        ("RELEASE k t DEPTH x", "ERR DEPTH n must be a whole number from 0 to 2147483647".into()),
        ("RELEASE k t EVERY", unknown("EVERY")),
        ("EXTEND k t", ARITY.into()),
        ("EXTEND k t 600000 x", ARITY.into()),
        ("CONFIRM k t 1", ARITY.into()),
        ("CONFIRM k t 1 600000 x", ARITY.into()),
        ("HOLDS k", ARITY.into()),
        ("HOLDS k t u", ARITY.into()),
        ("PTTL", ARITY.into()),
        ("PTTL k t u", FORMS.into()),
        ("INSPECT", ARITY.into()),
        ("INSPECT k t", unknown("t")),
        ("INSPECT k COUNT", no_value("COUNT")),
        ("INSPECT k COUNT 0", format!("ERR COUNT {COUNT}")),
        ("WAITERS", ARITY.into()),
        ("WAITERS k 5", unknown("..")),
        ("WAITERS k COUNT", no_value("COUNT")),
        ("WAITERS k COUNT 0", format!("ERR COUNT {COUNT}")),
        ("WAITERS k COUNT 1 COUNT 1", twice("COUNT")),
        ("CANCEL k", ARITY.into()),
        ("CANCEL k token 5", unknown("token")),
        ("CANCEL k CLIENT x", "ERR CLIENT id must be a whole number from 0 to 9223372036854775807".into()),
        ("CANCEL k CLIENT 5 6", FORMS.into()),
        ("BREAK", ARITY.into()),
        ("BREAK k t", ARITY.into()),
        ("TOKEN 5", ARITY.into()),
        ("HELP me", ARITY.into()),
    ];
    granted(conn.ok("DLOCK.ACQUIRE k holder 600000"));
    let before = state(&mut conn, "k");
    for (command, words) in cases {
        let command = format!("DLOCK.{command}");
        let name = command.split(' ').next().unwrap_or_default();
        assert_eq!(conn.say(&command).error(), words.replace("{}", name), "{command}");
    }
    assert_eq!(state(&mut conn, "k"), before);
}

#[each_server]
fn every_command_checks_the_length_of_its_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    let long = "x".repeat(256);
    for token in ["", &long] {
        for command in [
            &["DLOCK.ACQUIRE", "k", token, "600000"][..],
            &["DLOCK.RELEASE", "k", token],
            &["DLOCK.EXTEND", "k", token, "600000"],
            &["DLOCK.CONFIRM", "k", token, "1", "600000"],
            &["DLOCK.HOLDS", "k", token],
            &["DLOCK.PTTL", "k", token],
            &["DLOCK.CANCEL", "k", token],
        ] {
            assert_eq!(conn.call(command).error(), TOKEN, "{}", command[0]);
        }
    }
}

#[each_server]
fn error_words_differ_from_those_that_clients_retry(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    conn.ok("SET text x");
    let fence = granted(conn.ok("DLOCK.ACQUIRE k t 600000"));
    let far = fence + 60_000_000;
    for (command, word) in [
        ("DLOCK.ACQUIRE text t 600000".to_string(), "WRONGTYPE"),
        ("DLOCK.ACQUIRE k t 0".to_string(), "ERR"),
        ("DLOCK.ACQUIRE k t 600000 PERMITS 2".to_string(), "ERR"),
        (format!("DLOCK.CONFIRM k t {far} 600000"), "FENCEAHEAD"),
        ("DLOCK._SET k x".to_string(), "ERR"),
    ] {
        let refused = conn.say(&command);
        assert_eq!(refused.error().split(' ').next(), Some(word), "{command}");
    }
}
