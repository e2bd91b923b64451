//! A line of so many waiters on one key, each a connection of its own, and what can happen to one of them. The line is
//! as long before each of these as after it.

use std::collections::VecDeque;
use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resp::{Command, Conn, Expect, Value, strange};
use crate::run::Run;
use crate::server::Server;

const LOCK: &str = "lock";
const TTL: &str = "86400000";

/// So long after a reply the server has come to rest, its timers for what happened just now included.
const REST: Duration = Duration::from_millis(2);

/// Between groups of waiters that give up.
const BETWEEN_GROUPS: Duration = Duration::from_millis(2);

/// One connection: the holder, or somewhere in line.
struct Waiter {
    conn: Conn,
    client: String,
    token: String,
}

impl Waiter {
    fn new(server: &Server, number: usize) -> Result<Waiter> {
        let mut conn = server.connect()?;
        match conn.call(&["CLIENT", "ID"])? {
            Value::Int(client) => {
                Ok(Waiter { conn, client: client.to_string(), token: format!("5f0a7c19d2e8{number:08}") })
            }
            other => Err(strange(&format!("{other:?}"))),
        }
    }
}

/// What the server spent on a number of operations.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    pub operations: usize,
    /// Microseconds of processor time; NaN where the machine does not tell.
    pub cpu: f64,
    /// Microseconds that went by, in which the server also did what it always does.
    pub wall: f64,
}

impl Spent {
    pub fn add(&mut self, more: Spent) {
        self.operations += more.operations;
        self.cpu += more.cpu;
        self.wall += more.wall;
    }

    /// Without what is spent while nothing happens.
    pub fn less(self, idle: Spent) -> Spent {
        Spent { cpu: self.cpu - idle.cpu / idle.wall * self.wall, wall: 0.0, ..self }
    }
}

/// The line, on its server.
pub struct Line {
    pub server: Server,
    control: Conn,
    waiters: Vec<Waiter>,
    holder: usize,
    /// Indices of waiters, first first.
    order: VecDeque<usize>,
}

impl Line {
    pub fn start(run: &Run, length: usize) -> Result<Line> {
        let clients = (length + 100).to_string();
        let server = run.program.start(true, &["--maxclients", &clients])?;
        let mut control = server.connect()?;
        for limit in ["dlock.max-waiters", "dlock.max-waiters-per-key"] {
            control.call(&["CONFIG", "SET", limit, "1000000"])?;
        }
        let waiters = (0..=length).map(|number| Waiter::new(&server, number)).collect::<Result<_>>()?;
        let mut line = Line { server, control, waiters, holder: 0, order: (1..=length).collect() };
        let holder = &mut line.waiters[line.holder];
        holder.conn.call(&["DLOCK.ACQUIRE", LOCK, &holder.token, TTL])?;
        line.join(length, |_| Duration::ZERO)?;
        Ok(line)
    }

    /// How many wait, as the server says it.
    pub fn length(&mut self) -> Result<i64> {
        let Value::Array(fields) = self.control.call(&["DLOCK.INSPECT", LOCK])? else { return Ok(0) };
        let at = fields.iter().position(|field| *field == Value::Text("waiters".into()));
        match at.and_then(|at| fields.get(at + 1)) {
            Some(Value::Int(length)) => Ok(*length),
            _ => Err(strange("INSPECT names no waiters")),
        }
    }

    /// What the server spends while nothing happens.
    pub fn idle(&mut self, time: Duration) -> Result<Spent> {
        self.spent(1, |_| {
            sleep(time);
            Ok(())
        })
    }

    /// The holder releases, and the next in line has the lock; the old holders join the line again. Answers what both
    /// took.
    pub fn release(&mut self, times: usize) -> Result<[Spent; 2]> {
        let released = self.spent(times, |line| {
            for _ in 0..times {
                line.control.send(&command(&["DLOCK.RELEASE", LOCK, &line.waiters[line.holder].token]))?;
                let next = line.order.pop_front().ok_or_else(|| strange("nobody is in line"))?;
                Expect::Number.check(line.waiters[next].conn.line()?)?;
                Expect::Line(":1").check(line.control.line()?)?;
                line.order.push_back(line.holder);
                line.holder = next;
            }
            Ok(())
        })?;
        let joined = self.spent(times, |line| line.join(times, |_| Duration::ZERO))?;
        Ok([released, joined])
    }

    /// Waiters anywhere in line are cancelled.
    pub fn cancel(&mut self, times: usize) -> Result<Spent> {
        let picked = self.pick(times);
        let spent = self.spent(times, |line| {
            for at in &picked {
                let waiter = &mut line.waiters[*at];
                line.control.send(&command(&["DLOCK.CANCEL", LOCK, "CLIENT", &waiter.client]))?;
                Expect::Line("$-1").check(waiter.conn.line()?)?;
                Expect::Line(":1").check(line.control.line()?)?;
            }
            Ok(())
        })?;
        self.join(times, |_| Duration::ZERO)?;
        Ok(spent)
    }

    /// The connections of waiters anywhere in line are closed.
    pub fn disconnect(&mut self, times: usize) -> Result<Spent> {
        let picked = self.pick(times);
        // Connected before, for that is not what is measured.
        let fresh: Vec<Waiter> =
            picked.iter().map(|at| Waiter::new(&self.server, *at)).collect::<Result<_>>()?;
        let spent = self.spent(times, |line| {
            for (at, waiter) in picked.iter().zip(fresh) {
                drop(std::mem::replace(&mut line.waiters[*at], waiter));
                sleep(REST);
            }
            Ok(())
        })?;
        self.join(times, |_| Duration::ZERO)?;
        Ok(spent)
    }

    /// Waiters anywhere in line have waited long enough, some at the same moment, a group after the other. Everybody
    /// joins anew for that: else only the end of the line could be waiting for a short time.
    pub fn time_out(&mut self, at_once: usize, groups: usize) -> Result<Spent> {
        let length = self.order.len();
        self.clear()?;
        let picked: Vec<usize> = (0..at_once * groups).map(|nth| nth * length / (at_once * groups)).collect();
        // Long enough that all are in line before.
        let due = Instant::now() + Duration::from_millis(70) + Duration::from_micros(200) * length as u32;
        self.join(length, |at| match picked.binary_search(&at) {
            Ok(nth) => {
                let left = due + BETWEEN_GROUPS * (nth % groups) as u32 - Instant::now();
                left.max(Duration::from_millis(1))
            }
            Err(_) => Duration::ZERO,
        })?;
        if Instant::now() > due {
            return Err(strange("the line takes longer to join than its first waiter waits"));
        }
        // Connections that were all used a moment ago give the server more to do than others.
        let idle = self.idle((due - Instant::now()).saturating_sub(REST * 4))?;
        let gone: Vec<usize> = picked.iter().map(|at| self.order[*at]).collect();
        let spent = self.spent(gone.len(), |line| {
            for at in &gone {
                Expect::Line("$-1").check(line.waiters[*at].conn.line()?)?;
            }
            Ok(())
        })?;
        self.move_to_the_end(&gone);
        self.join(gone.len(), |_| Duration::ZERO)?;
        Ok(spent.less(idle))
    }

    /// Everybody leaves the line, whose order the bench keeps.
    fn clear(&mut self) -> Result<()> {
        let clients = self.order.iter().map(|at| &self.waiters[*at].client);
        let cancels: Vec<u8> =
            clients.flat_map(|client| command(&["DLOCK.CANCEL", LOCK, "CLIENT", client])).collect();
        self.control.send(&cancels)?;
        for at in &self.order {
            Expect::Line("$-1").check(self.waiters[*at].conn.line()?)?;
            Expect::Line(":1").check(self.control.line()?)?;
        }
        Ok(())
    }

    /// Some of the line, at random, that are about to leave it and will join at its end.
    fn pick(&mut self, times: usize) -> Vec<usize> {
        let picked = rand::seq::index::sample(&mut rand::rng(), self.order.len(), times);
        let picked: Vec<usize> = picked.iter().map(|at| self.order[at]).collect();
        self.move_to_the_end(&picked);
        picked
    }

    fn move_to_the_end(&mut self, waiters: &[usize]) {
        self.order.retain(|at| !waiters.contains(at));
        self.order.extend(waiters);
    }

    /// The last so many join the line, each for so long; zero is for ever. The server reads them in the order in which
    /// they were sent.
    fn join(&mut self, last: usize, wait: impl Fn(usize) -> Duration) -> Result<()> {
        for nth in self.order.len() - last..self.order.len() {
            let waiter = &mut self.waiters[self.order[nth]];
            let wait = wait(nth).as_millis().to_string();
            waiter.conn.send(&command(&["DLOCK.ACQUIRE", LOCK, &waiter.token, TTL, "BLOCK", &wait]))?;
        }
        self.control.call(&["PING"])?;
        Ok(())
    }

    fn spent(&mut self, operations: usize, what: impl FnOnce(&mut Line) -> Result<()>) -> Result<Spent> {
        sleep(REST);
        let cpu = self.server.cpu();
        let start = Instant::now();
        what(self)?;
        sleep(REST);
        let wall = start.elapsed().as_secs_f64() * 1e6;
        let cpu =
            self.server.cpu().zip(cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        Ok(Spent { operations, cpu: cpu * 1e6, wall })
    }
}

fn command(args: &[&str]) -> Vec<u8> {
    Command::new(args).on_key(0)
}
