//! A dump of all locks of a server.

use crate::conn::Conn;
use crate::server::Server;
use crate::value::Value;

/// Returns one line for each lock in each database, and the counts of INFO. Servers with the same locks
/// return the same lines. Leaves out keys without a holder, a waiter or a delay.
#[track_caller]
pub fn locks(server: &Server) -> Vec<String> {
    let mut conn = server.connect();
    let mut lines = Vec::new();
    for db in databases(&mut conn) {
        conn.ok(&format!("SELECT {db}"));
        for key in conn.ok("KEYS *").items() {
            if conn.call(&[&b"TYPE"[..], key.bytes()]) == "dlock-key" {
                let lock = conn.call(&[&b"DLOCK.INSPECT"[..], key.bytes()]);
                let shown = if lock.is_nil() { continue } else { describe_lock(&lock) };
                // The digest covers deadlines, TTLs and delays, which `describe_lock` leaves out.
                let digest = conn.call(&[&b"DEBUG"[..], b"DIGEST-VALUE", key.bytes()]);
                lines.push(format!("{db} {key:?} {shown} {digest:?}"));
            }
        }
    }
    lines.sort();
    // The counts show a hold that the server still counts although no key has it.
    for field in ["dlock_fence", "dlock_held", "dlock_holders"] {
        lines.push(format!("{field} {}", server.info(field)));
    }
    lines
}

/// Like [`locks`], without the last fence, which a server raises to the current time when it starts.
#[track_caller]
pub fn locks_without_fence(server: &Server) -> Vec<String> {
    locks(server).into_iter().filter(|line| !line.starts_with("dlock_fence")).collect()
}

/// Formats the mode, the permits and the holds of a reply to INSPECT, without times.
pub fn describe_lock(lock: &Value) -> String {
    let holds = lock.field("holders").items().iter();
    let mut holds: Vec<String> = holds
        .map(|hold| {
            format!("{:?}", ["token", "count", "fence", "label", "ephemeral"].map(|name| hold.field(name)))
        })
        .collect();
    holds.sort();
    format!("{:?} {:?} {holds:?}", lock.field("mode"), lock.field("permits"))
}

/// Returns the databases that contain keys.
fn databases(conn: &mut Conn) -> Vec<u32> {
    let info = conn.ok("INFO keyspace").text();
    let numbers = info.lines().filter_map(|line| line.strip_prefix("db")?.split_once(':'));
    numbers.map(|(number, _)| number.parse().expect("a database's number")).collect()
}
