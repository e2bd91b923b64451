//! Searches the states of one world, and checks its properties and its expected events. Each expected event
//! must happen in some state: without these events, the properties would prove nothing.

use stateright::{Checker, CheckerBuilder, Expectation, HasDiscoveries, Model, Property};
use std::fmt::Debug;
use std::hash::Hash;
use std::time::Instant;

/// A world that the checker can search.
pub trait World:
    Model<State: SearchedState, Action: Debug + Clone + PartialEq> + Send + Sync + 'static
{
}
impl<M: Model<State: SearchedState, Action: Debug + Clone + PartialEq> + Send + Sync + 'static> World for M {}

pub trait SearchedState: Debug + Clone + PartialEq + Hash + Send + Sync + 'static {}
impl<S: Debug + Clone + PartialEq + Hash + Send + Sync + 'static> SearchedState for S {}

/// Searches all states of the world. Every property must be true, and every expected event must happen.
pub fn check(name: &str, world: impl World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    report(name, &found, begin);
    found.assert_properties();
    assert!(is_finished(&found), "{name}: more steps than DLOCK_MODEL_STEPS");
}

/// Like [`check`], but the expected events need not happen. For a world in which only one of the clients can
/// acquire the lock.
pub fn check_without_events(name: &str, world: impl World) {
    let begin = Instant::now();
    let found = checker(world).spawn_bfs().join();
    report(name, &found, begin);
    assert!(is_finished(&found), "{name}: more steps than DLOCK_MODEL_STEPS");
    assert_no_violation(&found);
}

/// Like [`check`], but the search stops once every expected event has happened.
pub fn check_until_events<W: World>(name: &str, world: W) {
    let begin = Instant::now();
    let expected = |property: &Property<W>| property.expectation == Expectation::Sometimes;
    let all = world.properties().into_iter().filter(expected).map(|property| property.name).collect();
    let found = checker(world).finish_when(HasDiscoveries::AllOf(all)).spawn_bfs().join();
    report(name, &found, begin);
    found.assert_properties();
}

/// Like [`check`], but for a world that may have too many states. If the search reaches `limit`, the
/// properties must be true in the searched part, and the expected events need not happen.
pub fn check_part(name: &str, world: impl World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    report(name, &found, begin);
    if is_finished(&found) {
        return found.assert_properties();
    }
    assert_no_violation(&found);
}

/// Checks that the world violates `property`. Finds the shortest sequence of steps to a violation.
pub fn expect_violation(name: &str, property: &'static str, world: impl World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    report(name, &found, begin);
    show_violation(name, property, &found);
}

/// Like [`expect_violation`], but searches depth first. This search takes less time if the violation needs
/// many steps. Its sequence of steps is not the shortest.
pub fn expect_deep_violation(name: &str, property: &'static str, world: impl World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_dfs().join();
    report(name, &found, begin);
    show_violation(name, property, &found);
}

fn show_violation<W: World>(name: &str, property: &'static str, found: &impl Checker<W>) {
    let path = found.discovery(property).unwrap_or_else(|| panic!("{name}: found no violation"));
    let steps = path.into_actions();
    println!("    violated after {} steps: {property}", steps.len());
    if std::env::var_os("DLOCK_MODEL_SHOW").is_some() {
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
}

/// Asserts that the properties are true in the searched states, whether or not the expected events happened.
fn assert_no_violation<W: World>(found: &impl Checker<W>) {
    for property in found.model().properties() {
        if property.expectation == Expectation::Always {
            found.assert_no_discovery(property.name);
        }
    }
}

fn checker<W: World>(world: W) -> CheckerBuilder<W> {
    world.checker().target_state_count(limit())
}

/// Returns the maximum number of steps. Without a limit, the search of a large world would use up the memory:
/// a state has about 500 bytes, and one in five steps leads to a new state.
fn limit() -> usize {
    std::env::var("DLOCK_MODEL_STEPS").ok().and_then(|limit| limit.parse().ok()).unwrap_or(20_000_000)
}

fn is_finished<W: World>(found: &impl Checker<W>) -> bool {
    found.state_count() < limit()
}

fn report<W: World>(name: &str, found: &impl Checker<W>, begin: Instant) {
    let (states, steps, depth) = (found.unique_state_count(), found.state_count(), found.max_depth());
    let seconds = begin.elapsed().as_secs_f32();
    let end = if is_finished(found) { "" } else { " (not finished)" };
    println!("{name}: {states} states, {steps} steps, depth {depth}, {seconds:.1} s{end}");
}
