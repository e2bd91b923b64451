//! Rounds with random answers in random order. Each outcome is checked against the requests and answers
//! of the run, without a second implementation of the rules. `attempts.rs` shows that no round hangs.

use super::helpers::*;
use dlock_quorum::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

/// An answer to a request.
#[derive(Debug, Clone)]
struct Event {
    /// Selects the request, modulo the number of requests.
    index: usize,
    vote: Vote,
    /// Time since the previous event, in ms.
    elapsed: u64,
}

fn events() -> impl Strategy<Value = Vec<Event>> {
    let vote = prop_oneof![
        12 => (1..6_u64).prop_map(granted),
        1 => Just(taken()),
        1 => Just(down()),
        1 => Just(Vote::Unknown),
        1 => Just(Vote::Refused(Refusal::NotHeld)),
        1 => Just(Vote::Refused(Refusal::FenceAhead)),
    ];
    let event = (any::<prop::sample::Index>(), vote, prop_oneof![9 => 0..50_u64, 1 => 0..6_000_u64]);
    let event = event.prop_map(|(index, vote, elapsed)| Event { index: index.index(1 << 20), vote, elapsed });
    prop::collection::vec(event, 0..60)
}

/// The history of a run: the requests with their times in ms, the answers, and the verdict.
#[derive(Default)]
struct History {
    sends: Vec<(Outgoing, u64)>,
    answers: Vec<(Outgoing, Vote)>,
    acquired: Option<(Acquired, u64)>,
    failed: bool,
}

/// Runs a round with `copies` of each answer. A request can get several answers.
fn play(mut round: Round, sends: Sends, events: &[Event], copies: usize) -> History {
    let mut history = History::default();
    let mut now = 0;
    history.sends.extend(sends.into_iter().map(|send| (send, now)));
    for event in events {
        now += event.elapsed;
        let sent: Vec<Outgoing> = history.sends.iter().map(|(send, _)| *send).collect();
        let send = sent[event.index % sent.len()];
        // The round ignores answers to these requests.
        if matches!(send.what, Request::Release | Request::Leave) {
            continue;
        }
        for _ in 0..copies {
            let progress = answer(&mut round, send, event.vote.clone(), now);
            history.answers.push((send, event.vote.clone()));
            history.sends.extend(progress.sends.into_iter().map(|send| (send, now)));
            match progress.verdict {
                Verdict::Acquired(acquired) => {
                    assert!(history.acquired.replace((acquired, now)).is_none(), "acquired twice")
                }
                Verdict::Failed(_) => assert!(!std::mem::replace(&mut history.failed, true), "failed twice"),
                Verdict::TryAgain => {
                    let again = round.ask_again();
                    history.sends.extend(again.into_iter().map(|send| (send, now)));
                }
                Verdict::Open => {}
            }
        }
    }
    history
}

fn answer(round: &mut Round, send: Outgoing, vote: Vote, now: u64) -> Progress {
    match send.what {
        Request::Wait => round.waited(send.to, vote.map(|_| ()), at(now)),
        what => round.answered(send.to, what, vote, at(now)),
    }
}

impl History {
    /// Returns the members with an answer for which both conditions are true.
    fn members(&self, what: impl Fn(Request) -> bool, vote: impl Fn(&Vote) -> bool) -> BTreeSet<Member> {
        let answers = self.answers.iter().filter(|(send, answer)| what(send.what) && vote(answer));
        answers.map(|(send, _)| send.to).collect()
    }

    fn check(&self, plan: Plan) {
        assert!(self.acquired.is_none() || !self.failed);
        let releases = self.sends.iter().filter(|(send, _)| send.what == Request::Release).count();
        assert_eq!(releases, if self.failed { plan.quorum.members().count() } else { 0 });
        let Some((acquired, when)) = self.acquired else { return };
        assert!(at(when) < acquired.valid_until);
        let majority = plan.quorum.majority();
        let acquires = |what| what == Request::Acquire;
        let grants = self.members(acquires, |vote| matches!(vote, Vote::Granted(_)));
        assert!(grants.len() >= majority, "a majority granted ACQUIRE");
        // A round without fences, or with a single member, has no confirm phase.
        if !plan.fenced || majority == 1 {
            let first = self.sends.iter().find(|(send, _)| acquires(send.what)).unwrap().1;
            assert_eq!(acquired.valid_until, plan.lease.valid_until(at(first)));
            return;
        }
        // A round can have several confirm phases. A majority confirmed the last one, and each of these
        // members had granted ACQUIRE.
        let phases = self.sends.iter().filter_map(|(send, _)| match send.what {
            Request::Confirm { phase, fence } => Some((phase, fence)),
            _ => None,
        });
        let (phase, fence) = phases.max().expect("acquired without a confirm phase");
        let last_confirm = Request::Confirm { fence, phase };
        assert_eq!(acquired.fence, Some(fence));
        let begun = self.sends.iter().find(|(send, _)| send.what == last_confirm).unwrap().1;
        assert_eq!(acquired.valid_until, plan.lease.valid_until(at(begun)));
        let confirmed_by = self.members(|asked| asked == last_confirm, |vote| *vote == Vote::Granted(fence));
        assert!(confirmed_by.intersection(&grants).count() >= majority);
    }
}

proptest! {
    #![proptest_config(config(4_000))]

    /// Validity counts from the first ACQUIRE, or from the first request of the last confirm phase, if there
    /// is one.
    #[test]
    fn a_round_acquires_only_with_a_majority_and_validity_counts_from_a_request(
        members in 1..6_u8, fenced: bool, waits: bool, retries in 0..3_u8, events in events(),
    ) {
        let plan = Plan { retries, ..plan(members, fenced) };
        let order: Vec<Member> = plan.quorum.members().collect();
        let (round, sends) = match waits {
            true => Round::begin(plan, Start::Queued, &order, at(0)),
            false => Round::begin(plan, Start::AtOnce, &[], at(0)),
        };
        play(round, sends, &events, 1).check(plan);
    }

    /// Every answer arrives three times.
    #[test]
    fn a_duplicate_answer_changes_nothing(members in 1..6_u8, fenced: bool, events in events()) {
        let plan = plan(members, fenced);
        let outcome = |copies| {
            let (round, sends) = Round::begin(plan, Start::AtOnce, &[], at(0));
            let history = play(round, sends, &events, copies);
            (history.acquired, history.failed, history.sends)
        };
        prop_assert_eq!(outcome(1), outcome(3));
    }
}

/// Shows that the generator reaches the cases that the tests above are for.
#[test]
fn random_runs_acquire_fail_and_repeat_the_confirm_phase() {
    use proptest::strategy::ValueTree;
    use proptest::test_runner::TestRunner;
    let mut runner = TestRunner::deterministic();
    let (mut acquired, mut failed, mut repeated) = (0, 0, 0);
    for _ in 0..2_000 {
        let events = events().new_tree(&mut runner).unwrap().current();
        let (round, sends) = Round::begin(plan(3, true), Start::AtOnce, &[], at(0));
        let history = play(round, sends, &events, 1);
        acquired += usize::from(history.acquired.is_some());
        failed += usize::from(history.failed);
        let in_second_phase =
            |(send, _): &(Outgoing, u64)| matches!(send.what, Request::Confirm { phase: 1.., .. });
        repeated += usize::from(history.sends.iter().any(in_second_phase));
    }
    assert!(acquired > 50 && failed > 50 && repeated > 50, "{acquired} {failed} {repeated}");
}
