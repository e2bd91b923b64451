//! The steps of a world, and what must be true after each. The checker tries every order of steps.

use super::client::{Client, Holding, Phase};
use super::world::{Message, State, What, World};
use stateright::{Model, Property};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    /// The client sends its next QUEUE call: the first one, the next, or its claim.
    Call {
        client: usize,
    },
    /// The client claims its hold by EXTEND.
    Extend {
        client: usize,
    },
    /// The client gives up, or ends its hold.
    Release {
        client: usize,
    },
    /// A message arrives. If `is_duplicated`, it stays on the wire, too, and may arrive again.
    Deliver {
        message: Message,
        is_duplicated: bool,
    },
    /// A stranger publishes the message of a call.
    Forge {
        client: usize,
        call: u8,
    },
    Crash {
        forgets: bool,
    },
    /// An operator ends the hold.
    Break,
    Tick,
}

/// The fence in the messages of the stranger.
const FORGED: u8 = 99;

pub const EXCLUSION: &str = "no two clients have valid holds";
pub const GREATEST: &str = "a valid hold has the greatest fence that the server has issued";
pub const NO_REVIVAL: &str = "no client holds by a call if a later answer shows that this hold has ended";

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for client in 0..state.clients.len() {
            self.steps_of_client(state, client, steps);
        }
        for &message in &state.wire {
            steps.push(Step::Deliver { message, is_duplicated: false });
            if state.duplicates_left > 0 {
                steps.push(Step::Deliver { message, is_duplicated: true });
            }
        }
        if state.crashes_left > 0 {
            steps.extend([true, false].map(|forgets| Step::Crash { forgets }));
        }
        if state.breaks_left > 0 && state.server.hold.is_some() {
            steps.push(Step::Break);
        }
        steps.push(Step::Tick);
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Call { client } => state.call(self, client),
            Step::Extend { client } => state.extend(self, client),
            Step::Release { client } => state.release_by(self, client),
            Step::Deliver { message, is_duplicated } => {
                if is_duplicated {
                    state.duplicates_left -= 1;
                } else {
                    state.wire.retain(|other| *other != message);
                }
                match message.what {
                    What::Call(_) | What::Extend | What::Release => state.carry_out(self, message),
                    _ => state.receive(self, message),
                }
            }
            Step::Forge { client, call } => {
                state.forgeries_left -= 1;
                state.message_received(self, client, call, FORGED);
            }
            Step::Crash { forgets } => {
                state.crashes_left -= 1;
                state.crash(self, forgets);
            }
            Step::Break => {
                state.breaks_left -= 1;
                state.end_hold(self);
            }
            Step::Tick => {
                for (client, behaviour) in state.clients.iter_mut().zip(&self.clients) {
                    client.age(self, behaviour.waits);
                }
                state.tick_server(self);
            }
        }
        state.remove_messages_without_effect(self);
        let state = self.normal_form(state);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::<Self>::sometimes("every client is done", |_, state: &State| {
                state.clients.iter().all(|client| client.phase == Phase::Done)
            }),
            Property::sometimes("a client holds by a message", |_, state: &State| {
                some_hold(state, |holding| holding.by_message)
            }),
            Property::sometimes("a client claims what a message granted", |_, state: &State| {
                some_hold(state, |holding| holding.by_message && holding.is_claimed)
            }),
        ];
        // A holder notices a BREAK later, and another client may hold meanwhile.
        if self.breaks == 0 {
            properties.push(Property::always(EXCLUSION, |_, state: &State| holds(state).count() <= 1));
        } else {
            properties.push(Property::always(NO_REVIVAL, |_, state: &State| {
                state.clients.iter().all(|client| !is_revived(client))
            }));
        }
        if self.breaks == 0 && self.forgeries == 0 {
            properties.push(Property::always(GREATEST, |_, state: &State| {
                holds(state).all(|holding| holding.fence == state.server.greatest_fence)
            }));
        }
        if self.forgeries > 0 {
            properties.push(Property::sometimes("a stranger publishes", |_, state: &State| {
                state.forgeries_left == 0
            }));
        }
        if self.crashes > 0 {
            properties.push(Property::sometimes(
                "a client holds by a message after a crash",
                |world: &World, state: &State| {
                    state.crashes_left < world.crashes && some_hold(state, |holding| holding.by_message)
                },
            ));
        }
        properties
    }
}

fn holds(state: &State) -> impl Iterator<Item = &Holding> {
    state.clients.iter().filter_map(Client::valid_hold)
}

fn some_hold(state: &State, is_such: impl Fn(&Holding) -> bool) -> bool {
    holds(state).any(is_such)
}

fn is_revived(client: &Client) -> bool {
    let Some(holding) = client.valid_hold() else { return false };
    let later = client.calls.iter().skip(usize::from(holding.call)).map(|call| call.ended);
    later.chain([holding.ended]).any(|ended| ended >= holding.fence)
}

impl World {
    fn steps_of_client(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        if state.may_call(self, client) {
            steps.push(Step::Call { client });
        }
        if state.may_extend(self, client) {
            steps.push(Step::Extend { client });
        }
        let of_client = &state.clients[client];
        if of_client.phase == Phase::Done {
            return;
        }
        if self.clients[client].releases && (of_client.valid_hold().is_some() || !of_client.calls.is_empty())
        {
            steps.push(Step::Release { client });
        }
        if state.forgeries_left > 0 && of_client.phase == Phase::Waiting {
            for call in 1..=of_client.calls.len() as u8 {
                if self.can_forge(state, of_client.token(client), call) {
                    steps.push(Step::Forge { client, call });
                }
            }
        }
    }
}
