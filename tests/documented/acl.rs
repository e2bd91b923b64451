//! ACL rules: commands, keys and categories.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

/// Opens a connection as a user with these rules.
fn user(server: &Server, rules: &str) -> Conn {
    server.connect().ok(&format!("ACL SETUSER app reset on >secret {rules}"));
    let mut conn = server.connect();
    assert_eq!(conn.ok("AUTH app secret"), "OK");
    conn
}

/// Returns the commands that the user may run on `lock:a`.
#[track_caller]
fn may(conn: &mut Conn) -> Vec<&'static str> {
    let all = [
        ("ACQUIRE", "lock:a t 600000"),
        ("EXTEND", "lock:a t 600000"),
        ("CONFIRM", "lock:a t 1 600000"),
        ("HOLDS", "lock:a t"),
        ("PTTL", "lock:a"),
        ("INSPECT", "lock:a"),
        ("WAITERS", "lock:a"),
        ("LIST", "0"),
        ("LOG", ""),
        ("CANCEL", "lock:a t"),
        ("RELEASE", "lock:a t"),
        ("BREAK", "lock:a"),
        ("TOKEN", ""),
        ("HELP", ""),
    ];
    let mut allowed = Vec::new();
    for (name, arguments) in all {
        match conn.say(&format!("DLOCK.{name} {arguments}")) {
            Value::Error(line) => assert!(line.starts_with("NOPERM"), "{name}: {line}"),
            _ => allowed.push(name),
        }
    }
    allowed
}

fn has_categories(kind: &ServerKind) -> bool {
    kind.is_valkey || kind.is_at_least(7, 4)
}

#[each_server]
fn a_user_may_run_only_the_commands_and_keys_of_its_rules(kind: &ServerKind) {
    let server = Server::start(kind);
    let rules = "~lock:* +dlock.acquire +dlock.release +dlock.extend";
    let mut conn = user(&server, rules);
    assert_eq!(may(&mut conn), ["ACQUIRE", "EXTEND", "RELEASE"]);
    assert!(conn.ok("DLOCK.ACQUIRE lock:a t 600000").int() > 0);
    for other in ["DLOCK.ACQUIRE other t 600000", "DLOCK.RELEASE other t", "DLOCK.EXTEND lockb t 1000"] {
        assert!(conn.say(other).error().starts_with("NOPERM"), "{other}");
    }
    assert_eq!(server.connect().ok("DBSIZE"), 1);
    // Only the first argument is a key.
    assert!(conn.ok("DLOCK.ACQUIRE lock:b other 600000 LABEL other").int() > 0);
}

#[each_server]
fn key_patterns_separate_reading_from_writing(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut reader = user(&server, "%R~lock:* +@all");
    assert_eq!(may(&mut reader), ["HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST", "LOG", "TOKEN", "HELP"]);
    assert_eq!(server.connect().ok("DBSIZE"), 0);
    let mut writer = user(&server, "%W~lock:* +@all");
    assert_eq!(
        may(&mut writer),
        ["LIST", "LOG", "TOKEN", "HELP"],
        "a change tells of what was there: it reads too"
    );
    let mut both = user(&server, "~lock:* +@all");
    assert_eq!(may(&mut both).len(), 14);
}

#[each_server]
fn acl_categories_contain_the_commands(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    if !has_categories(kind) {
        // Redis 7.0 puts module commands in no category: rules have to name them, and "-@write" removes none.
        assert!(admin.say("ACL CAT dlock").error().contains("Unknown category"));
        assert_eq!(may(&mut user(&server, "~* +@all -@write -@dangerous")).len(), 14);
        assert!(may(&mut user(&server, "~* +@write +@read +@fast")).is_empty());
        return;
    }
    // Valkey 8 leaves module commands out of ACL CAT; COMMAND INFO names their categories on every server.
    let listed = admin.ok("ACL CAT dlock").items().len();
    assert!(listed == 17 || listed == 0, "{listed}");
    let loaded = admin.ok("COMMAND LIST FILTERBY MODULE dlock");
    for name in loaded.items() {
        let info = admin.ok(&format!("COMMAND INFO {}", name.text()));
        assert!(info.items()[0].items()[6].items().contains(&Value::Simple("@dlock".into())), "{info:?}");
    }
    assert_eq!(loaded.items().len(), 17);

    let all_but_dangerous = [
        "ACQUIRE", "EXTEND", "CONFIRM", "HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST", "CANCEL", "RELEASE",
        "TOKEN", "HELP",
    ];
    assert_eq!(may(&mut user(&server, "~* +@dlock -@dangerous")), all_but_dangerous);
    assert_eq!(may(&mut user(&server, "~* +@dlock")).len(), 14);
    assert_eq!(
        may(&mut user(&server, "~* +@dlock -@write")),
        ["HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST", "LOG", "TOKEN", "HELP"]
    );
    assert_eq!(may(&mut user(&server, "~* +@read")), ["HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST"]);
    assert_eq!(
        may(&mut user(&server, "~* +@write")),
        ["ACQUIRE", "EXTEND", "CONFIRM", "CANCEL", "RELEASE", "BREAK"]
    );
    assert_eq!(may(&mut user(&server, "~* +@dangerous")), ["LOG", "BREAK"]);
    assert!(!may(&mut user(&server, "~* +@all -@blocking")).contains(&"ACQUIRE"));
}

#[each_server]
fn no_rule_lets_a_client_send_effects(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = user(&server, "~* +@all");
    let refused = conn.call(&["DLOCK._SET", "k", "x"]);
    assert!(refused.error().starts_with("ERR this command is how a master tells replicas"), "{refused:?}");
    assert_eq!(server.info("dlock_fence"), "0");
}
