//! The steps of a world (clients, masters and the faults that may happen): what can happen next, and the
//! state after it. The checker tries every order.

use super::client::Phase;
use super::master::{Answer, Kind, Message};
use super::properties;
use super::world::{MASTERS, State, TICK, World};
use dlock_quorum::Vote;
use stateright::{Model, Property};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Begin {
        client: usize,
    },
    /// A message arrives. If `is_duplicated`, it stays on the wire, too, and may arrive again.
    Deliver {
        master: usize,
        message: Message,
        is_duplicated: bool,
    },
    /// A master refuses a CONFIRM with FENCEAHEAD, as if its clock were behind.
    RefuseAhead {
        master: usize,
        message: Message,
    },
    /// The client stops waiting for the answer.
    TimeOut {
        client: usize,
        master: usize,
        kind: Kind,
    },
    AskAgain {
        client: usize,
    },
    Extend {
        client: usize,
    },
    /// The client gives up, or ends its hold.
    Release {
        client: usize,
    },
    /// The hold on a master ends, for example by its lease or an eviction. Only in a world without a
    /// clock, where a hold can end at any moment.
    Expire {
        master: usize,
    },
    Crash {
        master: usize,
    },
    /// A client that waits gets a message of a grant that did not happen.
    FalseMessage {
        client: usize,
    },
    /// An operator ends all holds.
    Break,
    Tick,
}

impl Model for World {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        for master in 0..MASTERS {
            self.steps_at_master(state, master, steps);
        }
        for client in 0..state.clients.len() {
            self.steps_at_client(state, client, steps);
        }
        if state.breaks_left > 0 {
            steps.push(Step::Break);
        }
        if self.has_clock() {
            steps.push(Step::Tick);
        }
    }

    fn next_state(&self, before: &State, step: Step) -> Option<State> {
        let mut state = before.clone();
        match step {
            Step::Begin { client } => state.begin(self, client),
            Step::Deliver { master, message, is_duplicated } => {
                if is_duplicated {
                    state.duplicates_left -= 1;
                } else {
                    state.masters[master].wire.retain(|other| *other != message);
                }
                match message.answer {
                    None => {
                        let has_ended = state.masters[master].carry_out(self, message);
                        if matches!(message.kind, Kind::Release(_)) {
                            state.history.released(self, message.token, has_ended);
                        }
                    }
                    Some(answer) => state.receive(self, master, message, Vote::from(answer)),
                }
            }
            Step::RefuseAhead { master, message } => {
                state.ahead_refusals_left -= 1;
                let refused = Message { answer: Some(Answer::FenceAhead), ..message };
                state.masters[master].wire.retain(|other| *other != message);
                state.masters[master].post(refused);
            }
            Step::TimeOut { client, master, kind } => {
                let (token, acquisition) = (state.token(self, client), state.clients[client].acquisition);
                let unanswered = Message { token, acquisition, kind, answer: None };
                state.receive(self, master, unanswered, Vote::Unknown);
            }
            Step::AskAgain { client } => state.ask_again(self, client),
            Step::Extend { client } => state.extend(self, client),
            Step::Release { client } => state.release(self, client),
            Step::Expire { master } => {
                state.expiries_left -= 1;
                state.masters[master].end_hold(self);
            }
            Step::Crash { master } => {
                state.crashes_left -= 1;
                state.masters[master].crash(self);
            }
            Step::FalseMessage { client } => {
                state.false_message(self, client);
                if state == *before {
                    return None;
                }
                state.false_messages_left -= 1;
            }
            Step::Break => {
                state.breaks_left -= 1;
                state.break_holds(self);
            }
            Step::Tick => {
                state.masters.iter_mut().for_each(|master| master.tick(self));
                state.history.tick();
                for (client, behaviour) in state.clients.iter_mut().zip(&self.clients) {
                    client.age(*behaviour, TICK);
                }
            }
        }
        state.remove_messages_without_effect();
        let state = self.normal_form(state);
        (state != *before).then_some(state)
    }

    fn properties(&self) -> Vec<Property<Self>> {
        properties::of(self)
    }
}

impl World {
    fn steps_at_master(&self, state: &State, master: usize, steps: &mut Vec<Step>) {
        let at_master = &state.masters[master];
        for &message in &at_master.wire {
            steps.push(Step::Deliver { master, message, is_duplicated: false });
            if state.duplicates_left > 0 {
                steps.push(Step::Deliver { master, message, is_duplicated: true });
            }
            let is_confirm = message.answer.is_none() && matches!(message.kind, Kind::Confirm { .. });
            if is_confirm && state.ahead_refusals_left > 0 {
                steps.push(Step::RefuseAhead { master, message });
            }
        }
        if state.expiries_left > 0 && at_master.hold.is_some() {
            steps.push(Step::Expire { master });
        }
        if state.crashes_left > 0 {
            steps.push(Step::Crash { master });
        }
    }

    fn steps_at_client(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        match &state.clients[client].phase {
            Phase::Idle => steps.push(Step::Begin { client }),
            Phase::Queueing | Phase::Done => {}
            Phase::Acquiring { asked, paused, .. } => {
                for (master, kind) in asked.iter().enumerate() {
                    steps.extend(kind.map(|kind| Step::TimeOut { client, master, kind }));
                }
                if state.false_messages_left > 0 && self.clients[client].waits {
                    steps.push(Step::FalseMessage { client });
                }
                if *paused {
                    steps.push(Step::AskAgain { client });
                }
                if self.clients[client].releases {
                    steps.push(Step::Release { client });
                }
            }
            Phase::Holding(holding) => {
                if holding.extensions_begun < self.clients[client].extensions {
                    steps.push(Step::Extend { client });
                }
                if self.clients[client].releases {
                    steps.push(Step::Release { client });
                }
            }
        }
    }
}
