//! A guard (GUARD or FENCED, which run another command) bypasses no check: it gives no rights, shows no
//! token, and runs no command that ends the server.

use crate::calls;
use dlock_testkit::{Server, ServerKind, Value, each_server};

#[each_server]
fn no_guarded_command_crashes_the_server(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    let info = conn.ok("COMMAND");
    // `fill`: the arguments, repeated as often as needed. `more`: the number of arguments beyond the
    // required ones.
    for (fill, more) in [(&["k"][..], 0), (&["1"], 0), (&["k", "1"], 1), (&["-1", "99999999999"], 2)] {
        for call in calls(&info, fill, more) {
            // These commands wait for another server or for some time.
            if ["migrate", "wait", "waitaof"].contains(&call[0].to_lowercase().as_str()) {
                continue;
            }
            conn.ok("DLOCK.ACQUIRE guard t MAX");
            // Restores the same data before each command.
            for command in ["DEL k 1", "RPUSH k 1", "SET 1 1"] {
                conn.ok(command);
            }
            for guard in [["DLOCK.GUARD", "guard", "t"], ["DLOCK.FENCED", "gate", "1"]] {
                let words: Vec<&str> = guard.into_iter().chain(call.iter().map(String::as_str)).collect();
                let _ = conn.call(&words);
                let keys = conn.call(&[&["COMMAND", "GETKEYS"][..], &words].concat());
                assert_eq!(keys.items()[0], guard[1], "{words:?}");
            }
        }
    }
    assert_eq!(conn.ok("PING"), "PONG");
}

/// On Valkey 9, the reply of a guarded GETDEL for a key of another type used to go to the next guarded
/// command.
#[each_server]
fn each_guarded_command_gets_its_own_reply(kind: &ServerKind) {
    let (_server, mut conn) = Server::connected(kind);
    conn.ok("RPUSH list 1");
    conn.ok("DLOCK.ACQUIRE k t MAX");
    for guard in ["GUARD k t", "FENCED gate 5"] {
        for command in ["GETDEL list", "GETSET list 1"] {
            for (next, answer) in [("SET x 1", "OK"), ("ECHO next", "next")] {
                conn.ok("MULTI");
                conn.ok(&format!("DLOCK.{guard} {command}"));
                conn.ok(&format!("DLOCK.{guard} {next}"));
                let replies = conn.ok("EXEC");
                let [refused, answered] = replies.items() else { panic!("{replies:?}") };
                assert!(refused.error().contains("WRONGTYPE"), "{command}: {refused:?}");
                assert_eq!(answered, answer, "{command}, {next}");
            }
        }
    }
}

#[each_server]
fn guard_gives_no_right_that_the_user_lacks(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    admin.ok("MSET secret:1 hidden a:x 1");
    admin.ok("RPUSH a:list 1");
    // The last rules allow INCR and then forbid it again.
    let rules =
        "~a:* %R~r:* &a:* +dlock.guard +dlock.fenced +dlock.acquire +get +set +sort +publish +incr -incr";
    let mut conn = server.user(rules);
    conn.ok("DLOCK.ACQUIRE a:k t MAX");
    for guard in ["GUARD a:k t", "FENCED a:gate 5"] {
        assert_eq!(conn.ok(&format!("DLOCK.{guard} SET a:x 2")), "OK");
        for command in [
            "GET secret:1",
            "SET secret:1 x",
            "SET r:x 1",
            "INCR a:x",
            "DEL a:x",
            "FLUSHALL",
            "PUBLISH other x",
            "DLOCK.BREAK a:k",
            "DLOCK.ACQUIRE secret:k t 1000",
            "SORT a:list BY nosort GET secret:*",
        ] {
            let refused = conn.say(&format!("DLOCK.{guard} {command}"));
            let Value::Error(text) = &refused else { panic!("{command}: {refused:?}") };
            let denied = ["NOPERM", "ACL", "rights", "permission"].iter().any(|word| text.contains(word));
            // The server has another text for SORT with GET.
            let denied_sort = command.starts_with("SORT") && text.contains("denied");
            assert!(denied || denied_sort, "{command}: {text}");
        }
    }
    // The user needs rights for the key of the lock and for the key of the gate, too.
    assert!(conn.say("DLOCK.GUARD secret:k t GET a:x").error().starts_with("NOPERM"));
    assert!(conn.say("DLOCK.FENCED r:gate 5 GET a:x").error().starts_with("NOPERM"));
    assert_eq!(admin.ok("MGET secret:1 a:x"), ["hidden", "2"]);
    assert!(server.user("~a:* +get").say("DLOCK.GUARD a:k t GET a:x").error().starts_with("NOPERM"));
    // A user with all rights may guard this SORT.
    admin.ok("DLOCK.ACQUIRE k t MAX");
    assert_eq!(admin.ok("DLOCK.GUARD k t SORT a:list BY nosort GET secret:*"), ["hidden"]);
}

#[each_server]
fn guard_shows_no_token_that_the_user_may_not_see(kind: &ServerKind) {
    let server = Server::start(kind);
    let token = "0123456789abcdef";
    server.connect().ok(&format!("DLOCK.ACQUIRE r:k {token} MAX"));
    let mut conn = server.user("~a:* %R~r:* +dlock.guard +dlock.acquire +dlock.inspect +dlock.list");
    conn.ok("DLOCK.ACQUIRE a:k t MAX");
    let seen = conn.ok("DLOCK.GUARD a:k t DLOCK.INSPECT r:k");
    assert_eq!(seen.field("holders").items()[0].field("token"), &"01234567...");
    let listed = conn.ok("DLOCK.GUARD a:k t DLOCK.LIST 0 MATCH r:*");
    assert_eq!(listed.items()[1].items()[0].field("token"), &"01234567...");
    // No error or log shows the arguments of the guard.
    let mut admin = server.connect();
    let errors = ["DLOCK.GUARD a:k secrettoken0123456789 PING", "DLOCK.FENCED secrettoken0123456789 x PING"];
    for command in errors {
        assert!(!admin.say(command).error().contains("secrettoken"));
    }
    admin.ok("CONFIG SET slowlog-log-slower-than 0");
    admin.ok("SLOWLOG RESET");
    assert!(admin.say(errors[0]).error().starts_with("NOTHELD"));
    assert!(!format!("{:?}", admin.ok("SLOWLOG GET")).contains("secrettoken"));
    assert!(!server.log().contains("secrettoken"));
}

#[each_server]
fn guard_lists_no_lock_that_the_user_may_not_see(kind: &ServerKind) {
    let server = Server::start(kind);
    server.connect().ok("DLOCK.ACQUIRE secret:k t MAX");
    let mut conn = server.user("~a:* +dlock.guard +dlock.fenced +get +set +dlock.acquire +dlock.list");
    conn.ok("DLOCK.ACQUIRE a:k t MAX");
    for guard in ["GUARD a:k t", "FENCED a:gate 5"] {
        let listed = conn.ok(&format!("DLOCK.{guard} DLOCK.LIST 0"));
        let listed: Vec<Value> =
            listed.items()[1].items().iter().map(|lock| lock.field("key").clone()).collect();
        assert_eq!(listed, ["a:k"]);
    }
}
