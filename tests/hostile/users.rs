//! A user that has rights for the keys `lock:*` only cannot use other keys or commands. If an administrator
//! withdraws the rights during a wait, the waiter is refused instead of granted.

use crate::calls;
use dlock_testkit::queue::{clients, granted, holders, waiter};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// Rights to commands that use a lock. Lists the commands, because Redis 7.0 has no category `dlock`.
const WORKER: &str = "~lock:* &other +dlock.acquire +dlock.release +dlock.extend +dlock.confirm +dlock.holds +dlock.pttl \
                      +dlock.inspect +dlock.waiters +dlock.cancel +dlock.token +dlock.help";

#[track_caller]
fn assert_refused(conn: &mut Conn, command: &str) {
    match conn.say(command) {
        Value::Error(line) => assert!(line.contains("NOPERM"), "{command}: {line}"),
        answer => panic!("{command}: {answer:?}"),
    }
}

#[each_server]
fn a_lock_user_may_run_no_other_command(kind: &ServerKind) {
    // Commands that need no rights: log in, choose a protocol, reset, quit.
    const WITHOUT_RIGHTS: [&str; 4] = ["auth", "hello", "reset", "quit"];
    let (server, mut admin) = Server::connected(kind);
    let mut conn = server.user(WORKER);
    let mut refused = 0;
    for call in calls(&admin.ok("COMMAND"), &["lock:a"], 0) {
        let name = call[0].to_lowercase();
        let is_allowed = WORKER.contains(&format!("+{name}"));
        if !is_allowed && !WITHOUT_RIGHTS.contains(&&*name) {
            assert_refused(&mut conn, &call.join(" "));
            refused += 1;
        }
    }
    assert!(refused > 300, "only {refused} commands were refused");
    // Some of these commands with realistic arguments.
    for command in [
        "CONFIG GET dlock.max-ttl",
        "CONFIG SET dlock.restart-grace 0",
        "CONFIG SET dlock.fence-mark no",
        "CLIENT UNBLOCK 1",
        "CLIENT KILL ID 1",
        "ACL WHOAMI",
        "DEBUG SLEEP 0",
        "MODULE LIST",
        "INFO dlock",
        "MULTI",
        "EVAL return 0",
        "SUBSCRIBE __keyspace@0__:lock:a",
    ] {
        assert_refused(&mut conn, command);
    }
    assert_eq!(admin.ok("DBSIZE"), 0);
}

/// Permitted commands, with the names of other keys as tokens, labels, owners, channels and messages.
const TRICKS: [&str; 16] = [
    "DLOCK.ACQUIRE lock:a other 600000 LABEL other EPHEMERAL DELAY 100",
    "DLOCK.ACQUIRE lock:a other 600000 DEPTH 2 BLOCK 1",
    "DLOCK.ACQUIRE lock:s other 600000 SHARED REENTRANT LABEL lock:b",
    "DLOCK.ACQUIRE lock:p other 600000 PERMITS 2 LABEL SHARED",
    "DLOCK.ACQUIRE lock:s queued 600000 QUEUE 600000 NOTIFY other other OWNER other",
    "DLOCK.CANCEL lock:s queued",
    "DLOCK.EXTEND lock:a other 600000",
    "DLOCK.CONFIRM lock:a other 1 600000",
    "DLOCK.HOLDS lock:a other",
    "DLOCK.PTTL lock:a other",
    "DLOCK.INSPECT lock:a",
    "DLOCK.WAITERS lock:a COUNT 5",
    "DLOCK.CANCEL lock:a other",
    "DLOCK.CANCEL lock:a CLIENT 1",
    "DLOCK.RELEASE lock:a other DEPTH 1",
    "DLOCK.RELEASE lock:a other ALL",
];

#[each_server]
fn a_user_may_name_only_its_own_keys_as_the_first_argument(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    let mut conn = server.user(WORKER);
    for command in TRICKS {
        assert!(!matches!(conn.say(command), Value::Error(_)), "{command}");
    }
    // The holds on lock:s and lock:p are left.
    assert_eq!((admin.ok("DBSIZE"), server.number("dlock_waiting")), (2.into(), 0));
    for command in TRICKS {
        for other in ["other", "Lock:a", "lock", ""] {
            let words: Vec<&str> =
                command.split(' ').map(|word| if word.starts_with("lock:") { other } else { word }).collect();
            let refused = conn.call(&words);
            assert!(refused.error().starts_with("NOPERM"), "{command} with {other:?}: {refused:?}");
        }
    }
}

#[each_server]
fn a_user_cannot_reach_locks_and_waiters_of_other_keys(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    assert!(admin.ok("DLOCK.ACQUIRE other t 600000").int() > 0);
    let mut waiter = waiter(&server, "DLOCK.ACQUIRE other u 600000 BLOCK 0");
    let id = clients(&mut admin, "other")[0];
    let mut conn = server.user(WORKER);
    // CANCEL by client id or by token, on an allowed key.
    for command in [format!("DLOCK.CANCEL lock:a CLIENT {id}"), "DLOCK.CANCEL lock:a u".into()] {
        assert_eq!(conn.ok(&command), 0);
    }
    assert_eq!(conn.ok("DLOCK.RELEASE lock:a t"), 0);
    assert_eq!(conn.ok("DLOCK.HOLDS lock:a t"), 0);
    assert_eq!(server.numbers(["dlock_waiting", "dlock_held"]), [1, 1]);
    // BREAK needs a right of its own.
    assert!(conn.ok("DLOCK.ACQUIRE lock:a t 600000").int() > 0);
    assert_refused(&mut conn, "DLOCK.BREAK lock:a");
    let mut operator = server.user("~lock:* +dlock.break");
    assert_refused(&mut operator, "DLOCK.BREAK other");
    assert_eq!(operator.ok("DLOCK.BREAK lock:a"), 1);
    assert_eq!(admin.ok("DLOCK.RELEASE other t"), 1);
    granted(&mut waiter);
}

/// The holder `a`, the waiter `b` of the user `app`, and `c` behind it.
struct Scene {
    server: Server,
    admin: Conn,
    b: Conn,
    c: Conn,
}

fn scene(kind: &ServerKind) -> Scene {
    let (server, mut admin) = Server::connected(kind);
    admin.ok("DLOCK.ACQUIRE lock:k a 600000");
    let mut b = server.user("~lock:* +dlock.acquire +dlock.release +echo");
    b.send(&["DLOCK.ACQUIRE", "lock:k", "b", "600000", "BLOCK", "0"]);
    until("b waits", || server.number("dlock_waiting") == 1);
    let c = waiter(&server, "DLOCK.ACQUIRE lock:k c 600000 BLOCK 0");
    Scene { server, admin, b, c }
}

#[each_server]
fn a_waiter_without_the_rights_is_refused_and_the_next_is_granted(kind: &ServerKind) {
    let withdrawals = [
        ("resetkeys ~other:*", "key", "lock:k"),
        ("resetkeys %R~lock:*", "key", "lock:k"),
        ("-dlock.acquire", "command", "dlock.acquire"),
        ("-@all +echo", "command", "dlock.acquire"),
    ];
    for (withdrawal, reason, object) in withdrawals {
        let Scene { server, mut admin, mut b, mut c } = scene(kind);
        admin.ok("ACL LOG RESET");
        admin.ok(&format!("ACL SETUSER app {withdrawal}"));
        assert_eq!(admin.ok("DLOCK.RELEASE lock:k a"), 1);
        let refused = b.read();
        assert!(refused.error().starts_with("NOPERM "), "{withdrawal}: {refused:?}");
        assert_eq!(b.say("ECHO x"), "x", "exactly one reply");
        granted(&mut c);
        assert_eq!(holders(&mut admin, "lock:k"), ["c"]);
        assert_eq!(server.number("dlock_waiting"), 0);
        // ACL LOG shows the denial like any other.
        let log = admin.ok("ACL LOG");
        let [entry] = log.items() else { panic!("{withdrawal}: {log:?}") };
        assert_eq!(entry.field("reason"), reason, "{withdrawal}");
        assert_eq!(entry.field("username"), "app");
        assert_eq!(entry.field("object").text().to_lowercase(), object);
    }
}

#[each_server]
fn a_waiter_is_granted_when_its_rights_were_withdrawn_and_restored(kind: &ServerKind) {
    let Scene { server: _server, mut admin, mut b, mut c } = scene(kind);
    // The rights are removed, and restored by another rule.
    admin.ok("ACL SETUSER app resetkeys -dlock.acquire");
    admin.ok("ACL SETUSER app ~lock:k +dlock.acquire");
    admin.ok("ACL LOG RESET");
    assert_eq!(admin.ok("DLOCK.RELEASE lock:k a"), 1);
    granted(&mut b);
    assert_eq!(b.say("DLOCK.RELEASE lock:k b"), 1);
    granted(&mut c);
    assert_eq!(admin.ok("ACL LOG"), Value::Array(Vec::new()));
}
