//! Clients that lock and release at random, each keeping a record of what it was told: see `tests/history`.
#![allow(dead_code, clippy::disallowed_methods, reason = "when a client asked and was answered")]

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use crate::harness::{Conn, PATIENCE, Random, Value, Wire, encode};
use crate::history::{At, Grant, History, Hold, Look, Mode};

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

/// What the clients of a run do.
pub struct Plan {
    /// A key is always taken in one mode.
    pub keys: Vec<(String, Mode)>,
    /// ms, one of them each time.
    pub leases: Vec<u64>,
    /// So many commands go in one write, at most.
    pub batch: usize,
    /// For so many ms the last of them may wait in line; 0: not at all.
    pub block: u64,
}

impl Plan {
    /// Locks of all modes, few enough to be fought for.
    pub fn new(leases: &[u64]) -> Plan {
        let modes = [Mode::Exclusive, Mode::Exclusive, Mode::Exclusive, Mode::Shared, Mode::Permits(2)];
        let keys = (0..10).map(|n| (format!("lock:{n}"), modes[n % modes.len()])).collect();
        Plan { keys, leases: leases.to_vec(), batch: 12, block: 20 }
    }
}

pub struct Worker<'a> {
    name: String,
    plan: &'a Plan,
    clock: Clock,
    random: Random,
    pub holds: Vec<Hold>,
    /// Holds it relies on.
    mine: Vec<usize>,
    /// Acquisitions and releases of which it does not know whether they were carried out.
    unknown: Vec<usize>,
    /// Counted by their error word.
    pub errors: BTreeMap<String, usize>,
    /// Holds it relied on and was told that it has not.
    pub denied: Vec<String>,
    pub granted: usize,
    pub released: usize,
}

/// What a command is for.
#[derive(Clone, Copy)]
enum Intent {
    Acquire(usize, u64),
    Extend(usize, u64),
    Release(usize),
}

impl Intent {
    fn hold(self) -> usize {
        match self {
            Intent::Acquire(at, _) | Intent::Extend(at, _) | Intent::Release(at) => at,
        }
    }
}

impl<'a> Worker<'a> {
    /// `name` has to be another one for each worker of a history.
    pub fn new(name: String, plan: &'a Plan, clock: Clock, random: Random) -> Worker<'a> {
        Worker {
            name,
            plan,
            clock,
            random,
            holds: Vec::new(),
            mine: Vec::new(),
            unknown: Vec::new(),
            errors: BTreeMap::new(),
            denied: Vec::new(),
            granted: 0,
            released: 0,
        }
    }

    /// Works until the connection ends or `done`, and counts its grants in `granted`.
    pub fn work(&mut self, port: u16, granted: &AtomicUsize, done: impl Fn() -> bool) {
        let Ok(mut wire) = Wire::connect(port) else { return };
        if self.release(self.unknown.clone(), &mut wire).is_err() {
            return;
        }
        while !done() {
            let before = self.granted;
            let ended = self.turn(&mut wire).is_err();
            granted.fetch_add(self.granted - before, Ordering::Relaxed);
            if ended {
                return;
            }
        }
    }

    /// How many requests were never answered, and not sent again.
    pub fn unanswered(&self) -> usize {
        self.unknown.len()
    }

    /// Several commands in one write, and their answers.
    pub fn turn(&mut self, wire: &mut Wire) -> io::Result<()> {
        let count = 1 + self.random.below(self.plan.batch);
        let mut intents: Vec<Intent> = Vec::new();
        for _ in 0..count {
            intents.push(self.choose(&intents));
        }
        let last = intents.len() - 1;
        let commands = intents.iter().enumerate().map(|(n, intent)| self.words(*intent, n == last));
        let bytes: Vec<u8> = commands.flat_map(|words| encode(&words)).collect();
        self.talk(wire, &bytes, &intents)
    }

    /// Gives back all that it has and all that it may have.
    pub fn release_everything(&mut self, wire: &mut Wire) -> io::Result<()> {
        self.release([self.unknown.as_slice(), &self.mine].concat(), wire)
    }

    fn release(&mut self, holds: Vec<usize>, wire: &mut Wire) -> io::Result<()> {
        let intents: Vec<Intent> = holds.into_iter().map(Intent::Release).collect();
        let commands = intents.iter().map(|intent| self.words(*intent, false));
        let bytes: Vec<u8> = commands.flat_map(|words| encode(&words)).collect();
        self.talk(wire, &bytes, &intents)
    }

    /// Something to do with what is in none of `others`: what comes of two commands of one write would be unclear if
    /// only the first one's answer arrived.
    fn choose(&mut self, others: &[Intent]) -> Intent {
        let now = self.clock.now();
        self.mine.retain(|hold| self.holds[*hold].grant.is_some_and(|grant| grant.until > now));
        let taken = |at: usize| others.iter().any(|other| other.hold() == at);
        let mine: Vec<usize> = self.mine.iter().copied().filter(|at| !taken(*at)).collect();
        let lease = *self.random.of(&self.plan.leases);
        match self.random.below(10) {
            0..4 if !mine.is_empty() => Intent::Release(*self.random.of(&mine)),
            4..6 if !mine.is_empty() => Intent::Extend(*self.random.of(&mine), lease),
            _ => {
                let (key, mode) = self.random.of(&self.plan.keys).clone();
                let token = format!("{}-{}", self.name, self.holds.len());
                self.holds.push(Hold { key, token, mode, asked: now, grant: None, gone: None });
                Intent::Acquire(self.holds.len() - 1, lease)
            }
        }
    }

    fn words(&self, intent: Intent, last: bool) -> Vec<String> {
        let words = match intent {
            Intent::Acquire(at, lease) => {
                let Hold { key, token, mode, .. } = &self.holds[at];
                let mode = match mode {
                    Mode::Exclusive => String::new(),
                    Mode::Shared => "SHARED".into(),
                    Mode::Permits(most) => format!("PERMITS {most}"),
                };
                let block = if last && self.plan.block > 0 {
                    format!("BLOCK {}", self.plan.block)
                } else {
                    "".into()
                };
                format!("DLOCK.ACQUIRE {key} {token} {lease} {mode} {block}")
            }
            Intent::Extend(at, lease) => {
                format!("DLOCK.EXTEND {} {} {lease}", self.holds[at].key, self.holds[at].token)
            }
            Intent::Release(at) => {
                format!("DLOCK.RELEASE {} {} ALL", self.holds[at].key, self.holds[at].token)
            }
        };
        words.split_whitespace().map(str::to_string).collect()
    }

    fn talk(&mut self, wire: &mut Wire, bytes: &[u8], intents: &[Intent]) -> io::Result<()> {
        let sent = self.clock.now();
        intents.iter().for_each(|intent| self.sending(*intent, sent));
        wire.send(bytes)?;
        let mut in_grace = false;
        for intent in intents {
            let answer = wire.value(Instant::now() + PATIENCE)?;
            let answer = answer.ok_or_else(|| io::Error::from(ErrorKind::TimedOut));
            let answer = answer.unwrap_or_else(|_| panic!("{} had no answer within {PATIENCE:?}", self.name));
            in_grace |= matches!(&answer, Value::Error(line) if line.starts_with("GRACE"));
            self.learn(*intent, &answer, sent, self.clock.now());
        }
        if in_grace {
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// From here on the worst has to be assumed.
    fn sending(&mut self, intent: Intent, now: At) {
        let hold = &mut self.holds[intent.hold()];
        let relies_until = match intent {
            Intent::Acquire(..) => {
                hold.asked = now;
                return self.unknown.push(intent.hold());
            }
            Intent::Extend(_, lease) => now + lease * 1000,
            Intent::Release(at) => {
                self.mine.retain(|other| *other != at);
                self.unknown.retain(|other| *other != at);
                self.unknown.push(at);
                now
            }
        };
        if let Some(grant) = &mut hold.grant {
            grant.until = grant.until.min(relies_until);
        }
    }

    fn learn(&mut self, intent: Intent, answer: &Value, sent: At, now: At) {
        if let Value::Error(line) = answer {
            let word = line.split(' ').next().unwrap_or_default();
            *self.errors.entry(word.to_string()).or_default() += 1;
            // Refused, it did nothing. One that waited when the server changed its role may have been granted before;
            // what was to be released is still to be.
            if matches!(intent, Intent::Acquire(..)) && word != "UNBLOCKED" {
                self.unknown.retain(|other| *other != intent.hold());
            }
            return;
        }
        match intent {
            Intent::Acquire(at, lease) => {
                self.unknown.retain(|other| *other != at);
                let hold = &mut self.holds[at];
                match answer {
                    Value::Int(fence) => {
                        hold.grant = Some(Grant { fence: *fence, at: now, until: sent + lease * 1000 });
                        self.mine.push(at);
                        self.granted += 1;
                    }
                    _ => hold.gone = Some(now),
                }
            }
            Intent::Extend(at, lease) => {
                let hold = &mut self.holds[at];
                let Some(grant) = &mut hold.grant else { return };
                if *answer == 1 {
                    grant.until = sent + lease * 1000;
                } else if grant.until > now {
                    grant.until = sent;
                    self.denied.push(format!("{hold:?} is denied at {now}"));
                }
            }
            Intent::Release(at) => {
                self.unknown.retain(|other| *other != at);
                self.holds[at].gone = Some(now);
                self.released += usize::from(*answer == 1);
            }
        }
    }
}

/// Who holds each key of the plan, and who waits.
pub fn look(conn: &mut Conn, plan: &Plan, clock: Clock) -> Vec<Look> {
    plan.keys.iter().map(|(key, _)| look_at(conn, key, clock)).collect()
}

fn look_at(conn: &mut Conn, key: &str, clock: Clock) -> Look {
    let asked = clock.now();
    let (inspect, waiters) = (format!("DLOCK.INSPECT {key}"), format!("DLOCK.WAITERS {key}"));
    // In one step of the server.
    let answers = conn.say_together(&["MULTI", &inspect, &waiters, "EXEC"]);
    let answered = clock.now();
    let [lock, line] = answers[3].items() else { panic!("{answers:?}") };
    let holders = if lock.is_nil() { &[] } else { lock.field("holders").items() };
    Look {
        key: key.to_string(),
        asked,
        answered,
        holders: holders.iter().map(|hold| (hold.field("token").text(), hold.field("fence").int())).collect(),
        line: line.items().iter().map(|waiter| waiter.field("token").text()).collect(),
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
