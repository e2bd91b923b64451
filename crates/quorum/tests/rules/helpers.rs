//! Constants, constructors, and functions that pass answers to a round, for the tests in `rules/`.

use dlock_quorum::*;
use dlock_testkit::seed;
use proptest::prelude::ProptestConfig;
use proptest::test_runner::RngSeed;
use std::time::Duration;

/// The length of the lease.
pub const TTL: Duration = Duration::from_secs(10);
/// The part of the lease that a client trusts, in ms: 1 % and 2 ms less than the lease.
pub const VALIDITY: u64 = 9_898;

pub fn at(ms: u64) -> Instant {
    Instant::since_boot(Duration::from_millis(ms))
}

pub fn plan(members: u8, fenced: bool) -> Plan {
    let quorum = Quorum::new(members).unwrap();
    Plan { quorum, lease: Lease::new(TTL).unwrap(), fenced, retries: 0 }
}

pub fn fence(number: u64) -> Fence {
    Fence::from_outside(number).unwrap()
}

pub fn granted(number: u64) -> Vote {
    Vote::Granted(fence(number))
}

pub fn taken() -> Vote {
    Vote::Refused(Refusal::Taken)
}

pub fn down() -> Vote {
    Vote::Failed(Failure::Down("connection refused".into()))
}

pub fn confirm(number: u64, phase: u8) -> Request {
    Request::Confirm { fence: fence(number), phase }
}

/// Returns the members to which `what` is sent, in the order of `sends`.
pub fn sent(sends: &Sends, what: Request) -> Vec<u8> {
    sends.iter().filter(|send| send.what == what).map(|send| send.to.0).collect()
}

/// Passes votes to the round as answers to ACQUIRE, one per millisecond from `now` on. Returns the progress
/// after the last.
pub fn vote(round: &mut Round, now: u64, votes: &[(u8, Vote)]) -> Progress {
    reply(round, now, Request::Acquire, votes)
}

/// Passes votes to the round as answers to `what`, one per millisecond from `now` on. Returns the progress
/// after the last.
pub fn reply(round: &mut Round, now: u64, what: Request, votes: &[(u8, Vote)]) -> Progress {
    let mut last = None;
    for ((member, vote), now) in votes.iter().zip(now..) {
        last = Some(round.answered(Member(*member), what, vote.clone(), at(now)));
    }
    last.unwrap()
}

/// Passes the outcome of a wait to the round.
pub fn waited(round: &mut Round, now: u64, at_member: u8, outcome: Vote<()>) -> Progress {
    round.waited(Member(at_member), outcome, at(now))
}

pub fn acquired(number: Option<u64>, valid_until: u64) -> Verdict {
    Verdict::Acquired(Acquired { fence: number.map(fence), valid_until: at(valid_until) })
}

/// Returns the configuration of a random test, and prints its seed.
pub fn config(cases: u32) -> ProptestConfig {
    let seed = seed();
    println!("DLOCK_SEED={seed} repeats this run");
    let rng_seed = RngSeed::Fixed(seed);
    ProptestConfig { cases, rng_seed, failure_persistence: None, ..ProptestConfig::default() }
}
