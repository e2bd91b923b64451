//! A replica and its own replica equal the master after a random workload.

use dlock_testkit::{Random, Server, ServerKind, Value, aof, each_server, locks, until};

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn command(random: &mut Random) -> String {
    let key = random.of(&KEYS);
    let token = random.of(&["t", "u", "v", "w"]);
    // Some leases end during the run, the others long after it.
    let ttl = random.of(&["5", "20", "600000", "700000"]);
    match random.below(20) {
        0..9 => {
            let mode = random.of(&["", "", "SHARED", "PERMITS 2", "PERMITS 3"]);
            let reentry = random.of(&["", "REENTRANT", "DEPTH 3"]);
            let extra = random.of(&["", "LABEL host", "DELAY 10", "EPHEMERAL"]);
            format!("DLOCK.ACQUIRE {key} {token} {ttl} {mode} {reentry} {extra}")
        }
        9..12 => format!("DLOCK.RELEASE {key} {token}"),
        12..14 => format!("DLOCK.RELEASE {key} {token} {}", random.of(&["ALL", "DEPTH 1"])),
        14..16 => format!("DLOCK.EXTEND {key} {token} {ttl}"),
        16 => format!("DLOCK.BREAK {key}"),
        17 => random
            .of(&["DEL a b", "RENAME c d", "SELECT 0", "SELECT 1", "SWAPDB 0 1", "MOVE e 1"])
            .to_string(),
        18 => format!("DEBUG SLEEP 0.00{}", random.below(10)),
        _ => format!("DLOCK.INSPECT {key}"),
    }
}

#[each_server]
fn replicas_equal_their_master_after_a_random_workload(kind: &ServerKind) {
    let options = Server::options(kind).conf("appendonly yes");
    let (master, replica, sub) = (options.start(), Server::start(kind), Server::start(kind));
    replica.replicate(&master);
    sub.replicate(&replica);
    let mut random = Random::fresh();
    let mut conn = master.connect();
    let mut granted = 0;
    // Fences follow the Unix time in µs. No other number in a reply is that great.
    let is_fence = |answer: &&Value| matches!(answer, Value::Int(n) if *n > 1_000_000_000_000_000);
    for _ in 0..60 {
        let commands: Vec<String> = (0..50).map(|_| command(&mut random)).collect();
        granted += conn.say_together(&commands).iter().filter(is_fence).count();
    }
    // `alone` is held until the end of the test, so at least one exclusive hold is compared. The lease of
    // `mark` begins after the other short leases and delays, and is longer than each, so it ends after them.
    conn.ok("SELECT 9");
    conn.ok("DLOCK.ACQUIRE alone t 600000");
    conn.ok("DLOCK.ACQUIRE mark t 50");
    until("the short leases have ended", || conn.ok("EXISTS mark") == 0);
    replica.wait_in_sync(&master);
    sub.wait_in_sync(&replica);
    let on_master = locks(&master);
    let expiries = master.number("dlock_expiries");
    assert!(granted > 200 && expiries > 20, "{granted} grants, {expiries} expiries");
    assert!(on_master.iter().any(|line| line.contains("exclusive")), "{on_master:?}");
    assert_eq!(locks(&replica), on_master);
    assert_eq!(locks(&sub), on_master);
    // A new replica loads the same state from a snapshot.
    let late = Server::start(kind);
    late.replicate(&master);
    assert_eq!(locks(&late), on_master);
    // The master loads the same state from its append only file.
    master.connect().ok("DEBUG LOADAOF");
    assert_eq!(locks(&master), on_master);
    // The module logs most changes as effects (`DLOCK._SET`), and some commands verbatim.
    let log = aof::commands(master.dir());
    let count = |name: &[u8]| log.iter().filter(|command| command[0] == name).count();
    let (grants, releases) = (count(b"DLOCK.ACQUIRE"), count(b"DLOCK.RELEASE"));
    assert!(grants > 0 && releases > 20, "{grants} grants and {releases} releases are logged verbatim");
}
