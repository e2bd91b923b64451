//! Calls by other modules, and notifications to other modules.

use dlock_testkit::queue::{holders, tokens};
use dlock_testkit::{Server, ServerKind, compiled, each_server, until};

/// Starts a server with a module that has the command CALLER. It runs another command by RedisModule_Call.
/// The first argument is the format of that call: `v` passes the other arguments, `!` replicates the command.
fn with_caller(kind: &ServerKind) -> Server {
    let caller = compiled("tests/caller.c");
    Server::options(kind).conf(&format!("loadmodule {}", caller.display())).start()
}

/// A command that another module calls has no user. The server used to crash when dlock read the user's name
/// at the grant.
#[each_server]
fn a_waiting_call_of_another_module_is_granted(kind: &ServerKind) {
    let server = with_caller(kind);
    let mut conn = server.connect();
    conn.ok("DLOCK.ACQUIRE k a 600000");
    // `K` lets the call block; servers before Redis 7.2 do not support `K`.
    let answer = conn.ok("CALLER Kv DLOCK.ACQUIRE k b 600000 BLOCK 0");
    if answer == "UNKNOWN" {
        return eprintln!("left out on {}: a call by a module cannot wait there", kind.name);
    }
    assert_eq!(answer, "WAITS");
    assert_eq!(tokens(&mut conn, "k"), ["b"]);
    assert_eq!(conn.ok("DLOCK.RELEASE k a"), 1);
    until("b holds the lock", || holders(&mut conn, "k") == ["b"]);
    assert_eq!(conn.ok("DLOCK.RELEASE k b"), 1);
}

/// The server reports no disconnect of the internal client that runs the call, so nothing would end an
/// ephemeral hold before its lease.
#[each_server]
fn an_ephemeral_request_of_another_module_is_refused(kind: &ServerKind) {
    let server = with_caller(kind);
    let mut conn = server.connect();
    for options in ["EPHEMERAL", "EPHEMERAL QUEUE 60000"] {
        let refused = conn.say(&format!("CALLER !v DLOCK.ACQUIRE k t 600000 {options}"));
        assert!(refused.error().starts_with("ERR EPHEMERAL cannot be used"), "{options}: {refused:?}");
    }
    assert_eq!((conn.ok("EXISTS k"), server.number("dlock_queued")), (0.into(), 0));
}

/// While no other module is loaded, dlock sends no notification to modules. So dlock must notice at once when
/// another module is loaded, whatever `notify-keyspace-events` is.
#[each_server]
fn a_module_loaded_later_is_notified_of_locks(kind: &ServerKind) {
    let listener = compiled("tests/hostile/listener.c");
    let server = Server::options(kind).conf("notify-keyspace-events \"\"").start();
    let mut conn = server.connect();
    // `dlock_followed` is 0 once the background job has found no replica and no append only file. The same
    // check counts the other modules.
    until("dlock has checked for replicas and modules", || server.number("dlock_followed") == 0);
    conn.ok("DLOCK.ACQUIRE before t 600000");
    assert_eq!(conn.call(&["MODULE", "LOAD", listener.to_str().expect("the path is UTF-8")]), "OK");
    assert_eq!(conn.ok("HEARD"), 0);
    conn.ok("DLOCK.ACQUIRE k t 600000");
    assert_eq!(conn.ok("HEARD"), 1);
}
