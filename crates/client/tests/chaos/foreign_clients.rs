//! Clients in other languages (`clients/fleet`), each in a process that prints its actions.
//! `DLOCK_CHAOS_CLIENTS` names the programs, separated by semicolons; by default there are none. Those of
//! `DLOCK_CHAOS_SINGLE` support no quorum. `DLOCK_CHAOS_FAILOVERS` names those that support clusters and
//! Sentinel.

use std::env;
use std::io::{BufRead, BufReader};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use nix::time::{ClockId, clock_gettime};

use crate::contender::Stage;
use dlock_testkit::history::{At, Grant, Hold, Mode};

pub struct ForeignClient {
    number: usize,
    program: String,
    process: Child,
}

pub fn programs() -> Vec<String> {
    named("DLOCK_CHAOS_CLIENTS")
}

/// Returns the programs that work with this number of servers.
pub fn programs_for(servers: usize) -> Vec<String> {
    let mut programs = programs();
    if servers == 1 {
        programs.extend(named("DLOCK_CHAOS_SINGLE"));
    }
    programs
}

/// Returns the programs that work with clusters and Sentinel.
pub fn programs_for_failovers() -> Vec<String> {
    named("DLOCK_CHAOS_FAILOVERS")
}

fn named(variable: &str) -> Vec<String> {
    let named = env::var(variable).unwrap_or_default();
    named.split(';').map(str::trim).filter(|program| !program.is_empty()).map(String::from).collect()
}

/// Returns the kind of a client, which is the last word of its command, for example `asyncio`.
pub fn kind(program: &str) -> String {
    program.rsplit(' ').next().unwrap_or(program).to_string()
}

impl ForeignClient {
    /// Starts the client, which runs until its input is dropped.
    /// `resources` are the names of the locks, separated by spaces; by default, the client chooses.
    pub fn start(
        number: usize,
        program: &str,
        urls: &[String],
        lease: Duration,
        resources: Option<&str>,
    ) -> (Self, ChildStdin) {
        Self::spawn(number, program, urls, lease, resources.map(|names| ("DLOCK_RESOURCES", names)))
    }

    /// Like [`ForeignClient::start`], for a client that causes no faults itself and holds each lock for 5 ms.
    pub fn start_steady(
        number: usize,
        program: &str,
        urls: &[String],
        lease: Duration,
        resources: &str,
    ) -> (Self, ChildStdin) {
        Self::spawn(number, program, urls, lease, [("DLOCK_RESOURCES", resources), ("DLOCK_STEADY", "5")])
    }

    fn spawn<'a>(
        number: usize,
        program: &str,
        urls: &[String],
        lease: Duration,
        variables: impl IntoIterator<Item = (&'a str, &'a str)>,
    ) -> (Self, ChildStdin) {
        let mut words = program.split_whitespace();
        let mut command = Command::new(words.next().expect("a program"));
        command.args(words).arg(number.to_string()).arg(lease.as_millis().to_string()).args(urls);
        command.envs(variables);
        let piped = command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = piped.spawn().unwrap_or_else(|why| panic!("{program}: {why}"));
        let input = process.stdin.take().expect("a pipe");
        (ForeignClient { number, program: program.into(), process }, input)
    }

    pub fn pid(&self) -> u32 {
        self.process.id()
    }

    /// Reads the client's output until it ends, and returns the holds. A client prints `holds` when it has
    /// acquired a lock, or `none` if it has not, `writes` for each write, which this function carries out,
    /// `lost` if the hold was lost, `overdue` if an acquisition or a release took too long, and `held` with
    /// the times of the hold when the hold ends.
    pub fn follow(mut self, stage: &Stage) -> Vec<Hold> {
        let mut holds = Vec::new();
        // The clients' clock, CLOCK_MONOTONIC, stops while the machine is suspended. The history's does not.
        let offset = offset();
        let (_, acquired) = &stage.acquired[self.number];
        let output = BufReader::new(self.process.stdout.take().expect("a pipe"));
        for line in output.lines() {
            let line = line.expect("text");
            match *line.split(' ').collect::<Vec<_>>() {
                ["holds"] => _ = acquired.fetch_add(1, Relaxed),
                ["none"] => _ = stage.counts.not_won.fetch_add(1, Relaxed),
                ["overdue", what, ms] => {
                    let kind = &stage.acquired[self.number].0;
                    stage.overdue.lock().expect("no panic").push(format!("{what} of {kind}: {ms} ms"));
                }
                ["lost"] => _ = stage.counts.lost.fetch_add(1, Relaxed),
                ["writes", resource, fence, hold_name] => {
                    if !stage.store.append(resource, parse(fence) as i64, hold_name) {
                        stage.counts.refused.fetch_add(1, Relaxed);
                    }
                }
                ["held", resource, fence, hold_name, asked, at, until] => {
                    let [asked, at, until] = [asked, at, until].map(|moment| parse(moment) + offset);
                    let grant = Some(Grant { fence: parse(fence) as i64, at, until });
                    let (key, token, mode) = (resource.into(), hold_name.into(), Mode::Exclusive);
                    // `ended` is compared only with reports of the servers, and this history has none.
                    holds.push(Hold { key, token, mode, asked, grant, ended: None });
                }
                // The harness of a Rust test prints, too: see `messages.rs`.
                _ if self.program.ends_with("--nocapture") => {}
                _ => panic!("{} printed {line:?}", self.program),
            }
        }
        let status = self.process.wait().expect("the client ends");
        assert!(status.success(), "{}: {status}", self.program);
        holds
    }
}

fn parse(word: &str) -> At {
    word.parse().unwrap_or_else(|why| panic!("{word:?}: {why}"))
}

/// Returns the boot-time clock minus CLOCK_MONOTONIC, in µs: the smallest of several differences, because a
/// delay between the two readings makes a difference greater.
pub fn offset() -> At {
    let difference = || {
        let earlier = micros(ClockId::CLOCK_MONOTONIC);
        micros(ClockId::CLOCK_BOOTTIME) - earlier
    };
    (0..100).map(|_| difference()).min().expect("100 differences")
}

#[allow(clippy::disallowed_methods, reason = "it compares two clocks")]
fn micros(clock: ClockId) -> At {
    Duration::from(clock_gettime(clock).expect("the system has this clock")).as_micros() as At
}
