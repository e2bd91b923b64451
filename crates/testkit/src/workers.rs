//! Clients that lock and release at random, and record what they were told: see [`history`](crate::history).

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use crate::history::{At, History, Look, Mode};
use crate::{Conn, TIMEOUT};

mod worker;

pub use worker::Worker;

/// When things happen in a run.
#[derive(Clone, Copy)]
pub struct Clock(Instant);

impl Clock {
    pub fn start() -> Clock {
        Clock(Instant::now())
    }

    pub fn now(&self) -> At {
        self.0.elapsed().as_micros() as At
    }
}

/// What the clients of a run do. Where there is a list, one of it is taken each time.
pub struct Plan {
    /// Each is taken in one of these modes.
    pub keys: Vec<(String, &'static [Mode])>,
    /// ms
    pub leases: Vec<u64>,
    /// Further options of an ACQUIRE.
    pub options: Vec<&'static str>,
    /// So many commands go in one write, at most.
    pub batch: usize,
    /// The last of them, where it is an ACQUIRE, may wait.
    pub waits: Vec<&'static str>,
    /// How long any answer may take, the wait for the lock included.
    pub timeout: Duration,
    /// A client rests for so many ms after each answer, at most.
    pub rest: usize,
    /// Once in so many times it hangs up before it was answered; 0: never.
    pub hangs_up: usize,
}

impl Plan {
    /// Locks of all modes, few enough to be fought for.
    pub fn new(leases: &[u64]) -> Plan {
        const ALONE: &[Mode] = &[Mode::Exclusive];
        const MIXED: &[Mode] = &[Mode::Exclusive, Mode::Shared, Mode::Shared];
        let modes = [ALONE, MIXED, ALONE, &[Mode::Shared], &[Mode::Permits(2)]];
        Plan {
            keys: (0..10).map(|n| (format!("lock:{n}"), modes[n % modes.len()])).collect(),
            leases: leases.to_vec(),
            options: vec![""],
            batch: 12,
            waits: vec!["BLOCK 20"],
            timeout: TIMEOUT,
            rest: 0,
            hangs_up: 0,
        }
    }
}

/// Lets the clients work for as long as `run` takes, which is told how many grants they have made.
pub fn during<R>(
    workers: &mut [Worker<'_>],
    port: impl Fn() -> u16 + Sync,
    run: impl FnOnce(&AtomicUsize) -> R,
) -> R {
    let (granted, over) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (port, granted, over) = (&port, &granted, &over);
        for worker in workers.iter_mut() {
            scope.spawn(move || worker.work(port, granted, || over.load(Ordering::Relaxed)));
        }
        let _end = SetAtTheEnd(over);
        run(granted)
    })
}

/// Tells clients to end, also where the test panics: or it would wait for them for ever.
pub struct SetAtTheEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Who holds each key of the plan, and who waits for it.
pub fn look(conn: &mut Conn, plan: &Plan, clock: Clock) -> Vec<Look> {
    plan.keys.iter().map(|(key, _)| look_at(conn, key, clock)).collect()
}

pub fn look_at(conn: &mut Conn, key: &str, clock: Clock) -> Look {
    let asked = clock.now();
    let (inspect, waiters) = (format!("DLOCK.INSPECT {key}"), format!("DLOCK.WAITERS {key}"));
    // In one step of the server.
    let answers = conn.say_together(&["MULTI", &inspect, &waiters, "EXEC"]);
    let answered = clock.now();
    let [lock, queue] = answers[3].items() else { panic!("{answers:?}") };
    let holders = if lock.is_nil() { &[] } else { lock.field("holders").items() };
    Look {
        key: key.to_string(),
        asked,
        answered,
        holders: holders.iter().map(|hold| (hold.field("token").text(), hold.field("fence").int())).collect(),
        queue: queue.items().iter().map(|waiter| waiter.field("token").text()).collect(),
        held_back: !lock.is_nil() && lock.field("delay").int() > 0,
    }
}

/// What all of them know.
pub fn history(workers: Vec<Worker<'_>>, looks: Vec<Look>) -> History {
    History {
        holds: workers.into_iter().flat_map(|worker| worker.holds).collect(),
        looks,
        breaks: Vec::new(),
    }
}
