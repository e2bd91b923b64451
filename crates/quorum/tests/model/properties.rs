//! The properties that must be true in all states (`always`), and the events that must happen in some state
//! (`sometimes`): without these events, a property would prove nothing.

use super::client::{Client, Phase};
use super::master::{Answer, Master, Message};
use super::world::{Behaviour, MASTERS, State, Time, World};
use dlock_quorum::{Refusal, Vote};
use stateright::Property;

pub const EXCLUSION: &str = "no two clients have valid holds";
pub const UNIQUE: &str = "no two acquisitions have the same fence";
pub const ORDER: &str = "each acquisition has a greater fence than all that completed before it began";
pub const STRICT_ORDER: &str = "fences rise in the order in which acquisitions complete";

pub const NO_OVERTAKING: &str = "no client that respects the queue overtakes a waiter of the queue";
pub const NO_PARTIAL_HOLD: &str =
    "a client that asks all masters again after a pause keeps no grant in the pause if a master refused";
pub const NO_REVIVAL: &str = "no extension that begins after a BREAK gets a majority";
pub const AT_LEAST: &str =
    "no client acquires within the at_least of a hold that a majority of RELEASEs ended";
pub const ONE_ACQUIRES: &str = "when all clients are done, one has acquired";

pub fn of(world: &World) -> Vec<Property<World>> {
    let mut properties = vec![Property::<World>::sometimes("every client is done", |_, state: &State| {
        state.clients.iter().all(|client| client.phase == Phase::Done)
    })];
    // Not checked with a BREAK: another client may acquire the lock before the holder notices that its hold
    // was ended.
    if world.has_clock() && world.breaks == 0 {
        properties.push(Property::always(EXCLUSION, |_, state: &State| {
            state.clients.iter().filter(|client| client.holds()).count() <= 1
        }));
        properties.push(Property::sometimes("a client holds", |_, state: &State| {
            state.clients.iter().any(Client::holds)
        }));
    }
    if world.fenced {
        properties.push(Property::always(UNIQUE, |_, state: &State| !state.history.has_equal_fences));
        properties.push(Property::always(ORDER, |_, state: &State| !state.history.violates_order));
        properties.push(Property::sometimes("two acquisitions are complete", |_, state: &State| {
            state.history.fences.len() >= 2
        }));
    }
    // The strict order follows from exclusion. Without a clock, a hold may expire at any moment, so there is
    // no exclusion.
    if world.fenced && world.has_clock() {
        properties
            .push(Property::always(STRICT_ORDER, |_, state: &State| !state.history.violates_strict_order));
    }
    if world.has_at_least() {
        properties.push(Property::always(AT_LEAST, |_, state: &State| !state.history.violates_at_least));
        properties.push(Property::sometimes("a master delays the next grant", |_, state: &State| {
            state.masters.iter().any(|master| master.delay_left > 0)
        }));
    }
    if world.breaks > 0 {
        properties.push(Property::always(NO_REVIVAL, |_, state: &State| !state.history.extended_after_break));
    }
    if world.clients.iter().any(|behaviour| behaviour.respects_queue) {
        properties.push(Property::always(NO_OVERTAKING, |_, state: &State| !state.history.waiter_overtaken));
    }
    if world.clients.iter().any(Behaviour::asks_all_again) {
        properties.push(Property::always(NO_PARTIAL_HOLD, |world: &World, state: &State| {
            let mut clients = state.clients.iter().zip(&world.clients);
            !clients.any(|(client, behaviour)| behaviour.asks_all_again() && client.keeps_partial_hold())
        }));
    }
    // Not checked in a world with expiries: an expiry can end a hold of the only client that gets a majority,
    // and then no client acquires.
    if world.time == (Time::None { expiries: 0 }) {
        properties.push(Property::always(ONE_ACQUIRES, |_, state: &State| {
            !state.history.fences.is_empty() || state.clients.iter().any(|client| client.phase != Phase::Done)
        }));
    }
    properties.extend(expected_events(world));
    properties
}

fn expected_events(world: &World) -> Vec<Property<World>> {
    let mut properties = Vec::new();
    let is_contended = world.clients.len() > 1;
    if is_contended {
        properties.push(Property::<World>::sometimes("a client is refused", |_, state: &State| {
            state.clients.iter().any(|client| client.has_vote(&Vote::Refused(Refusal::Taken)))
        }));
    }
    if world.clients.iter().any(|behaviour| behaviour.waits) {
        properties.push(Property::sometimes("a client waits in a queue", |_, state: &State| {
            state.masters.iter().any(|master| !master.queue.is_empty())
        }));
    }
    if world.clients.iter().any(|behaviour| behaviour.extensions > 0) {
        properties.push(Property::sometimes("a majority extends a hold", |_, state: &State| {
            let is_extended =
                |client: &Client| matches!(&client.phase, Phase::Holding(holding) if holding.was_extended);
            state.clients.iter().any(is_extended)
        }));
    }
    if world.crashes > 0 {
        properties.push(Property::sometimes(
            "a client holds after the crash of a master",
            |world: &World, state: &State| {
                state.crashes_left < world.crashes && state.clients.iter().any(Client::holds)
            },
        ));
    }
    if world.first_client_holds && world.crashes > 0 {
        properties.push(Property::sometimes("a master has a restored hold", |_, state: &State| {
            restored_holds(state) > 0
        }));
    }
    if world.first_client_holds && usize::from(world.crashes) >= MASTERS {
        // Two restored holds are a majority.
        properties.push(Property::sometimes("a hold outlives all its masters", |_, state: &State| {
            let all_crashed = state.masters.iter().all(|master| master.crashed);
            all_crashed && restored_holds(state) >= 2 && state.clients[0].holds()
        }));
    }
    if world.false_messages > 0 {
        properties.push(Property::sometimes("a false message starts a round", |_, state: &State| {
            state.false_messages_left == 0
        }));
    }
    if world.breaks > 0 {
        properties.push(Property::sometimes("a hold is broken", |_, state: &State| state.breaks_left == 0));
    }
    if world.grace > 0 && is_contended {
        properties.push(Property::sometimes("a master refuses in grace", |_, state: &State| {
            on_the_wire(state, |message| message.answer == Some(Answer::Grace))
        }));
    }
    // A client drops the member with the greatest fence once too few masters can confirm that fence. After
    // one refusal (FENCEAHEAD), two of three still can.
    if world.ahead_refusals > 1 {
        properties
            .push(Property::sometimes("a client drops a member whose clock is ahead", |_, state: &State| {
                state.clients.iter().any(Client::has_dropped_member)
            }));
    }
    properties
}

/// Returns the number of masters with a restored hold of the first client.
fn restored_holds(state: &State) -> usize {
    let is_restored =
        |master: &&Master| master.crashed && master.hold.as_ref().is_some_and(|hold| hold.token.client == 0);
    state.masters.iter().filter(is_restored).count()
}

fn on_the_wire(state: &State, which: impl Fn(&Message) -> bool) -> bool {
    state.masters.iter().any(|master| master.wire.iter().any(&which))
}
