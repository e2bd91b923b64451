//! A cluster client that follows redirects and records its holds.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use dlock_testkit::history::{At, Grant, Hold, Mode};
use dlock_testkit::workers::Clock;
use dlock_testkit::{Random, TIMEOUT, Value, Wire, encode};

pub struct Client<'a> {
    name: String,
    clock: Clock,
    random: Random,
    keys: &'a [String],
    wires: HashMap<u16, Wire>,
    /// Last known port of the node of each key.
    nodes: HashMap<String, u16>,
    /// Port of the node to ask for a key whose node is not known.
    first: u16,
    /// Holds with the port of the node that granted each.
    pub holds: Vec<(u16, Hold)>,
    /// Extensions and releases that the server denied although the lease had not ended.
    pub denied: Vec<String>,
    /// Number of MOVED and ASK replies.
    pub redirected: usize,
    /// Number of TRYAGAIN replies.
    pub try_again: usize,
}

pub struct Answer {
    pub answer: Value,
    /// Time just before the request to the node that answered.
    sent: At,
    /// Port of the node that answered.
    node: u16,
}

impl<'a> Client<'a> {
    pub fn new(name: String, keys: &'a [String], first: u16, clock: Clock, random: Random) -> Client<'a> {
        Client {
            name,
            clock,
            random,
            keys,
            wires: HashMap::new(),
            nodes: HashMap::new(),
            first,
            holds: Vec::new(),
            denied: Vec::new(),
            redirected: 0,
            try_again: 0,
        }
    }

    /// Acquires a lock with or without a wait, extends it sometimes, and releases it. Returns true if it was
    /// granted.
    pub fn lock_once(&mut self) -> bool {
        const LEASE: u64 = 2_000;
        let key = self.random.of(self.keys).clone();
        let token = format!("{}-{}", self.name, self.holds.len());
        let wait = *self.random.of(&["", "BLOCK 0", "BLOCK 0", "BLOCK 100"]);
        let asked = self.clock.now();
        let Answer { answer, sent, node } =
            self.ask(&key, &format!("DLOCK.ACQUIRE {key} {token} {LEASE} {wait}"));
        let at = self.clock.now();
        let fence = match answer {
            Value::Int(fence) => fence,
            Value::Nil if wait != "BLOCK 0" => return false,
            other => panic!("{token} on {key} {wait}: {other:?}"),
        };
        let mut grant = Grant { fence, at, until: sent + LEASE * 1000 };
        if self.random.once_in(2) {
            let Answer { answer, sent, .. } = self.ask(&key, &format!("DLOCK.EXTEND {key} {token} {LEASE}"));
            let now = self.clock.now();
            match answer {
                Value::Int(1) => grant.until = sent + LEASE * 1000,
                _ if now < grant.until => self.denied.push(format!("{token} on {key} at {now}: {answer:?}")),
                _ => {}
            }
        }
        // The client relies on the lock until it sends the RELEASE.
        let relied_until = self.clock.now();
        let Answer { answer, .. } = self.ask(&key, &format!("DLOCK.RELEASE {key} {token}"));
        let now = self.clock.now();
        if answer != 1 && now < grant.until {
            self.denied.push(format!("{token} on {key} at {now}: {answer:?}"));
        }
        grant.until = grant.until.min(relied_until);
        let hold = Hold { key, token, mode: Mode::Exclusive, asked, grant: Some(grant), ended: Some(now) };
        self.holds.push((node, hold));
        true
    }

    /// Sends a command, and returns the first answer that is neither a redirect nor TRYAGAIN.
    pub fn ask(&mut self, key: &str, command: &str) -> Answer {
        let words: Vec<&str> = command.split_whitespace().collect();
        let (mut node, mut asking) = (*self.nodes.get(key).unwrap_or(&self.first), false);
        for _ in 0..100_000 {
            let sent = self.clock.now();
            let answer = self.call(node, asking, &words);
            asking = false;
            let Value::Error(line) = &answer else {
                return Answer { answer, sent, node };
            };
            let error: Vec<&str> = line.split(' ').collect();
            let port = |error: &[&str]| error[2].rsplit(':').next().and_then(|port| port.parse().ok());
            match error[0] {
                "MOVED" => {
                    node = port(&error).expect("the reply names a port");
                    self.nodes.insert(key.to_string(), node);
                    self.redirected += 1;
                }
                "ASK" => {
                    (node, asking) = (port(&error).expect("the reply names a port"), true);
                    self.redirected += 1;
                }
                "TRYAGAIN" => {
                    node = *self.nodes.get(key).unwrap_or(&self.first);
                    self.try_again += 1;
                }
                _ => return Answer { answer, sent, node },
            }
        }
        panic!("{command}: 100,000 redirects or TRYAGAIN replies, and no answer");
    }

    fn call(&mut self, node: u16, asking: bool, words: &[&str]) -> Value {
        let wire = self.wires.entry(node).or_insert_with(|| Wire::connect(node).expect("the node answers"));
        let mut bytes = if asking { encode(&["ASKING"]) } else { Vec::new() };
        bytes.extend(encode(words));
        wire.send(&bytes).expect("the node is alive");
        let answers = (0..1 + usize::from(asking)).map(|_| {
            // A request with BLOCK may be answered only after the lease of another client has ended.
            let answer =
                wire.value(Instant::now() + TIMEOUT + Duration::from_secs(20)).expect("the node is alive");
            answer.unwrap_or_else(|| panic!("{words:?} is never answered"))
        });
        answers.last().expect("a reply")
    }
}
