//! The properties that must always hold, and the events that must happen in some run: a property proves
//! nothing where nothing happens.

use super::client::{Client, Phase};
use super::master::{Answer, Master, Message};
use super::world::{MASTERS, Script, State, Time, World};
use dlock_quorum::{Refusal, Vote};
use stateright::Property;

pub const EXCLUSION: &str = "no two clients have valid holds";
pub const UNIQUE: &str = "no two acquisitions have the same fence";
pub const ORDER: &str = "a fence is greater than all that completed before its acquisition began";
pub const STRICT_ORDER: &str = "a fence is greater than all that completed before it";

pub const NO_OVERTAKING: &str = "no newcomer acquires before an earlier waiter";
pub const NO_PARTIAL_HOLD: &str =
    "a client that asks all masters at once keeps no grant after a refusal until it asks again";
pub const BROKEN: &str = "a broken hold is not extended";
pub const ONE_ACQUIRES: &str = "when all clients are done, one has acquired";

pub fn of(world: &World) -> Vec<Property<World>> {
    let mut properties = vec![Property::<World>::sometimes("every client is done", |_, state: &State| {
        state.clients.iter().all(|client| client.phase == Phase::Done)
    })];
    // After a BREAK, a client may acquire the lock before the old holder has noticed.
    if world.has_clock() && world.breaks == 0 {
        properties.push(Property::always(EXCLUSION, |_, state: &State| {
            state.clients.iter().filter(|client| client.holds()).count() <= 1
        }));
        properties.push(Property::sometimes("a client holds", |_, state: &State| {
            state.clients.iter().any(Client::holds)
        }));
    }
    if world.fenced {
        properties.push(Property::always(UNIQUE, |_, state: &State| !state.history.same_fence));
        properties
            .push(Property::always(ORDER, |_, state: &State| !state.history.below_one_before_its_begin));
        properties.push(Property::sometimes("two acquisitions are complete", |_, state: &State| {
            state.history.fences.len() >= 2
        }));
    }
    if world.fenced && world.has_clock() {
        properties
            .push(Property::always(STRICT_ORDER, |_, state: &State| !state.history.below_one_before_its_end));
    }
    if world.breaks > 0 {
        properties.push(Property::always(BROKEN, |_, state: &State| !state.history.revived));
    }
    if world.clients.iter().any(|script| script.looks) {
        properties.push(Property::always(NO_OVERTAKING, |_, state: &State| !state.history.overtaken));
    }
    if world.clients.iter().any(Script::retries_without_turn) {
        properties.push(Property::always(NO_PARTIAL_HOLD, |world: &World, state: &State| {
            let mut clients = state.clients.iter().zip(&world.clients);
            !clients.any(|(client, script)| script.retries_without_turn() && client.keeps_partial_hold())
        }));
    }
    if world.time == (Time::None { lapses: 0 }) {
        properties.push(Property::always(ONE_ACQUIRES, |_, state: &State| {
            !state.history.fences.is_empty() || state.clients.iter().any(|client| client.phase != Phase::Done)
        }));
    }
    properties.extend(something_happens(world));
    properties
}

fn something_happens(world: &World) -> Vec<Property<World>> {
    let mut properties = Vec::new();
    let is_contended = world.clients.len() > 1;
    if is_contended {
        properties.push(Property::<World>::sometimes("a client is refused", |_, state: &State| {
            state.clients.iter().any(|client| client.has_vote(&Vote::Refused(Refusal::Taken)))
        }));
    }
    if world.clients.iter().any(|script| script.waits) {
        properties.push(Property::sometimes("a client waits in a queue", |_, state: &State| {
            state.masters.iter().any(|master| !master.queue.is_empty())
        }));
    }
    if world.clients.iter().any(|script| script.extensions > 0) {
        properties.push(Property::sometimes("an extension counts", |_, state: &State| {
            state.clients.iter().any(|client| matches!(client.phase, Phase::Holding { extended: true, .. }))
        }));
    }
    if world.crashes > 0 {
        properties.push(Property::sometimes(
            "a master crashes under a hold",
            |world: &World, state: &State| {
                state.crashes < world.crashes && state.clients.iter().any(Client::holds)
            },
        ));
    }
    if world.held && world.crashes > 0 {
        properties.push(Property::sometimes("a master has a restored hold", |_, state: &State| {
            restored(state) > 0
        }));
    }
    if world.held && usize::from(world.crashes) >= MASTERS {
        // A majority of the masters has a restored hold.
        properties.push(Property::sometimes("a hold outlives all its masters", |_, state: &State| {
            let all_forgot = state.masters.iter().all(|master| master.forgot);
            all_forgot && restored(state) >= 2 && state.clients[0].holds()
        }));
    }
    if world.breaks > 0 {
        properties.push(Property::sometimes("a hold is broken", |_, state: &State| state.breaks == 0));
    }
    if world.grace > 0 && is_contended {
        properties.push(Property::sometimes("a master refuses in grace", |_, state: &State| {
            on_the_wire(state, |message| message.answer == Some(Answer::Grace))
        }));
    }
    if world.fence_ahead > 1 {
        properties.push(Property::sometimes("a member with a clock ahead is dropped", |_, state: &State| {
            state.clients.iter().any(Client::dropped_a_member_ahead)
        }));
    }
    properties
}

/// The number of masters with a restored hold of the first client.
fn restored(state: &State) -> usize {
    let is_restored =
        |master: &&Master| master.forgot && master.hold.as_ref().is_some_and(|hold| hold.token.client == 0);
    state.masters.iter().filter(is_restored).count()
}

fn on_the_wire(state: &State, which: impl Fn(&Message) -> bool) -> bool {
    state.masters.iter().any(|master| master.wire.iter().any(&which))
}
