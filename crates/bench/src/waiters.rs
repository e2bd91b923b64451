//! A wait queue on one key, each waiter a connection of its own, and the operations on it. Each operation
//! leaves the queue as long as it was.

use std::collections::VecDeque;
use std::io::Result;
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::resp::{Command, Conn, Expect, strange};
use crate::run::Run;
use crate::server::Server;

const LOCK: &str = "lock";
const TTL: &str = "86400000";

/// After this time without a request the server is idle, its timers for the last one included.
pub const REST: Duration = Duration::from_millis(2);

/// Between groups of waiters that time out.
const BETWEEN_GROUPS: Duration = Duration::from_millis(2);

/// One connection: the holder, or a waiter.
struct Waiter {
    conn: Conn,
    client: String,
    token: String,
}

impl Waiter {
    fn new(server: &Server, number: usize) -> Result<Waiter> {
        let mut conn = server.connect()?;
        let client = conn.call(&["CLIENT", "ID"])?.int().to_string();
        Ok(Waiter { conn, client, token: format!("5f0a7c19d2e8{number:08}") })
    }
}

/// What the server spent on a number of operations.
#[derive(Clone, Copy, Default)]
pub struct Spent {
    pub operations: usize,
    /// Microseconds of processor time; NaN where the system does not tell.
    pub cpu: f64,
    /// Microseconds of elapsed time, in which the server also did its background work.
    pub wall: f64,
}

impl Spent {
    pub fn add(&mut self, more: Spent) {
        self.operations += more.operations;
        self.cpu += more.cpu;
        self.wall += more.wall;
    }

    /// Less what an idle server spends.
    pub fn less(self, idle: Spent) -> Spent {
        Spent { cpu: self.cpu - idle.cpu / idle.wall * self.wall, wall: 0.0, ..self }
    }
}

/// What the server spends from one moment to another.
pub struct Meter {
    cpu: Option<Duration>,
    start: Instant,
}

impl Meter {
    pub fn start(server: &Server) -> Meter {
        Meter { cpu: server.cpu(), start: Instant::now() }
    }

    pub fn end(self, server: &Server, operations: usize) -> Spent {
        let wall = self.start.elapsed().as_secs_f64() * 1e6;
        let cpu =
            server.cpu().zip(self.cpu).map_or(f64::NAN, |(after, before)| (after - before).as_secs_f64());
        Spent { operations, cpu: cpu * 1e6, wall }
    }
}

/// The wait queue, on its server.
pub struct Queue {
    pub server: Server,
    control: Conn,
    waiters: Vec<Waiter>,
    holder: usize,
    /// Indices of waiters, in queue order.
    order: VecDeque<usize>,
}

impl Queue {
    pub fn start(run: &Run, length: usize) -> Result<Queue> {
        let server = run.program.start(true, &[&format!("maxclients {}", length + 100)])?;
        let mut control = server.connect()?;
        for limit in ["dlock.max-waiters", "dlock.max-waiters-per-key"] {
            control.call(&["CONFIG", "SET", limit, "1000000"])?;
        }
        let waiters = (0..=length).map(|number| Waiter::new(&server, number)).collect::<Result<_>>()?;
        let mut queue = Queue { server, control, waiters, holder: 0, order: (1..=length).collect() };
        let holder = &mut queue.waiters[queue.holder];
        holder.conn.call(&["DLOCK.ACQUIRE", LOCK, &holder.token, TTL])?;
        queue.join(length, |_| Duration::ZERO)?;
        Ok(queue)
    }

    /// How many wait, by the server's count.
    pub fn length(&mut self) -> Result<i64> {
        let shown = self.control.call(&["DLOCK.INSPECT", LOCK])?;
        Ok(if shown.is_nil() { 0 } else { shown.field("waiters").int() })
    }

    /// What the server spends while nothing happens.
    pub fn idle(&mut self, time: Duration) -> Result<Spent> {
        self.spent(1, |_| {
            sleep(time);
            Ok(())
        })
    }

    /// Each holder releases, and the head of the queue gets the lock; then the old holders join the queue
    /// again. Returns the cost of both.
    pub fn release(&mut self, times: usize) -> Result<[Spent; 2]> {
        let released = self.spent(times, |queue| {
            for _ in 0..times {
                queue.control.send(&command(&["DLOCK.RELEASE", LOCK, &queue.waiters[queue.holder].token]))?;
                let next = queue.order.pop_front().ok_or_else(|| strange("the queue is empty"))?;
                Expect::Number.check(queue.waiters[next].conn.line()?)?;
                Expect::Line(":1").check(queue.control.line()?)?;
                queue.order.push_back(queue.holder);
                queue.holder = next;
            }
            Ok(())
        })?;
        let joined = self.spent(times, |queue| queue.join(times, |_| Duration::ZERO))?;
        Ok([released, joined])
    }

    /// Cancels waiters anywhere in the queue.
    pub fn cancel(&mut self, times: usize) -> Result<Spent> {
        let picked = self.pick(times);
        let spent = self.spent(times, |queue| {
            for at in &picked {
                let waiter = &mut queue.waiters[*at];
                queue.control.send(&command(&["DLOCK.CANCEL", LOCK, "CLIENT", &waiter.client]))?;
                Expect::Line("$-1").check(waiter.conn.line()?)?;
                Expect::Line(":1").check(queue.control.line()?)?;
            }
            Ok(())
        })?;
        self.join(times, |_| Duration::ZERO)?;
        Ok(spent)
    }

    /// Closes the connections of waiters anywhere in the queue.
    pub fn disconnect(&mut self, times: usize) -> Result<Spent> {
        let picked = self.pick(times);
        // Connected in advance: that is not what is measured.
        let fresh: Vec<Waiter> =
            picked.iter().map(|at| Waiter::new(&self.server, *at)).collect::<Result<_>>()?;
        let spent = self.spent(times, |queue| {
            for (at, waiter) in picked.iter().zip(fresh) {
                drop(std::mem::replace(&mut queue.waiters[*at], waiter));
                sleep(REST);
            }
            Ok(())
        })?;
        self.join(times, |_| Duration::ZERO)?;
        Ok(spent)
    }

    /// Waiters anywhere in the queue time out, one group after the other, each group at one moment. All
    /// waiters rejoin first: otherwise only the tail of the queue could have short wait timeouts.
    pub fn time_out(&mut self, at_once: usize, groups: usize) -> Result<Spent> {
        let length = self.order.len();
        self.clear()?;
        let picked: Vec<usize> = (0..at_once * groups).map(|nth| nth * length / (at_once * groups)).collect();
        // Long enough for all to join before it.
        let due = Instant::now() + Duration::from_millis(70) + Duration::from_micros(200) * length as u32;
        self.join(length, |at| match picked.binary_search(&at) {
            Ok(nth) => {
                let left = due + BETWEEN_GROUPS * (nth % groups) as u32 - Instant::now();
                left.max(Duration::from_millis(1))
            }
            Err(_) => Duration::ZERO,
        })?;
        if Instant::now() > due {
            return Err(strange("joining the queue takes longer than its first wait timeout"));
        }
        // Recently used connections cost the server more than others.
        let idle = self.idle((due - Instant::now()).saturating_sub(REST * 4))?;
        let gone: Vec<usize> = picked.iter().map(|at| self.order[*at]).collect();
        let spent = self.spent(gone.len(), |queue| {
            for at in &gone {
                Expect::Line("$-1").check(queue.waiters[*at].conn.line()?)?;
            }
            Ok(())
        })?;
        self.move_to_the_end(&gone);
        self.join(gone.len(), |_| Duration::ZERO)?;
        Ok(spent.less(idle))
    }

    /// All waiters leave the queue; the bench keeps their order.
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

    /// Random waiters that are about to leave the queue and to rejoin at its tail.
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

    /// The last waiters of the order join the queue, each with its wait timeout; zero: none. The server reads
    /// them in the order in which they were sent.
    fn join(&mut self, last: usize, wait: impl Fn(usize) -> Duration) -> Result<()> {
        for nth in self.order.len() - last..self.order.len() {
            let waiter = &mut self.waiters[self.order[nth]];
            let wait = wait(nth).as_millis().to_string();
            waiter.conn.send(&command(&["DLOCK.ACQUIRE", LOCK, &waiter.token, TTL, "BLOCK", &wait]))?;
        }
        self.control.call(&["PING"])?;
        Ok(())
    }

    fn spent(&mut self, operations: usize, what: impl FnOnce(&mut Queue) -> Result<()>) -> Result<Spent> {
        sleep(REST);
        let meter = Meter::start(&self.server);
        what(self)?;
        sleep(REST);
        Ok(meter.end(&self.server, operations))
    }
}

fn command(args: &[&str]) -> Vec<u8> {
    Command::new(args).on_key(0)
}
