//! A stranger makes no client believe that it holds. The stranger may publish on the channel of the client
//! and subscribe to it, and reads WAITERS, INSPECT, LOG, PUBSUB CHANNELS and CLIENT LIST. Clients of all
//! languages are tested alike: `DLOCK_CHAOS_CLIENTS` names their programs, beside the Rust client.

use std::fs;
use std::io::{BufRead, BufReader};
use std::iter;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex};
use std::thread;

use crate::foreign_clients;
use crate::messages::{rust_client_program, signal};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, until};

/// The fence in forged messages. A real fence is a time in µs.
const FORGED: i64 = 77;

struct Client {
    process: Child,
    lines: Arc<Mutex<Vec<String>>>,
}

#[each_server(in_turn)]
fn a_stranger_makes_no_client_believe_that_it_holds(kind: &ServerKind) {
    for program in [rust_client_program()].into_iter().chain(foreign_clients::programs_for(1)) {
        deceive(kind, &program);
    }
}

fn deceive(kind: &ServerKind, program: &str) {
    let server = Server::start(kind);
    let mut conn = server.connect();
    assert!(conn.ok("DLOCK.ACQUIRE r holder 600000").int() > 0);
    let client = Client::start(program, &server);
    until("the client waits", || !conn.ok("DLOCK.WAITERS r").items().is_empty());
    let channels = conn.ok("PUBSUB CHANNELS");
    let mut watching = server.connect();
    watching.hello3();
    for channel in channels.items() {
        watching.send(&[b"SUBSCRIBE", channel.bytes()]);
        assert_eq!(watching.read().items()[0], "subscribe");
    }

    // Forges with all that the server shows.
    let mut words = vec![b"r".to_vec(), b"granted".to_vec()];
    for command in ["DLOCK.WAITERS r", "DLOCK.INSPECT r", "DLOCK.LOG", "PUBSUB CHANNELS", "CLIENT LIST"] {
        collect(&conn.say(command), &mut words);
    }
    let asked = calls(&server);
    until("the client asks again", || {
        words.iter().for_each(|word| forge(&mut conn, &channels, word, 3, b""));
        calls(&server) >= asked + 2
    });
    assert_eq!(client.holds(), 0, "{program} believes a message with {words:?}");

    // Shows the stranger a real message: the client is stopped until the grant has lapsed.
    client.stop();
    let ask = "DLOCK.ACQUIRE r next 600000 QUEUE 600000";
    conn.ok(ask);
    conn.ok("DLOCK.RELEASE r holder");
    let forged = format!(" granted {FORGED}");
    let is_real = |text: &String| text.contains(" granted ") && !text.contains(&forged);
    let real = iter::repeat_with(|| watching.message()).find(is_real).expect("endless");
    until("the grant of the stopped client lapses", || !conn.ok(ask).is_nil());
    signal(client.process.id(), "CONT");
    let (id, secret) =
        (real.split('.').next().unwrap_or_default(), real.rsplit(' ').next().unwrap_or_default());
    let asked = calls(&server);
    until("the client asks again", || {
        for secret in ["", secret] {
            forge(&mut conn, &channels, id.as_bytes(), 12, secret.as_bytes());
        }
        calls(&server) >= asked + 2
    });
    let lines = client.lines.lock().expect("no panic").clone();
    assert_eq!(client.holds(), 0, "{program} believes a message forged after {real:?}: {lines:?}");

    // The client still waits.
    conn.ok("DLOCK.RELEASE r next");
    until("the client holds", || client.holds() > 0);
    let is_forged = |line: &String| line.starts_with(&format!("writes r {FORGED} "));
    assert!(!client.lines.lock().expect("no panic").iter().any(is_forged), "{program} has a forged fence");
}

/// Publishes the word as the id of a grant with this secret, and with the numbers of the first `calls` calls.
fn forge(conn: &mut Conn, channels: &Value, word: &[u8], calls: usize, secret: &[u8]) {
    let numbered = (1..=calls).map(|call| format!(".{call}"));
    for number in [String::new()].into_iter().chain(numbered) {
        let words = format!(" granted {FORGED} ");
        let text = [word, number.as_bytes(), words.as_bytes(), secret].concat();
        for channel in channels.items() {
            assert!(conn.call(&[b"PUBLISH", channel.bytes(), &text[..]]).int() > 0, "the client listens");
        }
    }
}

/// Adds every text of a reply, and its words.
fn collect(reply: &Value, words: &mut Vec<Vec<u8>>) {
    match reply {
        Value::Array(items) | Value::Push(items) => items.iter().for_each(|item| collect(item, words)),
        Value::Map(pairs) => pairs.iter().for_each(|(key, value)| {
            collect(key, words);
            collect(value, words);
        }),
        Value::Bulk(bytes) => {
            words.extend(bytes.split(|byte| b" =,\n".contains(byte)).map(<[u8]>::to_vec));
            words.push(bytes.clone());
        }
        Value::Simple(text) | Value::Verbatim(text) => words.push(text.clone().into_bytes()),
        _ => {}
    }
    words.sort_unstable();
    words.dedup();
}

/// Returns how many times clients have sent ACQUIRE.
fn calls(server: &Server) -> usize {
    let stats = server.info("cmdstat_DLOCK.ACQUIRE");
    let calls = stats.strip_prefix("calls=").and_then(|rest| rest.split(',').next());
    calls.and_then(|calls| calls.parse().ok()).unwrap_or_else(|| panic!("{stats}"))
}

impl Client {
    fn start(program: &str, server: &Server) -> Client {
        let mut words = program.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).args(["0", "1000", &format!("redis://127.0.0.1:{}", server.port())]);
        command
            .env("DLOCK_STEADY", "20")
            .env("DLOCK_WAIT", "600000")
            .stdin(Stdio::piped())
            .stdout(Stdio::piped());
        let mut process = command.spawn().unwrap_or_else(|why| panic!("{program}: {why}"));
        let output = BufReader::new(process.stdout.take().expect("a pipe"));
        let lines = Arc::new(Mutex::new(Vec::new()));
        let read = lines.clone();
        thread::spawn(move || {
            output.lines().map_while(Result::ok).for_each(|line| read.lock().expect("no panic").push(line));
        });
        Client { process, lines }
    }

    /// Stops all threads: on a busy machine, they go on for a moment after the signal.
    fn stop(&self) {
        signal(self.process.id(), "STOP");
        let is_stopped = |stat: String| stat.rsplit(") ").next().is_some_and(|rest| rest.starts_with('T'));
        let tasks = format!("/proc/{}/task", self.process.id());
        until("each thread has stopped", || {
            let mut tasks = fs::read_dir(&tasks).expect("the client runs");
            tasks.all(|task| {
                fs::read_to_string(task.expect("a thread").path().join("stat")).is_ok_and(is_stopped)
            })
        });
    }

    fn holds(&self) -> usize {
        self.lines.lock().expect("no panic").iter().filter(|line| *line == "holds").count()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        let _ = self.process.kill();
        let _ = self.process.wait();
    }
}
