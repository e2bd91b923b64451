//! Reads the replies to requests as votes, or as reasons why there is no answer.

use std::sync::Arc;
use std::time::Duration;

use dlock_protocol::error::Class;
use dlock_protocol::reply::{self, Reply as _};
use dlock_quorum::{Failure, Fault, FaultKind, Fence, Refusal, Vote};
use redis::{ServerError, Value};

use crate::error::NodeState;
use crate::reading::{self, convert};

/// Outcome of a request.
#[derive(Debug, Clone)]
pub(crate) enum Reply {
    Answer(Value),
    /// Not sent.
    Unsent(Failure),
    /// Sent without an answer: it may have been carried out.
    NoAnswer,
}

/// Why a server has not executed a request that another one may execute.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Redirect {
    /// The server is no master any more.
    Replica,
    /// The slot of the key is at this `host:port`.
    Moved(String),
    /// The slot is being moved, and the key is at this `host:port` already, or nowhere.
    Ask(String),
    /// The cluster is down for this node, or `is_unserved`: it knows no master of the slot.
    Down { is_unserved: bool },
}

impl Redirect {
    fn of(error: &ServerError) -> Option<Redirect> {
        let place = || error.details()?.split(' ').nth(1).map(str::to_owned);
        match error.code() {
            "MOVED" => place().map(Redirect::Moved),
            "ASK" => place().map(Redirect::Ask),
            "CLUSTERDOWN" => {
                Some(Redirect::Down { is_unserved: error.details() == Some("Hash slot not served") })
            }
            _ => (Class::of(&text(error)) == Class::NoMaster).then_some(Redirect::Replica),
        }
    }
}

impl Reply {
    /// Reads the reply to ACQUIRE: the fence, or null for a lock that another token holds.
    pub(crate) fn acquired(self) -> Vote {
        self.vote(|value| fence_or(value, Refusal::Taken))
    }

    /// Reads the reply to CONFIRM: the fence of the hold, or null without a hold.
    pub(crate) fn confirmed(self) -> Vote {
        self.vote(|value| fence_or(value, Refusal::NotHeld))
    }

    /// Reads the reply to EXTEND, or the replies to EXTEND and a HOLDS that follows it: whether the token
    /// holds the lock. If HOLDS returns 0, the hold has ended, whatever EXTEND returned.
    pub(crate) fn extended(self) -> Vote<()> {
        let extended = match self {
            Reply::Answer(Value::Array(answers)) => match answers.as_slice() {
                [_, Value::Int(0)] => return held_if(false),
                _ => answers.into_iter().next().map_or(Reply::NoAnswer, Reply::Answer),
            },
            reply => reply,
        };
        extended.vote(|value| bool::read(value).map(held_if))
    }

    /// Reads the reply to RELEASE: by how much the hold count fell.
    pub(crate) fn released(self) -> Vote<()> {
        self.vote(|value| u64::read(value).map(|ended| held_if(ended > 0)))
    }

    /// Returns true if a master may carry out the same request soon: this one was not answered, sent
    /// elsewhere, or refused for now.
    pub(crate) fn is_to_be_repeated(&self) -> bool {
        match self {
            Reply::Answer(Value::ServerError(error)) => {
                self.redirect().is_some() || Class::of(&text(error)) == Class::NotNow
            }
            Reply::Answer(_) => false,
            Reply::Unsent(_) | Reply::NoAnswer => true,
        }
    }

    /// Returns true if the master has carried out a RELEASE. False for an error: a master that refuses to
    /// write keeps the hold.
    pub(crate) fn confirms_release(&self) -> bool {
        matches!(self, Reply::Answer(Value::Int(_)))
    }

    /// Returns where the request belongs if the server has not executed it for that reason. Of the answers to
    /// several commands, the first redirect counts: the commands are sent again, which changes nothing if one
    /// was executed.
    pub(crate) fn redirect(&self) -> Option<Redirect> {
        fn redirect_of(answer: &Value) -> Option<Redirect> {
            match answer {
                Value::ServerError(error) => Redirect::of(error),
                Value::Array(answers) => answers.iter().find_map(redirect_of),
                _ => None,
            }
        }
        match self {
            Reply::Answer(answer) => redirect_of(answer),
            Reply::Unsent(_) | Reply::NoAnswer => None,
        }
    }

    /// Reads the reply to WAITERS as the vote that [`dlock_quorum::Request::HasWaiters`] expects: `NotHeld`
    /// if no client waits, else `Taken`. An error counts as `Taken`, because clients may wait.
    pub(crate) fn queue_state(self) -> Vote {
        match self.read(reading::queue) {
            Ok(queue) if queue.is_empty() => Vote::Refused(Refusal::NotHeld),
            _ => Vote::Refused(Refusal::Taken),
        }
    }

    /// Reads the reply to a question with `read`, or returns the reason why there is no answer.
    pub(crate) fn read<T>(self, read: impl FnOnce(Value) -> Option<T>) -> Result<T, NodeState> {
        let unreadable = || NodeState::Failed("its answer has a form that this client does not know".into());
        match self {
            Reply::Answer(Value::ServerError(error)) => Err(NodeState::from(&refusal::<()>(&error))),
            Reply::Answer(value) => read(value).ok_or_else(unreadable),
            Reply::Unsent(failure) => Err(failure.into()),
            Reply::NoAnswer => Err(NodeState::Slow),
        }
    }

    fn vote<G>(self, read: impl FnOnce(reply::Value) -> Option<Vote<G>>) -> Vote<G> {
        match self {
            Reply::Answer(Value::ServerError(error)) => refusal(&error),
            // The master carried out the request, with an unknown outcome.
            Reply::Answer(value) => read(convert(value)).unwrap_or(Vote::Unknown),
            Reply::Unsent(failure) => Vote::Failed(failure),
            Reply::NoAnswer => Vote::Unknown,
        }
    }
}

fn fence_or(value: reply::Value, if_null: Refusal) -> Option<Vote> {
    let fence = Option::<Fence>::read(value)?;
    Some(fence.map_or(Vote::Refused(if_null), Vote::Granted))
}

fn held_if(held: bool) -> Vote<()> {
    if held { Vote::Granted(()) } else { Vote::Refused(Refusal::NotHeld) }
}

/// Reads an error reply as a refusal or, if its first word names no refusal, as a failure. In both cases the
/// request had no effect.
fn refusal<G>(error: &ServerError) -> Vote<G> {
    let text = text(error);
    let refusal = match Class::of(&text) {
        Class::Grace(ms_left) => Refusal::Grace(Duration::from_millis(ms_left)),
        Class::QueueFull => Refusal::QueueFull,
        Class::Deadlock(cycle) => Refusal::Deadlock(cycle.into()),
        Class::FenceAhead => Refusal::FenceAhead,
        Class::WrongType => {
            return Vote::Failed(Failure::Misuse(FaultKind::WrongType.with(wrong_type(None))));
        }
        Class::Misuse => return Vote::Failed(Failure::Misuse(fault(error))),
        Class::NotNow => return Vote::Failed(Failure::NotNow(fault(error))),
        Class::NoMaster => return Vote::Failed(Failure::Down(text.into())),
        Class::NoModule
        | Class::Forbidden(_)
        | Class::Login
        | Class::NotHeld
        | Class::StaleFence(_)
        | Class::Other => {
            return Vote::Failed(Failure::Error(fault(error)));
        }
    };
    Vote::Refused(refusal)
}

/// Returns the text for a key that holds a value of another type. `key_type` is the answer to TYPE; `None`
/// means that the type is unknown.
pub(crate) fn wrong_type(key_type: Option<&str>) -> String {
    let rest = match key_type {
        Some("string") | None => {
            "; if it is data, choose another name, the same for all clients; if it is a lock of \
                                  SET NX, retry, or set dlock.honour-strings to wait for it"
        }
        Some(_) => ", which is no lock: choose another name, the same for all clients",
    };
    format!(
        "WRONGTYPE: the key holds {}{rest}",
        key_type.map_or("something else".into(), |name| format!("a {name}"))
    )
}

/// Returns an error reply that is no refusal.
pub(super) fn fault(error: &ServerError) -> Fault {
    let text = text(error);
    let kind = match Class::of(&text) {
        Class::NoModule => FaultKind::NoModule,
        Class::Forbidden(denied) => FaultKind::Forbidden(denied),
        Class::Login => FaultKind::Login,
        Class::WrongType => FaultKind::WrongType,
        _ => FaultKind::Other,
    };
    kind.with(text)
}

/// Returns the text of an error reply, without the arguments that it repeats.
pub(super) fn text(error: &ServerError) -> String {
    without_arguments(format!("{} {}", error.code(), error.details().unwrap_or_default()).trim_end())
}

/// Largest number of characters to keep of an error reply. The error replies of servers are shorter.
const MAX_TEXT_CHARS: usize = 500;

/// Cuts off the arguments that a server repeats with an unknown command: passwords (of HELLO) and tokens.
pub(super) fn without_arguments(text: &str) -> String {
    let text = text.split(", with args beginning with").next().unwrap_or_default();
    text.chars().take(MAX_TEXT_CHARS).collect()
}

impl<G> From<&Vote<G>> for NodeState {
    fn from(vote: &Vote<G>) -> NodeState {
        match vote {
            Vote::Granted(_) => NodeState::Agreed,
            Vote::Refused(Refusal::Taken) => NodeState::Taken,
            Vote::Refused(Refusal::Grace(left)) => NodeState::InGrace(*left),
            Vote::Refused(Refusal::QueueFull) => NodeState::QueueFull,
            Vote::Refused(Refusal::Deadlock(cycle)) => NodeState::Deadlock(Arc::clone(cycle)),
            Vote::Refused(Refusal::FenceAhead) => NodeState::ClockAhead,
            Vote::Refused(Refusal::NotHeld) => NodeState::NotHeld,
            Vote::Failed(failure) => failure.clone().into(),
            Vote::Unknown => NodeState::Slow,
        }
    }
}

impl From<Failure> for NodeState {
    fn from(failure: Failure) -> NodeState {
        match failure {
            Failure::Down(why) => NodeState::Down(why),
            Failure::NotNow(why) | Failure::Error(why) | Failure::Misuse(why) => NodeState::Failed(why),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn state(reply: &str) -> NodeState {
        let value = redis::parse_redis_value(format!("{reply}\r\n").as_bytes()).expect("RESP");
        NodeState::from(&Reply::Answer(value).acquired())
    }

    #[test]
    fn arguments_are_removed_from_an_error_and_a_long_text_is_cut() {
        let repeats = "ERR unknown command 'DLOCK.ACQUIRE', with args beginning with: 'r' 's3cret' '30000' ";
        assert_eq!(
            state(&format!("-{repeats}")),
            NodeState::Failed(FaultKind::NoModule.with("ERR unknown command 'DLOCK.ACQUIRE'"))
        );
        let NodeState::Failed(fault) = state(&format!("-ERR {}", "é".repeat(1_000_000))) else {
            panic!("no error")
        };
        assert_eq!(fault.text.chars().count(), MAX_TEXT_CHARS);
    }
}
