//! The commands that ACL rules allow: rules on key patterns, commands and categories.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server};

/// Returns the commands that the user may run on `lock:a`.
#[track_caller]
fn allowed(conn: &mut Conn) -> Vec<&'static str> {
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

#[each_server]
fn key_patterns_separate_reading_from_writing(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut reader = server.user("%R~lock:* +@all");
    assert_eq!(allowed(&mut reader), ["HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST", "LOG", "TOKEN", "HELP"]);
    assert_eq!(server.connect().ok("DBSIZE"), 0);
    let mut writer = server.user("%W~lock:* +@all");
    assert_eq!(
        allowed(&mut writer),
        ["LIST", "LOG", "TOKEN", "HELP"],
        "commands that change a lock also need the right to read: their reply shows the earlier state"
    );
    let mut both = server.user("~lock:* +@all");
    assert_eq!(allowed(&mut both).len(), 14);
}

#[each_server]
fn acl_categories_contain_the_commands(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    if !kind.is_valkey && !kind.is_at_least(7, 4) {
        // Redis 7.0 puts module commands in no category: rules have to name them, and "-@write" removes none.
        assert!(admin.say("ACL CAT dlock").error().contains("Unknown category"));
        assert_eq!(allowed(&mut server.user("~* +@all -@write -@dangerous")).len(), 14);
        assert!(allowed(&mut server.user("~* +@write +@read +@fast")).is_empty());
        return;
    }
    // Valkey 8 leaves module commands out of ACL CAT; COMMAND INFO names their categories on every server.
    // The 17 commands are those of `allowed`, GUARD, FENCED and the internal `_SET`.
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
    assert_eq!(allowed(&mut server.user("~* +@dlock -@dangerous")), all_but_dangerous);
    assert_eq!(allowed(&mut server.user("~* +@dlock")).len(), 14);
    assert_eq!(
        allowed(&mut server.user("~* +@dlock -@write")),
        ["HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST", "LOG", "TOKEN", "HELP"]
    );
    assert_eq!(allowed(&mut server.user("~* +@read")), ["HOLDS", "PTTL", "INSPECT", "WAITERS", "LIST"]);
    assert_eq!(
        allowed(&mut server.user("~* +@write")),
        ["ACQUIRE", "EXTEND", "CONFIRM", "CANCEL", "RELEASE", "BREAK"]
    );
    assert_eq!(allowed(&mut server.user("~* +@dangerous")), ["LOG", "BREAK"]);
    assert!(!allowed(&mut server.user("~* +@all -@blocking")).contains(&"ACQUIRE"));
}
