//! Many tasks of one process that wait by QUEUE, as an event loop runs them: one thread, and one connection
//! (RESP3) for the commands and the messages of all.

use std::collections::VecDeque;
use std::io::Result;
use std::time::{Duration, Instant};

use dlock_testkit::Value;

use crate::contenders::TTL;
use crate::resp::{Command, Conn, KEY, strange};
use crate::server::Server;

const CHANNEL: &str = "a process";

/// How long a position is kept, in ms: longer than any measurement.
pub const KEPT: &str = "600000";

/// The tasks of one process.
pub struct Process {
    conn: Conn,
    tasks: Vec<Task>,
}

struct Task {
    acquire: Vec<u8>,
    release: Vec<u8>,
    asked: Instant,
}

/// What a reply is to.
enum Sent {
    Acquire,
    Release,
}

/// A wait that ended.
pub struct Grant {
    pub task: usize,
    pub waited: Duration,
    pub at: Instant,
}

/// ACQUIRE of the nth waiter, also to keep its position and to claim its grant.
pub fn acquire(token: &str, message: &str) -> Command {
    Command::new(&["DLOCK.ACQUIRE", KEY, token, TTL, "QUEUE", KEPT, "NOTIFY", CHANNEL, message])
}

impl Process {
    /// Tasks that share the locks evenly.
    pub fn start(server: &Server, tasks: usize, locks: usize) -> Result<Process> {
        let mut conn = server.connect()?;
        conn.call(&["CONFIG", "SET", "dlock.max-waiters-per-key", "1000000"])?;
        conn.call(&["HELLO", "3"])?;
        conn.call(&["SUBSCRIBE", CHANNEL])?;
        let task = |number: usize| {
            let token = format!("5f0a7c19d2e8{number:08}");
            let lock = (number % locks) as u64;
            let acquire = acquire(&token, &number.to_string()).on_key(lock);
            let release = Command::new(&["DLOCK.RELEASE", KEY, &token]).on_key(lock);
            Task { acquire, release, asked: Instant::now() }
        };
        Ok(Process { conn, tasks: (0..tasks).map(task).collect() })
    }

    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Each task acquires its lock, releases it at once and begins again, as long as `goes_on` says so, which
    /// is told how many grants there were. Returns all grants in order; a wait that is lost is an error.
    pub fn work(&mut self, goes_on: impl Fn(usize) -> bool) -> Result<Vec<Grant>> {
        let (mut batch, mut sent) = (Vec::new(), VecDeque::new());
        for (number, task) in self.tasks.iter_mut().enumerate() {
            task.asked = Instant::now();
            batch.extend_from_slice(&task.acquire);
            sent.push_back((number, Sent::Acquire));
        }
        let (mut grants, mut working) = (Vec::new(), self.tasks.len());
        while working > 0 {
            // What was received together is answered together.
            if !batch.is_empty() && !self.conn.has_received() {
                self.conn.send(&batch)?;
                batch.clear();
            }
            let value = self.conn.value()?;
            if let Value::Push(message) = &value {
                let number = granted(message).filter(|number| *number < self.tasks.len());
                let number = number.ok_or_else(|| strange(&format!("{value:?}")))?;
                batch.extend_from_slice(&self.tasks[number].acquire);
                sent.push_back((number, Sent::Acquire));
                continue;
            }
            let (number, to) = sent.pop_front().ok_or_else(|| strange("a reply to nothing"))?;
            let task = &mut self.tasks[number];
            match (to, value) {
                // It is in the queue.
                (Sent::Acquire, Value::Nil) => {}
                (Sent::Acquire, Value::Int(1..)) => {
                    let at = Instant::now();
                    grants.push(Grant { task: number, waited: at - task.asked, at });
                    batch.extend_from_slice(&task.release);
                    sent.push_back((number, Sent::Release));
                }
                (Sent::Release, Value::Int(1)) if goes_on(grants.len()) => {
                    task.asked = Instant::now();
                    batch.extend_from_slice(&task.acquire);
                    sent.push_back((number, Sent::Acquire));
                }
                (Sent::Release, Value::Int(1)) => working -= 1,
                (_, other) => return Err(strange(&format!("{other:?}"))),
            }
        }
        Ok(grants)
    }
}

/// Which task a message says was granted its lock.
fn granted(message: &[Value]) -> Option<usize> {
    message.last()?.text().strip_suffix(" granted")?.parse().ok()
}
