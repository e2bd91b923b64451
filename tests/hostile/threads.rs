//! A server that cannot start threads, at the limit of its user or container.

use std::fs;

use dlock_testkit::{Conn, Folder, Server, ServerKind, Value, each_server, preloaded, until};

/// More locks than the module frees inline: it frees this number in a thread, if it can start one.
const MANY: usize = 1_100;

fn acquire(conn: &mut Conn, words: impl Fn(usize) -> String) {
    let commands: Vec<String> = (0..MANY).map(words).collect();
    let answers = conn.say_together(&commands.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(answers.iter().all(|answer| matches!(answer, Value::Int(_))));
}

/// The module used to refuse every later command, until a restart.
#[each_server]
fn flushed_and_deleted_locks_are_freed_without_a_thread(kind: &ServerKind) {
    let folder = Folder::fresh();
    let file = folder.path().join("none");
    let kind = &preloaded(kind, "tests/hostile/no_threads.c", &[("NO_THREADS", &file)]);
    let (master, replica) = (Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    let mut conn = master.connect();
    acquire(&mut conn, |n| format!("DLOCK.ACQUIRE crowd t{n} 600000 SHARED"));
    replica.wait_in_sync(&master);
    fs::write(&file, "").expect("the file can be written");
    assert_eq!(conn.ok("DEL crowd"), 1);
    acquire(&mut conn, |n| format!("DLOCK.ACQUIRE k{n} t 600000"));
    assert_eq!(conn.ok("FLUSHALL"), "OK");
    replica.wait_in_sync(&master);
    for server in [&master, &replica] {
        until("all holds have ended", || server.info("dlock_holders") == "0");
        assert_eq!(server.connect().ok("DLOCK.INSPECT k1"), Value::Nil);
    }
    assert!(conn.ok("DLOCK.ACQUIRE k1 t 600000").int() > 0);
}
