//! Rights that are withdrawn during a wait: the rights at the moment of the grant decide.

use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// The holder `a`, the waiter `b` of the user `worker`, and `c` behind it.
struct Scene {
    server: Server,
    admin: Conn,
    b: Conn,
    c: Conn,
}

fn scene(kind: &dlock_testkit::ServerKind) -> Scene {
    let (server, mut admin) = Server::connected(kind);
    admin.ok("ACL SETUSER worker reset on >secret ~lock:* +dlock.acquire +dlock.release +echo");
    admin.ok("DLOCK.ACQUIRE lock:k a 600000");
    let [mut b, mut c] = [server.connect(), server.connect()];
    assert_eq!(b.ok("AUTH worker secret"), "OK");
    for (conn, token) in [(&mut b, "b"), (&mut c, "c")] {
        conn.send(&["DLOCK.ACQUIRE", "lock:k", token, "600000", "BLOCK", "0"]);
        let waiting = if token == "b" { "1" } else { "2" };
        until("the client waits", || server.info("dlock_waiting") == waiting);
    }
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
        admin.ok(&format!("ACL SETUSER worker {withdrawal}"));
        assert_eq!(admin.ok("DLOCK.RELEASE lock:k a"), 1);
        let refused = b.read();
        assert!(refused.error().starts_with("NOPERM "), "{withdrawal}: {refused:?}");
        assert_eq!(b.say("ECHO x"), "x", "exactly one reply");
        assert!(c.read().int() > 0);
        assert_eq!(
            (admin.ok("DLOCK.HOLDS lock:k b"), admin.ok("DLOCK.HOLDS lock:k c")),
            (0.into(), 1.into())
        );
        assert_eq!(server.info("dlock_waiting"), "0");
        // ACL LOG shows the denial like any other.
        let log = admin.ok("ACL LOG");
        let [entry] = log.items() else { panic!("{withdrawal}: {log:?}") };
        assert_eq!(entry.field("reason"), reason, "{withdrawal}");
        assert_eq!(entry.field("username"), "worker");
        assert_eq!(entry.field("object").text().to_lowercase(), object);
    }
}

#[each_server]
fn a_waiter_with_the_rights_is_granted(kind: &ServerKind) {
    let Scene { server: _server, mut admin, mut b, mut c } = scene(kind);
    // The rights are removed, and restored by another rule.
    admin.ok("ACL SETUSER worker resetkeys -dlock.acquire");
    admin.ok("ACL SETUSER worker ~lock:k +dlock.acquire");
    admin.ok("ACL LOG RESET");
    assert_eq!(admin.ok("DLOCK.RELEASE lock:k a"), 1);
    assert!(b.read().int() > 0);
    assert_eq!(b.say("DLOCK.RELEASE lock:k b"), 1);
    assert!(c.read().int() > 0);
    assert_eq!(admin.ok("ACL LOG"), Value::Array(Vec::new()));
}
