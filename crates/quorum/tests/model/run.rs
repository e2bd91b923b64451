//! Searches of one world, to the end or to the first violation.

use super::world::World;
use stateright::{Checker, CheckerBuilder, Expectation, HasDiscoveries, Model, Property};
use std::time::Instant;

/// Searches the world to the end. Every property must hold, and every expected event must happen in some run.
pub fn holds(name: &str, world: World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    report(name, &found, begin);
    found.assert_properties();
    assert!(is_finished(&found), "{name}: more steps than DLOCK_MODEL_STEPS");
}

/// Like [`holds`], but without the expected events: in this world, two of three clients never acquire.
pub fn holds_always(name: &str, world: World) {
    let begin = Instant::now();
    let found = checker(world).spawn_bfs().join();
    report(name, &found, begin);
    assert!(is_finished(&found), "{name}: more steps than DLOCK_MODEL_STEPS");
    let always = found.model().properties().into_iter();
    always
        .filter(|property| property.expectation == Expectation::Always)
        .for_each(|property| found.assert_no_discovery(property.name));
}

/// Like [`holds`], but the search stops when every expected event has happened.
pub fn holds_some(name: &str, world: World) {
    let begin = Instant::now();
    let expected = |property: &Property<World>| property.expectation == Expectation::Sometimes;
    let all = world.properties().into_iter().filter(expected).map(|property| property.name).collect();
    let found = checker(world).finish_when(HasDiscoveries::AllOf(all)).spawn_bfs().join();
    report(name, &found, begin);
    found.assert_properties();
}

/// Like [`holds`], but for a world that may be too large to search to the end: no property may be violated in
/// the searched part.
pub fn holds_so_far(name: &str, world: World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyFailures).spawn_bfs().join();
    report(name, &found, begin);
    if is_finished(&found) {
        return found.assert_properties();
    }
    for property in found.model().properties() {
        if property.expectation == Expectation::Always {
            found.assert_no_discovery(property.name);
        }
    }
}

/// Checks that a broken rule violates `property`. Finds the shortest sequence of steps.
pub fn violates(name: &str, property: &'static str, world: World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_bfs().join();
    report(name, &found, begin);
    show(name, property, &found);
}

/// Like [`violates`], but searches depth first, because the violation needs many steps.
pub fn violates_deep(name: &str, property: &'static str, world: World) {
    let begin = Instant::now();
    let found = checker(world).finish_when(HasDiscoveries::AnyOf([property].into())).spawn_dfs().join();
    report(name, &found, begin);
    show(name, property, &found);
}

fn show(name: &str, property: &'static str, found: &impl Checker<World>) {
    let path = found.discovery(property).unwrap_or_else(|| panic!("{name}: found no violation"));
    let steps = path.into_actions();
    println!("    violated after {} steps: {property}", steps.len());
    if std::env::var_os("DLOCK_MODEL_SHOW").is_some() {
        steps.iter().for_each(|step| println!("    {step:?}"));
    }
}

/// The limit is a number of steps, because memory runs out first: a state takes about 500 bytes, and one in
/// five steps leads to a new state.
fn checker(world: World) -> CheckerBuilder<World> {
    world.checker().target_state_count(limit())
}

fn limit() -> usize {
    std::env::var("DLOCK_MODEL_STEPS").ok().and_then(|limit| limit.parse().ok()).unwrap_or(20_000_000)
}

fn is_finished(found: &impl Checker<World>) -> bool {
    found.state_count() < limit()
}

fn report(name: &str, found: &impl Checker<World>, begin: Instant) {
    let (states, steps, depth) = (found.unique_state_count(), found.state_count(), found.max_depth());
    let seconds = begin.elapsed().as_secs_f32();
    let end = if is_finished(found) { "" } else { " (not finished)" };
    println!("{name}: {states} states, {steps} steps, depth {depth}, {seconds:.1} s{end}");
}
