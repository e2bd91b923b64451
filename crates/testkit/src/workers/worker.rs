//! One client.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::{Clock, Plan};
use crate::history::{At, Grant, Hold, Mode};
use crate::{Random, Value, Wire, encode};

/// Locks and releases at random, and keeps a record of what it was told.
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
    /// Acquisitions and releases of which it does not know whether they were carried out, and positions of
    /// which it does not know whether they have been granted.
    unknown: Vec<usize>,
    /// Those positions.
    queued: Vec<usize>,
    /// Holds that end with its connection.
    bound: Vec<usize>,
    /// Counted by their error word.
    pub errors: BTreeMap<String, usize>,
    /// Holds it relied on and was told that it has not.
    pub denied: Vec<String>,
    pub granted: usize,
    /// Of those, positions that were granted while nobody waited beside them.
    pub found_granted: usize,
    /// Holds that it ended.
    pub released: usize,
    /// Connections that it ended before it was answered.
    pub hung_up: usize,
}

/// What a command is for.
enum Intent {
    Acquire(usize, u64, Vec<&'static str>),
    /// Whether a position has been granted. ACQUIRE would join anew where that was and has expired.
    Ask(usize),
    Extend(usize, u64),
    Release(usize),
}

impl Intent {
    fn hold(&self) -> usize {
        match self {
            Intent::Acquire(at, ..) | Intent::Ask(at) | Intent::Extend(at, _) | Intent::Release(at) => *at,
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
            queued: Vec::new(),
            bound: Vec::new(),
            errors: BTreeMap::new(),
            denied: Vec::new(),
            granted: 0,
            found_granted: 0,
            released: 0,
            hung_up: 0,
        }
    }

    /// Works until `done`, with the server that `port` tells each time that it needs another one, and counts
    /// its grants in `granted`.
    pub fn work(&mut self, port: impl Fn() -> u16, granted: &AtomicUsize, done: impl Fn() -> bool) {
        while !done() {
            let Ok(mut wire) = Wire::connect(port()) else {
                sleep(Duration::from_millis(2));
                continue;
            };
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
            self.unsure.retain(|other| *other != at);
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

    /// Releases all that it holds and all that it may hold.
    pub fn release_everything(&mut self, wire: &mut Wire) -> io::Result<()> {
        self.release([self.unknown.as_slice(), &self.mine].concat(), wire)
    }

    fn release(&mut self, holds: Vec<usize>, wire: &mut Wire) -> io::Result<()> {
        let intents: Vec<Intent> = holds.into_iter().map(Intent::Release).collect();
        let sent = self.send(wire, &intents)?;
        self.receive(wire, &intents, sent)
    }

    /// Something to do with what is in none of `others`: what comes of two commands of one write would be
    /// unclear if only the first one's answer arrived.
    fn choose(&mut self, others: &[Intent]) -> Intent {
        let now = self.clock.now();
        self.mine.retain(|hold| self.holds[*hold].grant.is_some_and(|grant| grant.until > now));
        let taken = |at: usize| others.iter().any(|other| other.hold() == at);
        let mine: Vec<usize> = self.mine.iter().copied().filter(|at| !taken(*at)).collect();
        let lease = *self.random.of(&self.plan.leases);
        if let Some(at) = self.unsure.pop() {
            return Intent::Extend(at, lease);
        }
        let queued: Vec<usize> = self.queued.iter().copied().filter(|at| !taken(*at)).collect();
        if !queued.is_empty() && self.random.once_in(2) {
            let at = *self.random.of(&queued);
            return if self.random.once_in(6) { Intent::Release(at) } else { Intent::Ask(at) };
        }
        match self.random.below(10) {
            0..3 if !mine.is_empty() => Intent::Release(*self.random.of(&mine)),
            3..5 if !mine.is_empty() => Intent::Extend(*self.random.of(&mine), lease),
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
            // Nothing is confirmed: every fence is greater.
            Intent::Ask(_) => format!("DLOCK.CONFIRM {key} {token} 1 1"),
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
        let (mut in_grace, mut no_master) = (false, false);
        for intent in intents {
            let answer = wire.value(Instant::now() + self.plan.timeout)?;
            let answer =
                answer.unwrap_or_else(|| panic!("{} is not answered: {:?}", self.name, self.words(intent)));
            if let Value::Error(line) = &answer {
                in_grace |= line.starts_with("GRACE");
                no_master |= ["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN", "NOREPLICAS"]
                    .iter()
                    .any(|word| line.starts_with(word));
            }
            self.learn(intent, &answer, sent, self.clock.now());
        }
        if in_grace || no_master {
            sleep(Duration::from_millis(5));
        }
        if no_master { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// From here on the worst has to be assumed.
    fn sending(&mut self, intent: &Intent, now: At) {
        let hold = &mut self.holds[intent.hold()];
        let relies_until = match intent {
            Intent::Acquire(..) => {
                hold.asked = now;
                return self.unknown.push(intent.hold());
            }
            Intent::Ask(_) => return,
            Intent::Extend(_, lease) => now + lease * 1000,
            Intent::Release(at) => {
                self.mine.retain(|other| other != at);
                self.unknown.retain(|other| other != at);
                self.queued.retain(|other| other != at);
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
            // Refused, it did nothing. One that waited when the server changed its role may have been granted
            // before; what was to be released is still to be.
            if matches!(intent, Intent::Acquire(..)) && word != "UNBLOCKED" {
                self.unknown.retain(|other| *other != intent.hold());
            }
            return;
        }
        let at = intent.hold();
        let hold = &mut self.holds[at];
        match intent {
            Intent::Acquire(_, lease, options) => {
                if options.contains(&"EPHEMERAL") {
                    self.bound.push(at);
                }
                if answer.is_nil() && options.iter().any(|option| option.contains("QUEUE")) {
                    return self.queued.push(at);
                }
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
            }
            Intent::Ask(_) => {
                let Value::Int(fence) = answer else { return };
                // It relies on it from when it has claimed it on.
                hold.grant = Some(Grant { fence: *fence, at: now, until: sent });
                self.queued.retain(|other| *other != at);
                self.unknown.retain(|other| *other != at);
                self.unsure.push(at);
                self.granted += 1;
                self.found_granted += 1;
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
