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
    /// The last of them, where it is an ACQUIRE, may wait in line.
    pub waits: Vec<&'static str>,
    /// How long any answer may take, waiting in line included.
    pub patience: Duration,
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
            patience: PATIENCE,
            rest: 0,
            hangs_up: 0,
        }
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
    /// Granted after a wait that was longer than the lease, so that it may be over: to be made sure of.
    unsure: Vec<usize>,
    /// Acquisitions and releases of which it does not know whether they were carried out.
    unknown: Vec<usize>,
    /// Holds that end with its connection.
    bound: Vec<usize>,
    /// Counted by their error word.
    pub errors: BTreeMap<String, usize>,
    /// Holds it relied on and was told that it has not.
    pub denied: Vec<String>,
    pub granted: usize,
    /// Holds that it ended.
    pub released: usize,
    /// Connections that it ended before it was answered.
    pub hung_up: usize,
}

/// What a command is for.
enum Intent {
    Acquire(usize, u64, Vec<&'static str>),
    Extend(usize, u64),
    Release(usize),
}

impl Intent {
    fn hold(&self) -> usize {
        match self {
            Intent::Acquire(at, ..) | Intent::Extend(at, _) | Intent::Release(at) => *at,
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
            unsure: Vec::new(),
            unknown: Vec::new(),
            bound: Vec::new(),
            errors: BTreeMap::new(),
            denied: Vec::new(),
            granted: 0,
            released: 0,
            hung_up: 0,
        }
    }

    /// Works until there is no server any more, or `done`, and counts its grants in `granted`.
    pub fn work(&mut self, port: u16, granted: &AtomicUsize, done: impl Fn() -> bool) {
        while !done() {
            let Ok(mut wire) = Wire::connect(port) else { return };
            let mut well = self.release(self.unknown.clone(), &mut wire);
            while well.is_ok() && !done() {
                let before = self.granted;
                well = self.turn(&mut wire);
                granted.fetch_add(self.granted - before, Ordering::Relaxed);
                sleep(Duration::from_millis(self.random.below(self.plan.rest + 1) as u64));
            }
            self.hanging_up();
        }
    }

    /// What is bound to the connection is relied on no longer.
    fn hanging_up(&mut self) {
        let now = self.clock.now();
        for at in self.bound.drain(..) {
            if let Some(grant) = &mut self.holds[at].grant {
                grant.until = grant.until.min(now);
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
        if let Some(Intent::Acquire(_, _, options)) = intents.last_mut() {
            options.push(*self.random.of(&self.plan.waits));
        }
        let sent = self.send(wire, &intents)?;
        if self.plan.hangs_up > 0 && self.random.once_in(self.plan.hangs_up) {
            self.hung_up += 1;
            return Err(ErrorKind::ConnectionAborted.into());
        }
        self.receive(wire, &intents, sent)
    }

    /// Gives back all that it has and all that it may have.
    pub fn release_everything(&mut self, wire: &mut Wire) -> io::Result<()> {
        self.release([self.unknown.as_slice(), &self.mine].concat(), wire)
    }

    fn release(&mut self, holds: Vec<usize>, wire: &mut Wire) -> io::Result<()> {
        let intents: Vec<Intent> = holds.into_iter().map(Intent::Release).collect();
        let sent = self.send(wire, &intents)?;
        self.receive(wire, &intents, sent)
    }

    /// Something to do with what is in none of `others`: what comes of two commands of one write would be unclear if
    /// only the first one's answer arrived.
    fn choose(&mut self, others: &[Intent]) -> Intent {
        let now = self.clock.now();
        self.mine.retain(|hold| self.holds[*hold].grant.is_some_and(|grant| grant.until > now));
        let taken = |at: usize| others.iter().any(|other| other.hold() == at);
        let mine: Vec<usize> = self.mine.iter().copied().filter(|at| !taken(*at)).collect();
        let lease = *self.random.of(&self.plan.leases);
        if let Some(at) = self.unsure.pop() {
            return Intent::Extend(at, lease);
        }
        match self.random.below(10) {
            0..4 if !mine.is_empty() => Intent::Release(*self.random.of(&mine)),
            4..6 if !mine.is_empty() => Intent::Extend(*self.random.of(&mine), lease),
            _ => {
                let (key, modes) = self.random.of(&self.plan.keys).clone();
                let mode = *self.random.of(modes);
                let token = format!("{}-{}", self.name, self.holds.len());
                self.holds.push(Hold { key, token, mode, asked: now, grant: None, gone: None });
                Intent::Acquire(self.holds.len() - 1, lease, vec![*self.random.of(&self.plan.options)])
            }
        }
    }

    fn words(&self, intent: &Intent) -> Vec<String> {
        let Hold { key, token, mode, .. } = &self.holds[intent.hold()];
        let words = match intent {
            Intent::Acquire(_, lease, options) => {
                let mode = match mode {
                    Mode::Exclusive => String::new(),
                    Mode::Shared => "SHARED".into(),
                    Mode::Permits(most) => format!("PERMITS {most}"),
                };
                format!("DLOCK.ACQUIRE {key} {token} {lease} {mode} {}", options.join(" "))
            }
            Intent::Extend(_, lease) => format!("DLOCK.EXTEND {key} {token} {lease}"),
            Intent::Release(_) => format!("DLOCK.RELEASE {key} {token} ALL"),
        };
        words.split_whitespace().map(str::to_string).collect()
    }

    /// Answers when.
    fn send(&mut self, wire: &mut Wire, intents: &[Intent]) -> io::Result<At> {
        let bytes: Vec<u8> = intents.iter().flat_map(|intent| encode(&self.words(intent))).collect();
        let sent = self.clock.now();
        intents.iter().for_each(|intent| self.sending(intent, sent));
        wire.send(&bytes)?;
        Ok(sent)
    }

    fn receive(&mut self, wire: &mut Wire, intents: &[Intent], sent: At) -> io::Result<()> {
        let mut in_grace = false;
        for intent in intents {
            let answer = wire.value(Instant::now() + self.plan.patience)?;
            let answer =
                answer.unwrap_or_else(|| panic!("{} is not answered: {:?}", self.name, self.words(intent)));
            in_grace |= matches!(&answer, Value::Error(line) if line.starts_with("GRACE"));
            self.learn(intent, &answer, sent, self.clock.now());
        }
        if in_grace {
            sleep(Duration::from_millis(5));
        }
        Ok(())
    }

    /// From here on the worst has to be assumed.
    fn sending(&mut self, intent: &Intent, now: At) {
        let hold = &mut self.holds[intent.hold()];
        let relies_until = match intent {
            Intent::Acquire(..) => {
                hold.asked = now;
                return self.unknown.push(intent.hold());
            }
            Intent::Extend(_, lease) => now + lease * 1000,
            Intent::Release(at) => {
                self.mine.retain(|other| other != at);
                self.unknown.retain(|other| other != at);
                self.unknown.push(*at);
                now
            }
        };
        if let Some(grant) = &mut hold.grant {
            grant.until = grant.until.min(relies_until);
        }
    }

    fn learn(&mut self, intent: &Intent, answer: &Value, sent: At, now: At) {
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
        let at = intent.hold();
        let hold = &mut self.holds[at];
        match intent {
            Intent::Acquire(_, lease, options) => {
                self.unknown.retain(|other| *other != at);
                let Value::Int(fence) = answer else {
                    hold.gone = Some(now);
                    return;
                };
                hold.grant = Some(Grant { fence: *fence, at: now, until: sent + lease * 1000 });
                let sure = sent + lease * 1000 > now;
                if sure {
                    self.mine.push(at)
                } else {
                    self.unsure.push(at)
                };
                self.granted += 1;
                if options.contains(&"EPHEMERAL") {
                    self.bound.push(at);
                }
            }
            Intent::Extend(_, lease) => {
                let Some(grant) = &mut hold.grant else { return };
                if *answer == 1 {
                    grant.until = sent + lease * 1000;
                    if !self.mine.contains(&at) {
                        self.mine.push(at);
                    }
                } else if grant.until > now {
                    grant.until = sent;
                    self.denied.push(format!("{hold:?} is denied at {now}"));
                }
            }
            Intent::Release(_) => {
                self.unknown.retain(|other| *other != at);
                hold.gone = Some(now);
                self.released += usize::from(*answer == 1);
            }
        }
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
