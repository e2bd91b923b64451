//! The steps of a world.

use super::client::Phase;
use super::master::{Answer, Ask, Message};
use super::properties;
use super::world::{MASTERS, State, TICK, World};
use dlock_quorum::Vote;
use stateright::{Model, Property};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Step {
    Begin {
        client: usize,
    },
    /// A message arrives. If `again`, a copy stays on the wire.
    Deliver {
        master: usize,
        message: Message,
        again: bool,
    },
    /// A CONFIRM is refused as too far ahead.
    RefuseAhead {
        master: usize,
        message: Message,
    },
    /// The client stops waiting for the answer.
    TimeOut {
        client: usize,
        master: usize,
        what: Ask,
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
    /// Without a clock: a hold ends, for example by its lease, an eviction or an operator.
    Lapse {
        master: usize,
    },
    Crash {
        master: usize,
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
        if state.breaks > 0 {
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
            Step::Deliver { master, message, again } => {
                if again {
                    state.duplicates -= 1;
                } else {
                    state.masters[master].wire.retain(|other| *other != message);
                }
                match message.answer {
                    None => state.masters[master].carry_out(self, message),
                    Some(answer) => state.receive(self, master, message, Vote::from(answer)),
                }
            }
            Step::RefuseAhead { master, message } => {
                state.fence_ahead -= 1;
                let refused = Message { answer: Some(Answer::FenceAhead), ..message };
                state.masters[master].wire.retain(|other| *other != message);
                state.masters[master].post(refused);
            }
            Step::TimeOut { client, master, what } => {
                let (token, round) = (state.token(self, client), state.clients[client].round);
                let lost = Message { token, round, what, answer: None };
                state.receive(self, master, lost, Vote::Unknown);
            }
            Step::AskAgain { client } => state.ask_again(self, client),
            Step::Extend { client } => state.extend(self, client),
            Step::Release { client } => state.release(self, client),
            Step::Lapse { master } => {
                state.lapses -= 1;
                state.masters[master].end_hold(self);
            }
            Step::Crash { master } => {
                state.crashes -= 1;
                state.masters[master].crash(self);
            }
            Step::Break => {
                state.breaks -= 1;
                state.break_holds(self);
            }
            Step::Tick => {
                state.masters.iter_mut().for_each(|master| master.tick(self));
                let scripts = self.clients.iter();
                state.clients.iter_mut().zip(scripts).for_each(|(client, script)| client.age(*script, TICK));
            }
        }
        state.sweep();
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
            steps.push(Step::Deliver { master, message, again: false });
            if state.duplicates > 0 {
                steps.push(Step::Deliver { master, message, again: true });
            }
            let confirm = message.answer.is_none() && matches!(message.what, Ask::Confirm { .. });
            if confirm && state.fence_ahead > 0 {
                steps.push(Step::RefuseAhead { master, message });
            }
        }
        if state.lapses > 0 && at_master.hold.is_some() {
            steps.push(Step::Lapse { master });
        }
        if state.crashes > 0 {
            steps.push(Step::Crash { master });
        }
    }

    fn steps_at_client(&self, state: &State, client: usize, steps: &mut Vec<Step>) {
        match &state.clients[client].phase {
            Phase::Idle => steps.push(Step::Begin { client }),
            Phase::Queueing | Phase::Done => {}
            Phase::Acquiring { asked, paused, .. } => {
                for (master, what) in asked.iter().enumerate() {
                    steps.extend(what.map(|what| Step::TimeOut { client, master, what }));
                }
                if *paused {
                    steps.push(Step::AskAgain { client });
                }
                if self.clients[client].releases {
                    steps.push(Step::Release { client });
                }
            }
            Phase::Holding { extensions, .. } => {
                if *extensions < self.clients[client].extensions {
                    steps.push(Step::Extend { client });
                }
                if self.clients[client].releases {
                    steps.push(Step::Release { client });
                }
            }
        }
    }
}
