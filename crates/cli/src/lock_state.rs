//! The state and the holder of a lock over all servers, from the answer of each. Pure: asks no server.

use std::collections::HashMap;

use dlock_client::{Holder, Inspected, Inspection, majority};
use serde::{Serialize, Serializer};
use serde_json::json;

use crate::output::{cell, short};

/// The mode that a server with the option `dlock.honour-strings` reports for a key with a string. Such a
/// string counts as a lock that a client holds by `SET NX PX`.
const STRING: &str = "string";

/// The state of a lock over all servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// No client holds it.
    Free,
    /// No client holds it, and it is not granted yet: its last holder vanished or released it, and had asked
    /// for a DELAY before the next grant.
    Delayed,
    /// A majority has the same holder, or a string that counts as a lock.
    Held,
    /// No holder has a majority, and no majority is free: an acquisition is under way, or a client died
    /// during one.
    Undecided,
    /// Too few servers answered.
    NoQuorum,
}

impl State {
    pub fn of(inspected: &[Inspected<Option<Inspection>>]) -> State {
        let majority = majority(inspected.len());
        let answers: Vec<&Option<Inspection>> =
            inspected.iter().filter_map(|seen| seen.answer.found()).collect();
        if answers.len() < majority {
            return State::NoQuorum;
        }
        let mut votes: HashMap<&str, usize> = HashMap::new();
        for holder in answers.iter().copied().flatten().flat_map(|lock| &lock.holders) {
            *votes.entry(&holder.token).or_default() += 1;
        }
        let strings = answers.iter().copied().flatten().filter(|lock| lock.mode == STRING).count();
        // Returns whether `condition` is true at a majority. A server that reports no lock counts as free, so
        // each condition below is true there.
        let has_majority = |condition: fn(&Inspection) -> bool| {
            answers.iter().filter(|lock| lock.as_ref().is_none_or(condition)).count() >= majority
        };
        if strings >= majority || votes.values().any(|votes| *votes >= majority) {
            State::Held
        } else if has_majority(|lock| is_unheld(lock) && lock.delay_ms == 0) {
            State::Free
        } else if has_majority(is_unheld) {
            State::Delayed
        } else {
            State::Undecided
        }
    }

    pub fn word(self) -> &'static str {
        match self {
            State::Free => "free",
            State::Delayed => "delayed",
            State::Held => "held",
            State::Undecided => "undecided",
            State::NoQuorum => "no quorum",
        }
    }
}

fn is_unheld(lock: &Inspection) -> bool {
    lock.holders.is_empty() && lock.mode != STRING
}

/// The holder of a lock over all servers.
#[derive(Debug, Clone)]
pub struct Holding {
    /// The holder as one of the servers reports it, with a shortened token.
    pub holder: Holder,
    /// The fence that a majority of the servers has. `None` if no majority has the same fence. Each server
    /// grants the lock with a fence of its own. A client that wants a fence then raises these fences to the
    /// greatest one.
    pub fence: Option<u64>,
}

impl Serialize for Holding {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let mut holding = json!(self.holder);
        holding["fence"] = json!(self.fence);
        holding.serialize(serializer)
    }
}

/// Returns the holder that the most servers have.
pub fn holder(inspected: &[Inspected<Option<Inspection>>]) -> Option<Holding> {
    let mut holder = Holder::of(inspected)?;
    let fence = (holder.fence > 0).then_some(holder.fence);
    holder.token = short(&holder.token);
    Some(Holding { holder, fence })
}

/// Returns for how long the lock stays closed, in ms, although no client holds it. 0 if it does not.
pub fn closed_ms(inspected: &[Inspected<Option<Inspection>>]) -> u64 {
    match State::of(inspected) {
        State::Delayed => Inspection::closed_for(inspected).as_millis() as u64,
        _ => 0,
    }
}

/// The name of a holder for people: its label, or the beginning of its token if it has none.
pub fn display_name(label: &str, token: &str) -> String {
    if label.is_empty() { short(token) } else { cell(label) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_client::{Answer, NodeState};

    fn inspection(mode: &str) -> Inspection {
        let mut inspection = Inspection::default();
        inspection.mode = mode.into();
        inspection
    }

    fn server(answer: Answer<Option<Inspection>>) -> Inspected<Option<Inspection>> {
        Inspected::new("s", answer)
    }

    fn held(tokens: &[&str]) -> Inspected<Option<Inspection>> {
        let mut shared = inspection("shared");
        for token in tokens {
            let mut holder = Holder::default();
            holder.token = (*token).into();
            shared.holders.push(holder);
        }
        server(Answer::Found(Some(shared)))
    }

    fn delayed() -> Inspected<Option<Inspection>> {
        let mut delayed = inspection("free");
        delayed.delay_ms = 5;
        server(Answer::Found(Some(delayed)))
    }

    fn string() -> Inspected<Option<Inspection>> {
        server(Answer::Found(Some(inspection(STRING))))
    }

    fn free() -> Inspected<Option<Inspection>> {
        server(Answer::Found(None))
    }

    fn down() -> Inspected<Option<Inspection>> {
        server(Answer::Unanswered(NodeState::Slow))
    }

    #[test]
    fn state_is_that_of_a_majority() {
        for (inspected, state) in [
            (vec![free()], State::Free),
            (vec![held(&["a"])], State::Held),
            (vec![delayed()], State::Delayed),
            (vec![string()], State::Held),
            (vec![string(), string(), free()], State::Held),
            (vec![string(), free(), free()], State::Free),
            (vec![string(), held(&["a"]), free()], State::Undecided),
            (vec![down()], State::NoQuorum),
            (vec![held(&["a"]), held(&["a"]), free()], State::Held),
            (vec![held(&["a"]), held(&["a"]), down()], State::Held),
            (vec![held(&["a"]), held(&["b"]), free()], State::Undecided),
            (vec![held(&["a"]), free(), down()], State::Undecided),
            (vec![held(&["a"]), free(), free()], State::Free),
            (vec![held(&["a"]), free(), delayed()], State::Delayed),
            (vec![held(&["a"]), down(), down()], State::NoQuorum),
            (vec![held(&["a", "b"]), held(&["b", "c"]), held(&["d"])], State::Held),
        ] {
            assert_eq!(State::of(&inspected), state, "{inspected:?}");
        }
    }
}
