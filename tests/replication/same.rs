//! After any workload a replica, and a replica's replica, hold what the master holds.

use std::time::{SystemTime, UNIX_EPOCH};

use crate::harness::{Server, Value, each_server, until};

/// xorshift64*, from Vigna's paper: enough to shuffle commands, and the same from the same seed.
struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 >> 12;
        self.0 ^= self.0 << 25;
        self.0 ^= self.0 >> 27;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n
    }

    fn of<'a>(&mut self, choices: &[&'a str]) -> &'a str {
        choices[self.below(choices.len())]
    }
}

const KEYS: [&str; 6] = ["a", "b", "c", "d", "e", "f"];

fn command(random: &mut Random) -> String {
    let key = random.of(&KEYS);
    let token = random.of(&["t", "u", "v", "w"]);
    // Some leases end within the run, the others long after.
    let ttl = random.of(&["5", "20", "600000", "700000"]);
    match random.below(20) {
        0..9 => {
            let mode = random.of(&["", "", "SHARED", "PERMITS 2", "PERMITS 3"]);
            let count = random.of(&["", "REENTRANT", "DEPTH 3"]);
            let extra = random.of(&["", "LABEL host", "DELAY 10", "EPHEMERAL"]);
            format!("DLOCK.ACQUIRE {key} {token} {ttl} {mode} {count} {extra}")
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

#[allow(clippy::disallowed_methods, reason = "another seed each run")]
fn fresh_seed() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |since| since.as_nanos() as u64)
}

/// Who holds what, and how, in the server's own words.
fn all(server: &Server) -> Vec<String> {
    let mut conn = server.connect();
    let mut all = Vec::new();
    for db in 0..2 {
        conn.ok(&format!("SELECT {db}"));
        for key in KEYS {
            let lock = conn.ok(&format!("DLOCK.INSPECT {key}"));
            let shown = if lock.is_nil() {
                "free".to_string()
            } else {
                let holds = lock.field("holders").items().iter();
                let mut holds: Vec<String> = holds
                    .map(|hold| {
                        format!(
                            "{:?}",
                            ["token", "count", "fence", "label", "ephemeral"].map(|n| hold.field(n))
                        )
                    })
                    .collect();
                holds.sort();
                format!("{:?} {:?} {holds:?}", lock.field("mode"), lock.field("permits"))
            };
            // Deadlines, ttls and delays are in the digest: each server's own, of its own bytes.
            let digest = conn.ok(&format!("DEBUG DIGEST-VALUE {key}"));
            all.push(format!("{db} {key} {shown} {digest:?}"));
        }
    }
    for field in ["dlock_fence", "dlock_held", "dlock_holders"] {
        all.push(format!("{field} {}", server.info(field)));
    }
    all
}

#[test]
fn replicas_equal_their_master_after_a_random_workload() {
    let seed = std::env::var("DLOCK_TEST_SEED").ok().and_then(|seed| seed.parse().ok());
    let seed = seed.unwrap_or_else(fresh_seed);
    println!("DLOCK_TEST_SEED={seed} repeats this run");
    each_server(|kind| {
        let options = Server::options(kind).conf("appendonly yes");
        let (master, replica, sub) = (options.start(), Server::start(kind), Server::start(kind));
        replica.replicate(&master);
        sub.replicate(&replica);
        let mut random = Random(seed | 1);
        let mut conn = master.connect();
        let mut granted = 0;
        for _ in 0..60 {
            let commands: Vec<String> = (0..50).map(|_| command(&mut random)).collect();
            let answers = conn.say_together(&commands.iter().map(String::as_str).collect::<Vec<_>>());
            granted +=
                answers.iter().filter(|answer| matches!(answer, Value::Int(n) if *n > 1 << 40)).count();
        }
        // The short leases and delays are over when a longer one, begun after them, is.
        conn.ok("SELECT 9");
        conn.ok("DLOCK.ACQUIRE mark t 50");
        until("the short leases have ended", || conn.ok("EXISTS mark") == 0);
        replica.wait_in_sync(&master);
        sub.wait_in_sync(&replica);
        let on_master = all(&master);
        let expiries: u64 = master.info("dlock_expiries").parse().expect("a number");
        assert!(granted > 200 && expiries > 20, "{granted} grants, {expiries} expiries");
        assert!(
            on_master.iter().any(|line| line.contains("exclusive") || line.contains("shared")),
            "{on_master:?}"
        );
        assert_eq!(all(&replica), on_master, "seed {seed}");
        assert_eq!(all(&sub), on_master, "seed {seed}");
        // One that joins now gets it by snapshot.
        let late = Server::start(kind);
        late.replicate(&master);
        assert_eq!(all(&late), on_master, "seed {seed}");
        // And the append only file tells the same.
        master.connect().ok("DEBUG LOADAOF");
        assert_eq!(all(&master), on_master, "seed {seed}");
    });
}
