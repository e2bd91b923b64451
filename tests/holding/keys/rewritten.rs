//! RENAME and MOVE leave an empty key: a key of the lock type without a hold. With `aof-use-rdb-preamble no`,
//! the server rewrites its append only file as commands. These recreate the empty keys, too, because later
//! commands in the file may name them.

use dlock_testkit::queue::{granted, waiter};
use dlock_testkit::{Conn, Server, ServerKind, documents, each_server, until};

fn start(kind: &ServerKind) -> (Server, Conn) {
    let server = Server::options(kind).synced().conf("aof-use-rdb-preamble no").start();
    let conn = server.connect();
    (server, conn)
}

/// Loads the file again, in place and by a restart. The server must accept all of it.
#[track_caller]
fn reload(server: &mut Server, conn: &mut Conn) {
    assert_eq!(conn.ok("DEBUG LOADAOF"), "OK");
    *conn = server.kill_and_restart();
    // A server logs this if a command of the file fails.
    let log = server.log();
    assert!(!log.contains("sending an error to its"), "{log}");
}

#[each_server]
fn a_hold_that_ended_by_rename_or_move_is_not_restored_by_the_file(kind: &ServerKind) {
    // The first command leaves an empty key before the rewrite. After the rewrite, the second one overwrites
    // `held` with the empty key, which ends the hold. "MOVE back" stands for two commands, below.
    for (before, after) in [
        ("RENAME k empty", "RENAME empty held"),
        ("RENAMENX k empty", "RENAME empty held"),
        ("MOVE k 3", "MOVE back"),
    ] {
        let (mut server, mut conn) = start(kind);
        conn.ok("DLOCK.ACQUIRE k t 600000");
        assert!(!conn.ok(before).is_nil());
        conn.ok("DLOCK.ACQUIRE held t 600000");
        conn.ok("DLOCK.ACQUIRE other t 600000");
        server.rewrite();
        if after == "MOVE back" {
            conn.ok("SELECT 3");
            assert_eq!(conn.ok("MOVE k 0"), 1);
            conn.ok("SELECT 0");
            assert_eq!(conn.ok("RENAME k held"), "OK");
        } else {
            assert_eq!(conn.ok(after), "OK");
        }
        assert_eq!(conn.ok("DLOCK.HOLDS held t"), 0);
        reload(&mut server, &mut conn);
        assert_eq!(conn.ok("DLOCK.HOLDS held t"), 0, "{before}: the ended hold is not restored");
        assert_eq!(conn.ok("DLOCK.HOLDS other t"), 1);
        assert!(conn.ok("DLOCK.ACQUIRE held u 600000").int() > 0);
    }
}

#[each_server]
fn an_empty_key_can_be_acquired_deleted_and_overwritten_after_a_rewrite(kind: &ServerKind) {
    let (mut server, mut conn) = start(kind);
    for key in ["taken", "deleted", "mortal", "over", "stays"] {
        conn.ok(&format!("DLOCK.ACQUIRE {key}0 t 600000"));
        assert_eq!(conn.ok(&format!("RENAME {key}0 {key}")), "OK");
    }
    conn.ok("PEXPIRE mortal 500000");
    server.rewrite();
    let fence = conn.ok("DLOCK.ACQUIRE taken u 600000 SHARED").int();
    conn.ok("DLOCK.ACQUIRE taken v 600000 SHARED");
    assert_eq!(conn.ok("DEL deleted"), 1);
    assert_eq!(conn.ok("SET over text"), "OK");
    reload(&mut server, &mut conn);
    assert_eq!(conn.ok("DLOCK.ACQUIRE taken u 600000 SHARED"), fence);
    assert_eq!((conn.ok("DLOCK.HOLDS taken v"), conn.ok("EXISTS deleted")), (1.into(), 0.into()));
    assert_eq!(conn.ok("GET over"), "text");
    // The background job removes the remaining keys, which have no holder.
    for key in ["mortal", "stays"] {
        assert!(conn.ok(&format!("DLOCK.INSPECT {key}")).is_nil());
        until("the key is removed", || conn.ok(&format!("EXISTS {key}")) == 0);
    }
    assert_eq!(server.numbers(["dlock_held", "dlock_expiries"]), [1, 0]);
}

#[each_server]
fn a_queue_and_a_lock_delay_survive_a_rewrite(kind: &ServerKind) {
    let (mut server, mut conn) = start(kind);
    conn.ok("DLOCK.ACQUIRE delayed t 1 DELAY 600000");
    conn.ok("DLOCK.ACQUIRE short t 1 DELAY 1");
    until("only delays are left", || server.number("dlock_expiries") == 2);
    conn.ok("DLOCK.ACQUIRE held t 600000");
    let mut waiter = waiter(&server, "DLOCK.ACQUIRE held w 600000 BLOCK 0");
    server.rewrite();
    assert_eq!(conn.ok("DLOCK.RELEASE held t"), 1);
    granted(&mut waiter);
    reload(&mut server, &mut conn);
    assert_eq!((conn.ok("DLOCK.HOLDS held t"), conn.ok("DLOCK.HOLDS held w")), (0.into(), 1.into()));
    assert!(conn.ok("DLOCK.INSPECT delayed").field("delay").int() > 500_000);
    assert!(conn.ok("DLOCK.ACQUIRE delayed u 1000").is_nil());
}

/// Follows the procedure of docs/upgrading.md.
#[each_server]
fn the_module_can_be_removed_when_none_of_its_keys_is_left(kind: &ServerKind) {
    let list = |cursor: &str| format!("SCAN {cursor} TYPE dlock-key COUNT 1000");
    let text = documents::read("docs/upgrading.md");
    assert!(text.contains(&format!("`{}` lists", list("0"))), "the document has another command");
    let (mut server, mut conn) = start(kind);
    conn.ok("SET a 1");
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("RENAME k left"), "OK");
    assert_eq!(server.number("dlock_held"), 0);
    let mut found = Vec::new();
    let mut cursor = "0".to_string();
    loop {
        let page = conn.ok(&list(&cursor));
        found.extend(page.items()[1].items().iter().map(|key| key.text()));
        cursor = page.items()[0].text();
        if cursor == "0" {
            break;
        }
    }
    assert_eq!(found, ["left"]);
    assert_eq!(conn.ok("DEL left"), 1);
    server.rewrite();
    server.kill9();
    server.restart_with(|options| options.without_module());
    assert_eq!(server.connect().ok("GET a"), "1");
}
