//! Clients that lock and release at random, and record the replies for [`history`](crate::history) to check.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use crate::conn::Conn;
use crate::history::{At, Grant, History, Hold, Mode, Report};
use crate::random::Random;
use crate::value::Value;
use crate::wait::TIMEOUT;
use crate::wire::{Wire, encode};

/// The clock of a run.
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

/// The behaviour of the clients of a run. A client picks from each list at random.
pub struct Plan {
    /// Keys, each with the modes in which it is acquired.
    pub keys: Vec<(String, &'static [Mode])>,
    /// Leases in ms.
    pub leases: Vec<u64>,
    /// Further options of ACQUIRE.
    pub options: Vec<&'static str>,
    /// Maximum number of commands in one write.
    pub batch: usize,
    /// Wait options for the last command of a write, if it is an ACQUIRE.
    pub waits: Vec<&'static str>,
    /// Time limit of a reply, including the wait for the lock.
    pub timeout: Duration,
    /// Longest pause of a client after a write, in ms.
    pub max_pause: usize,
    /// After one write in this many, the client disconnects without reading the replies. 0 means never.
    pub hang_up_once_in: usize,
}

impl Plan {
    /// Returns a plan with ten locks of all modes.
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
            max_pause: 0,
            hang_up_once_in: 0,
        }
    }
}

/// Lets the clients work until `run` returns. `port` returns the port for each new connection; `run` gets the
/// counter of the grants.
pub fn during<R>(
    workers: &mut [Worker<'_>],
    port: impl Fn() -> u16 + Sync,
    run: impl FnOnce(&AtomicUsize) -> R,
) -> R {
    let (granted, stop) = (AtomicUsize::new(0), AtomicBool::new(false));
    thread::scope(|scope| {
        let (port, granted, stop) = (&port, &granted, &stop);
        for worker in workers.iter_mut() {
            scope.spawn(move || worker.work(port, granted, || stop.load(Ordering::Relaxed)));
        }
        let _end = SetAtTheEnd(stop);
        run(granted)
    })
}

/// When dropped, sets a flag that ends threads. Without this type, [`thread::scope`] would wait for ever
/// after a panic, because only the flag ends its threads.
pub struct SetAtTheEnd<'a>(pub &'a AtomicBool);

impl Drop for SetAtTheEnd<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// Returns the holders and waiters of each key of the plan.
pub fn report_all(conn: &mut Conn, plan: &Plan, clock: Clock) -> Vec<Report> {
    plan.keys.iter().map(|(key, _)| report_on(conn, key, clock)).collect()
}

/// Returns the holders and waiters of a key.
pub fn report_on(conn: &mut Conn, key: &str, clock: Clock) -> Report {
    let asked = clock.now();
    let (inspect, waiters) = (format!("DLOCK.INSPECT {key}"), format!("DLOCK.WAITERS {key}"));
    // In a transaction, so that both answers are of the same moment.
    let answers = conn.say_together(&["MULTI", &inspect, &waiters, "EXEC"]);
    let answered = clock.now();
    let [lock, queue] = answers[3].items() else { panic!("{answers:?}") };
    let holders = if lock.is_nil() { &[] } else { lock.field("holders").items() };
    Report {
        key: key.to_string(),
        asked,
        answered,
        holders: holders.iter().map(|hold| (hold.field("token").text(), hold.field("fence").int())).collect(),
        queue: queue.items().iter().map(|waiter| waiter.field("token").text()).collect(),
        grants_paused: !lock.is_nil() && lock.field("delay").int() > 0,
    }
}

/// Merges the records of all clients and the reports.
pub fn history(workers: Vec<Worker<'_>>, reports: Vec<Report>) -> History {
    History {
        holds: workers.into_iter().flat_map(|worker| worker.holds).collect(),
        reports,
        breaks: Vec::new(),
    }
}

/// A client that locks and releases at random, and records the replies. A `Vec<usize>` contains indices of
/// `holds`.
pub struct Worker<'a> {
    name: String,
    plan: &'a Plan,
    clock: Clock,
    random: Random,
    pub holds: Vec<Hold>,
    /// Holds that the client relies on.
    mine: Vec<usize>,
    /// Holds whose lease may have ended: the grant arrived late, or in the reply to [`Intent::Ask`]. The
    /// client extends such a hold, and the reply says whether the server still has the hold.
    unsure: Vec<usize>,
    /// Holds that the server may have while the client does not know: a request for them has no reply, or
    /// they are queued. After a reconnect, the client releases them.
    unknown: Vec<usize>,
    /// Holds among `unknown` that were queued and, as far as the client knows, not granted yet.
    queued: Vec<usize>,
    /// EPHEMERAL holds, which end with the connection.
    ephemeral: Vec<usize>,
    /// Number of errors by error word.
    pub errors: BTreeMap<String, usize>,
    /// Extensions that the server refused although the client still relied on the hold.
    pub denied: Vec<String>,
    /// Number of grants that the client knows of.
    pub granted: usize,
    /// Number of queued holds that the client found granted by `Intent::Ask`.
    pub found_granted: usize,
    /// Number of holds that the client released.
    pub released: usize,
    /// Number of connections that the client closed without reading the replies.
    pub hung_up: usize,
}

/// The purpose of a command. The first number is the index of the hold, the second the lease in ms.
enum Intent {
    Acquire(usize, u64, Vec<&'static str>),
    /// Asks by CONFIRM whether a queued hold has been granted. ACQUIRE would join the queue again if the hold
    /// had expired.
    Ask(usize),
    Extend(usize, u64),
    Release(usize),
}

impl Intent {
    fn hold(&self) -> usize {
        match self {
            Intent::Acquire(index, ..)
            | Intent::Ask(index)
            | Intent::Extend(index, _)
            | Intent::Release(index) => *index,
        }
    }
}

impl<'a> Worker<'a> {
    /// `name` must be unique among the workers of a history.
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
            ephemeral: Vec::new(),
            errors: BTreeMap::new(),
            denied: Vec::new(),
            granted: 0,
            found_granted: 0,
            released: 0,
            hung_up: 0,
        }
    }

    /// Works until `done` returns true, and adds the grants to `granted`. `port` returns the port for each
    /// new connection.
    pub fn work(&mut self, port: impl Fn() -> u16, granted: &AtomicUsize, done: impl Fn() -> bool) {
        while !done() {
            let Ok(mut wire) = Wire::connect(port()) else {
                sleep(Duration::from_millis(2));
                continue;
            };
            let mut result = self.release(self.unknown.clone(), &mut wire);
            while result.is_ok() && !done() {
                let before = self.granted;
                result = self.send_batch(&mut wire);
                granted.fetch_add(self.granted - before, Ordering::Relaxed);
                sleep(Duration::from_millis(self.random.below(self.plan.max_pause + 1) as u64));
            }
            self.end_ephemeral_holds();
        }
    }

    /// Stops relying on the holds that end with the connection.
    fn end_ephemeral_holds(&mut self) {
        let now = self.clock.now();
        for index in self.ephemeral.drain(..) {
            self.unsure.retain(|other| *other != index);
            if let Some(grant) = &mut self.holds[index].grant {
                grant.until = grant.until.min(now);
            }
        }
    }

    /// Returns the number of holds that the server may have while the client does not know.
    pub fn unanswered(&self) -> usize {
        self.unknown.len()
    }

    /// Sends several commands in one write and reads their replies.
    fn send_batch(&mut self, wire: &mut Wire) -> io::Result<()> {
        let count = 1 + self.random.below(self.plan.batch);
        let mut intents: Vec<Intent> = Vec::new();
        for _ in 0..count {
            intents.push(self.choose(&intents));
        }
        if let Some(Intent::Acquire(_, _, options)) = intents.last_mut() {
            options.push(*self.random.of(&self.plan.waits));
        }
        let sent = self.send(wire, &intents)?;
        if self.plan.hang_up_once_in > 0 && self.random.once_in(self.plan.hang_up_once_in) {
            self.hung_up += 1;
            return Err(ErrorKind::ConnectionAborted.into());
        }
        self.receive(wire, &intents, sent)
    }

    /// Releases every hold that the client has or may have.
    pub fn release_everything(&mut self, wire: &mut Wire) -> io::Result<()> {
        let unsure = std::mem::take(&mut self.unsure);
        self.release([self.unknown.as_slice(), &self.mine, &unsure].concat(), wire)
    }

    fn release(&mut self, holds: Vec<usize>, wire: &mut Wire) -> io::Result<()> {
        let intents: Vec<Intent> = holds.into_iter().map(Intent::Release).collect();
        let sent = self.send(wire, &intents)?;
        self.receive(wire, &intents, sent)
    }

    /// Chooses a command for a hold that no command in `others` names (the earlier commands of the same
    /// write). If a hold had two commands and only the first reply arrived, its state would be unclear.
    fn choose(&mut self, others: &[Intent]) -> Intent {
        let now = self.clock.now();
        self.mine.retain(|hold| self.holds[*hold].grant.is_some_and(|grant| grant.until > now));
        let is_named = |index: usize| others.iter().any(|other| other.hold() == index);
        let mine: Vec<usize> = self.mine.iter().copied().filter(|index| !is_named(*index)).collect();
        let lease = *self.random.of(&self.plan.leases);
        if let Some(index) = self.unsure.pop() {
            return Intent::Extend(index, lease);
        }
        let queued: Vec<usize> = self.queued.iter().copied().filter(|index| !is_named(*index)).collect();
        if !queued.is_empty() && self.random.once_in(2) {
            let index = *self.random.of(&queued);
            return if self.random.once_in(6) { Intent::Release(index) } else { Intent::Ask(index) };
        }
        match self.random.below(10) {
            0..3 if !mine.is_empty() => Intent::Release(*self.random.of(&mine)),
            3..5 if !mine.is_empty() => Intent::Extend(*self.random.of(&mine), lease),
            _ => {
                let (key, modes) = self.random.of(&self.plan.keys).clone();
                let mode = *self.random.of(modes);
                let token = format!("{}-{}", self.name, self.holds.len());
                self.holds.push(Hold { key, token, mode, asked: now, grant: None, ended: None });
                Intent::Acquire(self.holds.len() - 1, lease, vec![*self.random.of(&self.plan.options)])
            }
        }
    }

    fn command(&self, intent: &Intent) -> Vec<String> {
        let Hold { key, token, mode, .. } = &self.holds[intent.hold()];
        let words = match intent {
            Intent::Acquire(_, lease, options) => {
                let mode = match mode {
                    Mode::Exclusive => String::new(),
                    Mode::Shared => "SHARED".into(),
                    Mode::Permits(permits) => format!("PERMITS {permits}"),
                };
                format!("DLOCK.ACQUIRE {key} {token} {lease} {mode} {}", options.join(" "))
            }
            // CONFIRM returns the fence of the hold. It changes nothing if the given fence, here 1, is lower.
            Intent::Ask(_) => format!("DLOCK.CONFIRM {key} {token} 1 1"),
            Intent::Extend(_, lease) => format!("DLOCK.EXTEND {key} {token} {lease}"),
            Intent::Release(_) => format!("DLOCK.RELEASE {key} {token} ALL"),
        };
        words.split_whitespace().map(str::to_string).collect()
    }

    /// Sends the commands. Returns the time just before the write.
    fn send(&mut self, wire: &mut Wire, intents: &[Intent]) -> io::Result<At> {
        let bytes: Vec<u8> = intents.iter().flat_map(|intent| encode(&self.command(intent))).collect();
        let sent = self.clock.now();
        intents.iter().for_each(|intent| self.assume_worst(intent, sent));
        wire.send(&bytes)?;
        Ok(sent)
    }

    fn receive(&mut self, wire: &mut Wire, intents: &[Intent], sent: At) -> io::Result<()> {
        let (mut in_grace, mut no_master) = (false, false);
        for intent in intents {
            let answer = wire.value(Instant::now() + self.plan.timeout)?;
            let answer =
                answer.unwrap_or_else(|| panic!("{} is not answered: {:?}", self.name, self.command(intent)));
            if let Value::Error(line) = &answer {
                in_grace |= line.starts_with("GRACE");
                no_master |= ["READONLY", "UNBLOCKED", "LOADING", "MASTERDOWN", "NOREPLICAS"]
                    .iter()
                    .any(|word| line.starts_with(word));
            }
            self.record_reply(intent, &answer, sent, self.clock.now());
        }
        if in_grace || no_master {
            sleep(Duration::from_millis(5));
        }
        if no_master { Err(ErrorKind::ConnectionAborted.into()) } else { Ok(()) }
    }

    /// Updates the records to the worst outcome of a command that is about to be sent.
    fn assume_worst(&mut self, intent: &Intent, now: At) {
        let hold = &mut self.holds[intent.hold()];
        let relies_until = match intent {
            Intent::Acquire(..) => {
                hold.asked = now;
                return self.unknown.push(intent.hold());
            }
            Intent::Ask(_) => return,
            Intent::Extend(index, lease) => {
                // A hold that is not in `mine` was in `unsure`, until `choose` removed it. If there is no
                // reply, the server may still have the hold.
                if !self.mine.contains(index) {
                    self.unknown.push(*index);
                }
                now + lease * 1000
            }
            Intent::Release(index) => {
                self.mine.retain(|other| other != index);
                self.unknown.retain(|other| other != index);
                self.queued.retain(|other| other != index);
                self.unknown.push(*index);
                now
            }
        };
        if let Some(grant) = &mut hold.grant {
            grant.until = grant.until.min(relies_until);
        }
    }

    fn record_reply(&mut self, intent: &Intent, answer: &Value, sent: At, now: At) {
        if let Value::Error(line) = answer {
            let word = line.split(' ').next().unwrap_or_default();
            *self.errors.entry(word.to_string()).or_default() += 1;
            // A refused acquisition has no hold, except after UNBLOCKED, because the lock may have been
            // granted just before the server changed its role. After a refused release, the hold stays in
            // `unknown`, so the client releases it again after a reconnect.
            if matches!(intent, Intent::Acquire(..)) && word != "UNBLOCKED" {
                self.unknown.retain(|other| *other != intent.hold());
            }
            return;
        }
        let index = intent.hold();
        let hold = &mut self.holds[index];
        match intent {
            Intent::Acquire(_, lease, options) => {
                if options.contains(&"EPHEMERAL") {
                    self.ephemeral.push(index);
                }
                if answer.is_nil() && options.iter().any(|option| option.contains("QUEUE")) {
                    return self.queued.push(index);
                }
                self.unknown.retain(|other| *other != index);
                let Value::Int(fence) = answer else {
                    hold.ended = Some(now);
                    return;
                };
                hold.grant = Some(Grant { fence: *fence, at: now, until: sent + lease * 1000 });
                let lease_still_runs = sent + lease * 1000 > now;
                if lease_still_runs {
                    self.mine.push(index)
                } else {
                    self.unsure.push(index)
                };
                self.granted += 1;
            }
            Intent::Ask(_) => {
                let Value::Int(fence) = answer else { return };
                // The client does not rely on the hold yet, because it does not know the end of the lease.
                hold.grant = Some(Grant { fence: *fence, at: now, until: sent });
                self.queued.retain(|other| *other != index);
                self.unknown.retain(|other| *other != index);
                self.unsure.push(index);
                self.granted += 1;
                self.found_granted += 1;
            }
            Intent::Extend(_, lease) => {
                self.unknown.retain(|other| *other != index);
                let Some(grant) = &mut hold.grant else { return };
                if *answer == 1 {
                    grant.until = sent + lease * 1000;
                    if !self.mine.contains(&index) {
                        self.mine.push(index);
                    }
                } else if grant.until > now {
                    grant.until = sent;
                    self.denied.push(format!("{hold:?} is not extended at {now}"));
                }
            }
            Intent::Release(_) => {
                self.unknown.retain(|other| *other != index);
                hold.ended = Some(now);
                self.released += usize::from(*answer == 1);
            }
        }
    }
}
