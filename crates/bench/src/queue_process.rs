//! Many tasks of one process that wait by QUEUE, as an event loop runs them: one thread, and one connection
//! (RESP3) for the commands and the messages of all tasks. As in the clients of dlock, each call has a
//! message of its own, a task holds the lock from that message on, and the claim of the full lease is not
//! waited for.

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
    number: usize,
    token: String,
    /// The number of its last call, and so of the message that it waits for.
    call: u64,
    claim: Vec<u8>,
    release: Vec<u8>,
    /// The beginning of the current wait.
    asked: Instant,
}

/// A request without a reply yet.
enum Request {
    Acquire,
    Claim,
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
            let claim = Command::new(&["DLOCK.EXTEND", KEY, &token, TTL_MS]).on_key(0);
            let release = Command::new(&["DLOCK.RELEASE", KEY, &token]).on_key(0);
            Task { number, token, call: 0, claim, release, asked: Instant::now() }
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
            task.ask(&mut batch);
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
            // The message of a task's last call is the grant.
            if let Value::Push(message) = &value {
                let granted = granted(message)
                    .filter(|(number, call)| self.tasks.get(*number).is_some_and(|task| task.call == *call));
                let (number, _) = granted.ok_or_else(|| unexpected(&format!("{value:?}")))?;
                let task = &mut self.tasks[number];
                grants.push(task.granted());
                batch.extend_from_slice(&task.claim);
                batch.extend_from_slice(&task.release);
                sent.extend([(number, Request::Claim), (number, Request::Release)]);
                continue;
            }
            let (number, request) =
                sent.pop_front().ok_or_else(|| unexpected("a reply without a request"))?;
            let task = &mut self.tasks[number];
            match (request, value) {
                // The task waits in the queue.
                (Request::Acquire, Value::Nil) => {}
                (Request::Acquire, Value::Int(1..)) => {
                    grants.push(task.granted());
                    batch.extend_from_slice(&task.release);
                    sent.push_back((number, Request::Release));
                }
                (Request::Claim, Value::Int(1..)) => {}
                (Request::Release, Value::Int(1)) if start.elapsed() < time => {
                    task.ask(&mut batch);
                    sent.push_back((number, Request::Acquire));
                }
                (Request::Release, Value::Int(1)) => active -= 1,
                (_, other) => return Err(unexpected(&format!("{other:?}"))),
            }
        }
        Ok(grants)
    }
}

impl Task {
    /// Adds the next call to the batch.
    fn ask(&mut self, batch: &mut Vec<u8>) {
        self.asked = Instant::now();
        self.call += 1;
        let message = format!("{}.{}", self.number, self.call);
        let wait = ["QUEUE", QUEUE_MS, "NOTIFY", CHANNEL, &message];
        let acquire = [&["DLOCK.ACQUIRE", KEY, &self.token, TTL_MS], &wait[..]].concat();
        batch.extend(Command::new(&acquire).on_key(0));
    }

    /// Returns the grant that ends its wait now.
    fn granted(&self) -> Grant {
        let at = Instant::now();
        Grant { task: self.number, waited: at - self.asked, at }
    }
}

/// Returns the task and the call that a message `TASK.CALL granted FENCE` names.
fn granted(message: &[Value]) -> Option<(usize, u64)> {
    let text = message.last()?.text();
    let (name, fence) = text.split_once(" granted ")?;
    let (task, call) = name.split_once('.')?;
    fence.parse::<u64>().ok().filter(|fence| *fence > 0)?;
    Some((task.parse().ok()?, call.parse().ok()?))
}
