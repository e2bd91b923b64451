//! A user without write access to a key sees none of its tokens: a token proves ownership.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

const OWNER: &str = "0wner-of-the-lock-with-a-secret";
const SHOWN: &str = "0wner-of...";

fn user(server: &Server, rules: &str) -> Conn {
    assert_eq!(server.connect().ok(&format!("ACL SETUSER worker reset on >secret {rules}")), "OK");
    let mut conn = server.connect();
    assert_eq!(conn.ok("AUTH worker secret"), "OK");
    conn
}

fn waits(server: &Server, command: &str, waiting: usize) -> Conn {
    let mut conn = server.connect();
    conn.send(&command.split(' ').collect::<Vec<_>>());
    until("the client waits", || server.info("dlock_waiting") == waiting.to_string());
    conn
}

/// DEADLOCK used to show whole tokens of other keys, so a user with rights only for `a:*` could release
/// another user's lock.
#[each_server]
fn a_deadlock_error_shows_no_token(kind: &ServerKind) {
    let server = Server::start(kind);
    let mut conn = user(&server, "~a:* +dlock.acquire +dlock.release");
    assert!(server.connect().ok(&format!("DLOCK.ACQUIRE a:1 {OWNER} 600000")).int() > 0);
    assert!(conn.ok("DLOCK.ACQUIRE a:2 mine 600000").int() > 0);
    let _waiter = waits(&server, &format!("DLOCK.ACQUIRE a:2 {OWNER} 600000 BLOCK 0"), 1);
    let refused = conn.say("DLOCK.ACQUIRE a:1 mine 600000 BLOCK 0");
    assert_eq!(refused.error(), format!("DEADLOCK mine -> {SHOWN} -> mine"));
    // Two sharers that both ask for an upgrade.
    assert!(server.connect().ok(&format!("DLOCK.ACQUIRE a:3 {OWNER} 600000 SHARED")).int() > 0);
    assert!(conn.ok("DLOCK.ACQUIRE a:3 mine 600000 SHARED").int() > 0);
    let _waiter = waits(&server, &format!("DLOCK.ACQUIRE a:3 {OWNER} 600000 BLOCK 0"), 2);
    assert_eq!(
        conn.say("DLOCK.ACQUIRE a:3 mine 600000").error(),
        format!("DEADLOCK mine -> {SHOWN} -> mine")
    );
}

/// The text of the error used to grow with the cycle and the tokens, up to 122 KB.
#[each_server]
fn a_long_cycle_is_shown_by_its_ends(kind: &ServerKind) {
    let (server, mut conn) = Server::connected(kind);
    let token = |n: usize| [format!("{n:03}").as_bytes(), &[0xff; 252]].concat();
    let acquire = |n: usize, token: &[u8], rest: &[&[u8]]| {
        let key = format!("key{n}");
        [&[&b"DLOCK.ACQUIRE"[..], key.as_bytes(), token, b"600000"], rest]
            .concat()
            .iter()
            .map(|w| w.to_vec())
            .collect::<Vec<_>>()
    };
    for n in 0..20 {
        assert!(conn.call(&acquire(n, &token(n), &[])).int() > 0);
    }
    let mut waiters = Vec::new();
    for n in 0..19 {
        let mut waiter = server.connect();
        waiter.send(&acquire(n + 1, &token(n), &[b"BLOCK", b"0"]));
        waiters.push(waiter);
    }
    until("all waiters wait", || server.info("dlock_waiting") == "19");
    let refused = conn.call(&acquire(0, &token(19), &[b"BLOCK", b"0"]));
    let shown = |n: usize| format!("{n:03}{}...", "\\xff".repeat(5));
    let [first, last] = [[19, 0, 1, 2], [16, 17, 18, 19]].map(|ends| ends.map(shown).join(" -> "));
    assert_eq!(refused.error(), format!("DEADLOCK {first} -> (13 more) -> {last}"));
    assert!(refused.error().len() <= 512, "{}", refused.error().len());
}

const LOOKS: [&str; 6] = [
    "DLOCK.INSPECT lock:a",
    "DLOCK.WAITERS lock:a",
    "EVAL_RO return|redis.call('DLOCK.INSPECT',KEYS[1]) 1 lock:a",
    "EVAL_RO return|redis.call('DLOCK.WAITERS',KEYS[1]) 1 lock:a",
    "MULTI",
    "EXEC",
];

fn looks(conn: &mut Conn) -> Vec<String> {
    let mut shown = Vec::new();
    for command in LOOKS {
        let words: Vec<String> = command.split(' ').map(|word| word.replace('|', " ")).collect();
        shown.push(format!("{:?}", conn.call(&words)));
        if command == "MULTI" {
            LOOKS[..2].iter().for_each(|look| assert_eq!(conn.ok(look), "QUEUED"));
        }
    }
    shown.remove(4);
    shown
}

#[each_server]
fn a_reader_sees_only_the_first_characters_of_tokens(kind: &ServerKind) {
    let (server, mut admin) = Server::connected(kind);
    assert!(admin.ok(&format!("DLOCK.ACQUIRE lock:a {OWNER} 600000")).int() > 0);
    let _waiter = waits(&server, "DLOCK.ACQUIRE lock:a 0wner-of-another-one 600000 BLOCK 0", 1);
    let mut errors = admin.ok("INFO errorstats").text();
    const COMMANDS: &str = "+dlock.inspect +dlock.waiters +eval_ro +multi +exec";
    for (rules, whole) in
        [("%R~lock:*", false), ("~lock:*", true), ("%R~* %W~other", false), ("%RW~lock:a", true)]
    {
        let mut conn = user(&server, &format!("{rules} {COMMANDS}"));
        for shown in looks(&mut conn) {
            assert!(shown.contains("0wner-of"), "{rules}: {shown}");
            assert_eq!(shown.contains("a-secret") || shown.contains("another"), whole, "{rules}: {shown}");
            assert_eq!(shown.contains("0wner-of..."), !whole, "{rules}: {shown}");
        }
    }
    for shown in looks(&mut admin) {
        assert!(shown.contains("another") || shown.contains("a-secret"), "{shown}");
    }
    // The check of the caller's rights leaves no trace in the error statistics and ACL LOG.
    assert_eq!(std::mem::replace(&mut errors, admin.ok("INFO errorstats").text()), errors);
    assert!(matches!(admin.ok("ACL LOG"), Value::Array(entries) if entries.is_empty()));
}
