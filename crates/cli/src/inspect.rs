//! `dlock inspect`: the answers of all servers about a lock, and its state over all of them.

use std::collections::HashMap;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;

use comfy_table::Table;
use dlock_client::{Answer, Client, Inspected, Inspection, Waiting};
use serde::Serialize;
use serde_json::{Value, json};

use crate::args::Inspect;
use crate::exit::Failure;
use crate::hold::print;
use crate::lock::Abort;
use crate::shown::{self, plain};
use crate::table::{cell, short, table, time};

pub async fn inspect(args: Inspect) -> Result<u8, Abort> {
    let client = args.servers.client().await?;
    let seen = View::of(&client, &args.resource).await;
    print(&if args.json { shown::json(&seen.json()) } else { seen.text() })?;
    Ok(seen.state().code())
}

/// The state of a lock over all servers.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum State {
    /// Nobody holds it.
    Free,
    /// Nobody holds it, and a delay keeps it from being granted.
    Delayed,
    /// A majority has the same holder.
    Held,
    /// No holder has a majority, and it is not free on one either: somebody is just trying, or did not clean
    /// up.
    Undecided,
    /// Too few servers answered.
    NoQuorum,
}

impl State {
    pub fn of(masters: &[Inspected<Option<Inspection>>]) -> State {
        let majority = masters.len() / 2 + 1;
        let answers: Vec<&Option<Inspection>> =
            masters.iter().filter_map(|seen| seen.answer.found()).collect();
        if answers.len() < majority {
            return State::NoQuorum;
        }
        let mut votes: HashMap<&str, usize> = HashMap::new();
        for holder in answers.iter().copied().flatten().flat_map(|lock| &lock.holders) {
            *votes.entry(&holder.token).or_default() += 1;
        }
        let like = |free: fn(&Inspection) -> bool| {
            answers.iter().filter(|lock| lock.as_ref().is_none_or(free)).count() >= majority
        };
        if votes.values().any(|votes| *votes >= majority) {
            State::Held
        } else if like(|lock| lock.holders.is_empty() && lock.delay_ms == 0) {
            State::Free
        } else if like(|lock| lock.holders.is_empty()) {
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

    fn text(self) -> &'static str {
        match self {
            State::Free => "is free",
            State::Delayed => "is held by nobody, but delayed: its last holder vanished",
            State::Held => "is held",
            State::Undecided => "is neither held nor free on a majority of the servers",
            State::NoQuorum => "is in an unknown state: too few servers answered",
        }
    }

    fn code(self) -> u8 {
        if self == State::NoQuorum { Failure::NoQuorum.code() } else { 0 }
    }
}

/// A lock as all servers see it.
pub struct View {
    resource: String,
    masters: Vec<Inspected<Option<Inspection>>>,
    queues: Vec<Inspected<Vec<Waiting>>>,
}

impl View {
    pub async fn of(client: &Client, resource: &OsStr) -> View {
        let queues = client.waiters(resource.as_bytes(), 1000);
        let (masters, queues) = tokio::join!(client.inspect(resource.as_bytes()), queues);
        View { resource: resource.to_string_lossy().into_owned(), masters, queues }
    }

    pub fn state(&self) -> State {
        State::of(&self.masters)
    }

    fn json(&self) -> Value {
        let masters = self.masters.iter().zip(&self.queues).map(|(seen, queue)| {
            let mut master = json!(seen);
            if let Some(queue) = queue.answer.found() {
                master["queue"] = json!(queue);
            }
            master
        });
        json!({ "resource": self.resource, "state": self.state(), "masters": masters.collect::<Vec<_>>() })
    }

    pub fn text(&self) -> String {
        let mut text =
            format!("{} {}\n\n{}", cell(&self.resource), self.state().text(), self.holders().trim_fmt());
        if let Some(waiters) = self.waiters() {
            text += &format!("\n\nWaiting:\n\n{}", waiters.trim_fmt());
        }
        text
    }

    fn holders(&self) -> Table {
        let mut table = table(&["SERVER", "MODE", "HOLDER", "FENCE", "LEASE LEFT", "LABEL"]);
        for Inspected { server, answer, .. } in &self.masters {
            let server = cell(server);
            let free = inspection("free");
            let lock = match answer {
                Answer::Found(lock) => lock.as_ref().unwrap_or(&free),
                Answer::Unanswered(why) => {
                    table.add_row([server, plain(why)]);
                    continue;
                }
            };
            let mode = match (lock.permits, lock.delay_ms) {
                (0, 0) => cell(&lock.mode),
                (0, delay) => format!("delayed {}", time(delay)),
                (permits, _) => format!("{} {permits}", cell(&lock.mode)),
            };
            if lock.holders.is_empty() {
                table.add_row([&server, &mode]);
            }
            for holder in &lock.holders {
                table.add_row([
                    server.clone(),
                    mode.clone(),
                    short(&holder.token),
                    holder.fence.to_string(),
                    time(holder.left_ms),
                    cell(&holder.label),
                ]);
            }
        }
        table
    }

    /// `None` if nobody waits.
    fn waiters(&self) -> Option<Table> {
        let mut table = table(&["SERVER", "POSITION", "TOKEN", "MODE", "WAITED", "LABEL"]);
        for Inspected { server, answer, .. } in &self.queues {
            for (index, waiting) in answer.found().into_iter().flatten().enumerate() {
                table.add_row([
                    cell(server),
                    (index + 1).to_string(),
                    short(&waiting.token),
                    cell(&waiting.mode),
                    time(waiting.waited_ms),
                    cell(&waiting.label),
                ]);
            }
        }
        (!table.is_empty()).then_some(table)
    }
}

fn inspection(mode: &str) -> Inspection {
    let mut inspection = Inspection::default();
    inspection.mode = mode.into();
    inspection
}

#[cfg(test)]
mod tests {
    use super::*;
    use dlock_client::{Holder, NodeState};

    fn says(answer: Answer<Option<Inspection>>) -> Inspected<Option<Inspection>> {
        Inspected::new("s", answer)
    }

    fn held(tokens: &[&str]) -> Inspected<Option<Inspection>> {
        let mut shared = inspection("shared");
        for token in tokens {
            let mut holder = Holder::default();
            holder.token = (*token).into();
            shared.holders.push(holder);
        }
        says(Answer::Found(Some(shared)))
    }

    fn delayed() -> Inspected<Option<Inspection>> {
        let mut delayed = inspection("free");
        delayed.delay_ms = 5;
        says(Answer::Found(Some(delayed)))
    }

    fn free() -> Inspected<Option<Inspection>> {
        says(Answer::Found(None))
    }

    fn down() -> Inspected<Option<Inspection>> {
        says(Answer::Unanswered(NodeState::Slow))
    }

    #[test]
    fn a_majority_decides() {
        for (masters, state) in [
            (vec![free()], State::Free),
            (vec![held(&["a"])], State::Held),
            (vec![delayed()], State::Delayed),
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
            assert_eq!(State::of(&masters), state, "{masters:?}");
        }
    }
}
