//! The keys of locks are deleted, overwritten, renamed, moved, flushed or evicted. The hold ends when its key
//! is gone, and no lock appears under another name.

mod evicted;
mod flushed;
mod overwritten;
mod renamed;
mod rewritten;

use dlock_testkit::{Conn, Events, Server, ServerKind, Value};

/// A master with an append only file, its replica, and a subscriber to the master's events.
struct Fixture {
    master: Server,
    replica: Server,
    conn: Conn,
    events: Events,
    last_fence: i64,
}

impl Fixture {
    #[track_caller]
    fn new(kind: &ServerKind) -> Fixture {
        let master = Server::options(kind).conf("appendonly yes").start();
        let replica = Server::start(kind);
        replica.replicate(&master);
        let events = Events::subscribe(&master, "__keyspace@*");
        let conn = master.connect();
        Fixture { master, replica, conn, events, last_fence: 0 }
    }

    #[track_caller]
    fn ok(&mut self, command: &str) -> Value {
        self.conn.ok(command)
    }

    /// Acquires a lock that must be free, with a fence above all earlier ones. Discards the events.
    #[track_caller]
    fn acquire(&mut self, key: &str, token: &str) -> i64 {
        let fence = self.conn.ok(&format!("DLOCK.ACQUIRE {key} {token} 600000")).int();
        assert!(fence > self.last_fence, "{fence} after {}", self.last_fence);
        self.last_fence = fence;
        self.events.discard();
        fence
    }

    /// Asserts that the next events, written as "key event", are these, and that no others follow.
    #[track_caller]
    fn assert_published(&mut self, wanted: &[&str]) {
        let published: Vec<String> = wanted.iter().map(|_| self.next_event()).collect();
        assert_eq!(published, wanted);
        self.events.assert_none();
    }

    #[track_caller]
    fn next_event(&mut self) -> String {
        let (channel, event) = self.events.read();
        format!("{} {event}", channel.split(':').nth(1).unwrap_or_default())
    }

    /// Asserts that master and replica have these locks in this database, and that the master still has them
    /// after it has loaded its append only file. `held` is the number of held locks in all databases.
    #[track_caller]
    fn assert_locks(&mut self, db: i32, locks: &[(&str, Option<&str>)], held: i64) {
        self.replica.wait_in_sync(&self.master);
        assert_server_has(&self.master, db, locks, held);
        assert_server_has(&self.replica, db, locks, held);
        assert_eq!(self.conn.ok("DEBUG LOADAOF"), "OK");
        assert_server_has(&self.master, db, locks, held);
    }
}

/// Asserts the holder of each lock (`None` means free), and the number of locks that INFO shows.
#[track_caller]
fn assert_server_has(server: &Server, db: i32, locks: &[(&str, Option<&str>)], held: i64) {
    let mut conn = server.connect();
    conn.ok(&format!("SELECT {db}"));
    for (key, holder) in locks {
        // The only error here is WRONGTYPE, at a key with a value of another type.
        match (conn.say(&format!("DLOCK.INSPECT {key}")), holder) {
            (Value::Nil | Value::Error(_), None) => {}
            (lock @ Value::Array(_), Some(holder)) => {
                assert_eq!(lock.field("holders").items()[0].field("token"), holder, "{key}");
            }
            (lock, holder) => panic!("{key}: expected the holder {holder:?}, got {lock:?}"),
        }
    }
    assert_eq!(server.numbers(["dlock_held", "dlock_holders"]), [held; 2]);
}
