//! Many tasks of one process that wait by QUEUE, as an event loop runs them: one thread, and one connection
//! (RESP3) for the commands and the messages of all tasks.

use std::collections::VecDeque;
use std::io::Result;
use std::time::{Duration, Instant};

use dlock_testkit::Value;

use crate::contenders::TTL_MS;
use crate::resp::{Command, Conn, KEY, unexpected};
use crate::server::Server;

const CHANNEL: &str = "a process";

/// Time in ms for which the server keeps a position without a repeated ACQUIRE. Longer than any measurement.
pub const QUEUE_MS: &str = "600000";

/// The tasks of one process.
pub struct Process {
    conn: Conn,
    tasks: Vec<Task>,
}

struct Task {
    acquire: Vec<u8>,
    release: Vec<u8>,
    /// The beginning of the current wait.
    asked: Instant,
}

/// A request without a reply yet.
enum Request {
    Acquire,
    Release,
}

/// A wait that ended with a grant.
pub struct Grant {
    pub task: usize,
    pub waited: Duration,
    pub at: Instant,
}

impl Process {
    pub fn start(server: &Server, tasks: usize) -> Result<Process> {
        let mut conn = server.connect()?;
        conn.call(&["HELLO", "3"])?;
        conn.call(&["SUBSCRIBE", CHANNEL])?;
        let task = |number: usize| {
            let token = format!("5f0a7c19d2e8{number:08}");
            let wait = ["QUEUE", QUEUE_MS, "NOTIFY", CHANNEL, &number.to_string()];
            let acquire = [&["DLOCK.ACQUIRE", KEY, &token, TTL_MS], &wait[..]].concat();
            let release = Command::new(&["DLOCK.RELEASE", KEY, &token]);
            Task {
                acquire: Command::new(&acquire).on_key(0),
                release: release.on_key(0),
                asked: Instant::now(),
            }
        };
        Ok(Process { conn, tasks: (0..tasks).map(task).collect() })
    }

    pub fn tasks(&self) -> usize {
        self.tasks.len()
    }

    /// Lets every task acquire the lock, release it at once and ask again, for this time. Returns all grants
    /// in order. A wait that ends without a grant is an error.
    pub fn contend(&mut self, time: Duration) -> Result<Vec<Grant>> {
        let start = Instant::now();
        let (mut batch, mut sent) = (Vec::new(), VecDeque::new());
        for (number, task) in self.tasks.iter_mut().enumerate() {
            task.asked = Instant::now();
            batch.extend_from_slice(&task.acquire);
            sent.push_back((number, Request::Acquire));
        }
        let (mut grants, mut active) = (Vec::new(), self.tasks.len());
        while active > 0 {
            // Messages that arrived together are answered by one write.
            if !batch.is_empty() && !self.conn.has_received() {
                self.conn.send(&batch)?;
                batch.clear();
            }
            let value = self.conn.value()?;
            // A message says that a task's wait ended with a grant. The repeated ACQUIRE returns the fence.
            if let Value::Push(message) = &value {
                let number = granted_task(message).filter(|number| *number < self.tasks.len());
                let number = number.ok_or_else(|| unexpected(&format!("{value:?}")))?;
                batch.extend_from_slice(&self.tasks[number].acquire);
                sent.push_back((number, Request::Acquire));
                continue;
            }
            let (number, request) =
                sent.pop_front().ok_or_else(|| unexpected("a reply without a request"))?;
            let task = &mut self.tasks[number];
            match (request, value) {
                // The task waits in the queue.
                (Request::Acquire, Value::Nil) => {}
                (Request::Acquire, Value::Int(1..)) => {
                    let at = Instant::now();
                    grants.push(Grant { task: number, waited: at - task.asked, at });
                    batch.extend_from_slice(&task.release);
                    sent.push_back((number, Request::Release));
                }
                (Request::Release, Value::Int(1)) if start.elapsed() < time => {
                    task.asked = Instant::now();
                    batch.extend_from_slice(&task.acquire);
                    sent.push_back((number, Request::Acquire));
                }
                (Request::Release, Value::Int(1)) => active -= 1,
                (_, other) => return Err(unexpected(&format!("{other:?}"))),
            }
        }
        Ok(grants)
    }
}

/// Returns the task that a message `NUMBER granted FENCE` names.
fn granted_task(message: &[Value]) -> Option<usize> {
    message.last()?.text().split_once(" granted ")?.0.parse().ok()
}
