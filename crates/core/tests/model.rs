//! Random runs of the core against a reference model (`model/reference.rs`).

pub mod check;
pub mod content;
pub mod moves;
pub mod reference;
mod storage;
pub mod system;

use std::collections::BTreeMap;
use std::sync::Mutex;

use proptest::prelude::*;
use proptest::test_runner::{Config, RngSeed, TestRunner};
use proptest_state_machine::{ReferenceStateMachine, StateMachineTest};

use check::SOMETIMES;
use moves::Move;
use reference::{Answer, GREATEST_FENCE, Model};
use system::System;

/// The number of runs. The whole suite takes less than a minute on one core.
const CASES: u32 = 10_000;
const MAX_MOVES: usize = if cfg!(miri) { 15 } else { 60 };

/// The model, with its answer to the last move.
#[derive(Clone, Debug)]
struct Reference {
    model: Model,
    answer: Answer,
}

impl ReferenceStateMachine for Reference {
    type State = Reference;
    type Transition = Move;

    fn init_state() -> BoxedStrategy<Reference> {
        let now = (0..3000u64).prop_map(|us| 1_760_000_000_000_000 + us);
        // In a few runs, the fences are used up after three grants.
        let last = prop_oneof![40 => Just(0), 1 => Just(GREATEST_FENCE - 3)];
        let max_grants = prop_oneof![1 => 1..3usize, 1 => Just(usize::MAX)];
        (now, last, max_grants)
            .prop_map(|(now, last_fence, max_grants_per_turn)| Reference {
                model: Model { now, last_fence, max_grants_per_turn, ..Model::default() },
                answer: Answer::Nothing,
            })
            .boxed()
    }

    fn transitions(state: &Reference) -> BoxedStrategy<Move> {
        moves::moves(&state.model)
    }

    fn apply(mut state: Reference, step: &Move) -> Reference {
        state.answer = state.model.make(step);
        state
    }

    fn preconditions(state: &Reference, step: &Move) -> bool {
        state.model.can_make(step)
    }
}

/// The number of times that each situation of [`check::SOMETIMES`] has occurred.
static SEEN: Mutex<BTreeMap<&str, u64>> = Mutex::new(BTreeMap::new());

struct Core;

impl StateMachineTest for Core {
    type SystemUnderTest = System;
    type Reference = Reference;

    fn init_test(state: &Reference) -> System {
        let Model { now, last_fence, max_grants_per_turn, .. } = state.model;
        System { max_grants_per_turn, ..System::new(now, last_fence) }
    }

    fn apply(mut system: System, reference: &Reference, step: Move) -> System {
        let answer = system.make(step.clone());
        check::assert_agreement(&system, &reference.model, &step, &answer, &reference.answer);
        check::assert_invariants(&system, &step);
        let mut seen = SEEN.lock().expect("no panic");
        for situation in reference.model.marks.iter().chain(&system.marks) {
            *seen.entry(situation).or_default() += 1;
        }
        drop(seen);
        system
    }
}

#[test]
fn the_core_agrees_with_the_model_in_random_runs() {
    let cases = crate::cases(CASES);
    let seed = crate::seed();
    println!("{cases} cases, DLOCK_SEED={seed}");
    let config = Config {
        cases,
        rng_seed: RngSeed::Fixed(seed),
        failure_persistence: None,
        max_shrink_iters: 100_000,
        // A move that is not possible in the current state is replaced by another random one.
        max_local_rejects: u32::MAX,
        ..Config::default()
    };
    let runs = Reference::sequential_strategy(1..MAX_MOVES);
    let result = TestRunner::new(config.clone()).run(&runs, |(initial, steps, seen)| {
        Core::test_sequential(config.clone(), initial, steps, seen);
        Ok(())
    });
    if let Err(why) = result {
        panic!("DLOCK_SEED={seed}: {why}");
    }
    let seen = SEEN.lock().expect("no panic").clone();
    println!("{seen:#?}");
    let never: Vec<_> = SOMETIMES.iter().filter(|situation| !seen.contains_key(*situation)).collect();
    assert!(cases < CASES || never.is_empty(), "never happened: {never:?} (DLOCK_SEED={seed})");
    let unknown: Vec<_> = seen.keys().filter(|situation| !SOMETIMES.contains(situation)).collect();
    assert!(unknown.is_empty(), "add to SOMETIMES: {unknown:?}");
}

/// Runs that consist mostly of waits: in runs with all moves, deadlocks (cycles of waits) are rare.
#[test]
fn deadlocks_are_found_and_none_is_false_in_random_runs() {
    let found = Mutex::new((0, 0));
    crate::random(moves::waits(), CASES, |steps| {
        let mut model = Model { now: 1, max_grants_per_turn: usize::MAX, ..Model::default() };
        let mut system = System::new(1, 0);
        for step in steps {
            if !model.can_make(&step) {
                continue;
            }
            let expected = model.make(&step);
            let answer = system.make(step.clone());
            check::assert_agreement(&system, &model, &step, &answer, &expected);
            let mut found = found.lock().expect("no panic");
            found.0 += u32::from(answer == Answer::Deadlock);
            found.1 += u32::from(answer == Answer::Waits);
        }
    });
    let (cycles, waits) = *found.lock().expect("no panic");
    println!("{cycles} cycles, {waits} waits");
    assert!(crate::cases(CASES) < CASES || cycles > 100 && waits > 100);
}
