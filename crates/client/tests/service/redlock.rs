//! Redlock over five servers with a stock client library and only ACQUIRE and RELEASE.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use dlock_testkit::{Server, ServerKind, Value, each_server, project};

/// A lock over N independent servers:
/// <https://redis.io/docs/latest/develop/clients/patterns/distributed-locks/>.
struct Redlock {
    servers: Vec<redis::Client>,
    /// Timeout of each server. A dead server must not use up the lease.
    timeout: Duration,
}

struct Held {
    token: String,
    /// Remaining validity when `acquire` returned.
    valid_for: Duration,
}

impl Redlock {
    fn new(servers: &[Server]) -> Redlock {
        let open = |server: &Server| redis::Client::open(("127.0.0.1", server.port())).expect("an address");
        Redlock { servers: servers.iter().map(open).collect(), timeout: Duration::from_secs(2) }
    }

    #[allow(clippy::disallowed_methods, reason = "a client measures by its own clock")]
    fn acquire(&self, resource: &str, ttl: Duration) -> Option<Held> {
        let token = fresh_token();
        let start = Instant::now();
        let votes = self.servers.iter().filter(|server| {
            let mut ask = redis::cmd("DLOCK.ACQUIRE");
            ask.arg(resource).arg(&token).arg(ttl.as_millis() as u64);
            matches!(self.ask::<Option<u64>>(server, &ask), Ok(Some(_fence)))
        });
        let votes = votes.count();
        // Validity counts from before the first request, less the clock drift.
        let drift = ttl / 100 + Duration::from_millis(2);
        let valid_for = ttl.saturating_sub(start.elapsed() + drift);
        if votes > self.servers.len() / 2 && !valid_for.is_zero() {
            return Some(Held { token, valid_for });
        }
        self.release(resource, &token);
        None
    }

    /// Releases on all servers, including those without a reply. Returns the number of servers that held it.
    fn release(&self, resource: &str, token: &str) -> u64 {
        let mut ask = redis::cmd("DLOCK.RELEASE");
        ask.arg(resource).arg(token).arg("ALL");
        self.servers.iter().filter_map(|server| self.ask::<u64>(server, &ask).ok()).sum()
    }

    fn ask<T: redis::FromRedisValue>(
        &self,
        server: &redis::Client,
        ask: &redis::Cmd,
    ) -> redis::RedisResult<T> {
        let mut conn = server.get_connection_with_timeout(self.timeout)?;
        conn.set_read_timeout(Some(self.timeout))?;
        ask.query(&mut conn)
    }
}

fn fresh_token() -> String {
    let mut bytes = [0; 20];
    let mut source = std::fs::File::open("/dev/urandom").expect("randomness");
    std::io::Read::read_exact(&mut source, &mut bytes).expect("randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

const TTL: Duration = Duration::from_secs(60);

fn five(kind: &ServerKind) -> Vec<Server> {
    (0..5).map(|_| Server::start(kind)).collect()
}

/// Returns the number of living servers on which the resource is held.
fn held_on(servers: &[Server], resource: &str) -> usize {
    let living = servers.iter().filter(|server| server.is_alive());
    living.filter(|server| !server.connect().ok(&format!("DLOCK.INSPECT {resource}")).is_nil()).count()
}

#[each_server]
fn a_refused_client_leaves_nothing_behind(kind: &ServerKind) {
    let servers = five(kind);
    let (ann, bob) = (Redlock::new(&servers), Redlock::new(&servers));
    let held = ann.acquire("r", TTL).expect("the lock is free");
    assert!(held.valid_for > TTL / 2 && held.valid_for < TTL);
    assert_eq!(held_on(&servers, "r"), 5);
    assert!(bob.acquire("r", TTL).is_none());
    assert_eq!(bob.release("r", &fresh_token()), 0);
    assert_eq!(ann.release("r", &held.token), 5);
    assert_eq!(held_on(&servers, "r"), 0);
    assert!(bob.acquire("r", TTL).is_some());
}

#[each_server]
fn a_majority_suffices_and_a_minority_does_not(kind: &ServerKind) {
    let servers = five(kind);
    let client = Redlock::new(&servers);
    for (others, wins) in [(2, true), (3, false)] {
        for server in &servers[..others] {
            assert!(server.connect().ok("DLOCK.ACQUIRE r other 600000").int() > 0);
        }
        let held = client.acquire("r", TTL);
        assert_eq!(held.is_some(), wins);
        // After a failure its own votes are gone, and the other client's holds remain.
        assert_eq!(held_on(&servers, "r"), if wins { 5 } else { 3 });
        for server in &servers {
            let mut conn = server.connect();
            assert_ne!(conn.ok("DLOCK.BREAK r"), Value::Nil);
        }
    }
}

#[each_server]
fn a_quorum_of_five_survives_two_dead_servers_but_not_three(kind: &ServerKind) {
    let servers = five(kind);
    let client = Redlock::new(&servers);
    servers[1].kill9();
    servers[4].kill9();
    let held = client.acquire("r", TTL).expect("three of five are a majority");
    assert_eq!(client.release("r", &held.token), 3);
    servers[0].kill9();
    assert!(client.acquire("r", TTL).is_none());
    assert_eq!(held_on(&servers, "r"), 0);
}

#[each_server]
fn contenders_exclude_each_other_and_all_are_granted(kind: &ServerKind) {
    const CLIENTS: u32 = 4;
    const TURNS: u32 = 10;
    let servers = five(kind);
    let (inside, turns, refused) = (AtomicU32::new(0), AtomicU32::new(0), AtomicU32::new(0));
    thread::scope(|scope| {
        for client in 0..CLIENTS {
            let (inside, turns, refused, lock) = (&inside, &turns, &refused, Redlock::new(&servers));
            scope.spawn(move || {
                let mut left = TURNS;
                while left > 0 {
                    let Some(held) = lock.acquire("r", TTL) else {
                        refused.fetch_add(1, Ordering::SeqCst);
                        // Random delay between tries, as the algorithm asks.
                        let token = fresh_token();
                        let random = token.bytes().map(u64::from).sum::<u64>();
                        thread::sleep(Duration::from_micros(random % 5_000 + u64::from(client)));
                        continue;
                    };
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    thread::yield_now();
                    turns.fetch_add(1, Ordering::SeqCst);
                    assert_eq!(inside.fetch_sub(1, Ordering::SeqCst), 1);
                    assert!(lock.release("r", &held.token) >= 3);
                    left -= 1;
                }
            });
        }
    });
    assert_eq!(turns.into_inner(), CLIENTS * TURNS);
    assert!(refused.into_inner() > 0, "no client was ever refused");
    assert_eq!(held_on(&servers, "r"), 0);
}

/// Returns a Python with redis-py, installed in build/ on the first run. The test runs on all servers at the
/// same time: only one thread installs it.
fn python() -> &'static Path {
    static PYTHON: OnceLock<PathBuf> = OnceLock::new();
    PYTHON.get_or_init(installed_python)
}

fn installed_python() -> PathBuf {
    let home = project().join("build/python");
    let python = home.join("bin/python");
    let works =
        || Command::new(&python).args(["-c", "import redis"]).output().is_ok_and(|out| out.status.success());
    if works() {
        return python;
    }
    let run = |command: &mut Command, missing: &str| {
        let output = command.output().unwrap_or_else(|error| panic!("{missing}: {error}"));
        assert!(output.status.success(), "{missing}:\n{}", String::from_utf8_lossy(&output.stderr));
    };
    let missing = "this test needs python3 with venv (Debian: python3-venv) for the example in Python";
    run(Command::new("python3").args(["-m", "venv", "--clear"]).arg(&home), missing);
    let missing = "this test needs redis-py, and pip could not install it";
    run(Command::new(home.join("bin/pip")).args(["install", "--quiet", "redis>=5,<8"]), missing);
    assert!(works(), "redis-py is installed and does not work");
    python
}

#[each_server]
fn the_documented_python_example_works(kind: &ServerKind) {
    let servers = five(kind);
    let example = |servers: &[Server]| {
        let urls = servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port()));
        let script = project().join("tests/redlock.py");
        let output = Command::new(python()).arg(script).args(urls).output().expect("python runs");
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).trim().to_string();
        (output.status.success(), text(&output.stdout), text(&output.stderr))
    };
    let (succeeded, said, complained) = example(&servers);
    assert!(succeeded, "{complained}");
    assert_eq!(said, "held for 10 s more\na second one gets None\nreleased on 5 servers");
    assert_eq!(held_on(&servers, "invoice:42"), 0);

    for server in &servers[..3] {
        assert!(server.connect().ok("DLOCK.ACQUIRE invoice:42 other 600000").int() > 0);
    }
    assert_eq!(example(&servers), (false, String::new(), "taken".into()));
    assert_eq!(held_on(&servers, "invoice:42"), 3, "the refused client has released its partial hold");
}
