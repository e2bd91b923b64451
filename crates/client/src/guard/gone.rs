//! What ends a hold from outside: masters that no longer hold it, a connection that closes.

use futures_util::future::join_all;
use std::time::Duration;
use tokio::time::sleep;

use crate::backoff::Backoff;
use crate::error::{NodeState, Report};
use crate::guard::hold::{Hold, is_watched};
use crate::{reading, request};

/// How long after a push a hold is checked: several may come together.
const CHECK_PAUSE: Duration = Duration::from_millis(25);
/// How long, at most, until masters that did not answer then are asked again.
const LONGEST_CHECK_PAUSE: Duration = Duration::from_secs(2);

impl Hold {
    /// Waits until so many masters say that they do not hold it that no majority can.
    pub(crate) async fn gone(&self) -> Report {
        let question = &request::holds(&self.request.resource, &self.request.token);
        let fresh = || Backoff::new(CHECK_PAUSE, LONGEST_CHECK_PAUSE);
        let mut backoff = fresh();
        loop {
            // Holds that are as short as this ask nothing.
            sleep(CHECK_PAUSE).await;
            if is_watched(self.lock().mode) {
                let asked = self.channels.iter().map(|channel| async move {
                    // Asked, the master tracks the key for this connection.
                    let answer = channel.ask(question, None, channel.node.limit).await;
                    match answer.found(reading::number) {
                        Ok(0) => NodeState::NotHeld,
                        Ok(_) => NodeState::Agreed,
                        Err(state) => state,
                    }
                });
                let states = join_all(asked).await;
                let not_held = states.iter().filter(|state| **state == NodeState::NotHeld).count();
                if !self.service.quorum.possible_without(not_held) {
                    return self.service.report_of(states);
                }
                let silent = states.iter().filter(|state| is_silent(state)).count();
                if !self.service.quorum.possible_without(not_held + silent) {
                    // Nobody pushes again what was pushed once.
                    sleep(backoff.next()).await;
                    continue;
                }
            }
            backoff = fresh();
            self.watched.notified().await;
        }
    }

    /// Waits until the connection of an ephemeral hold closes. Never returns for any other hold.
    pub(crate) async fn disconnected(&self) {
        match self.channels[0].connection().filter(|_| self.request.ephemeral) {
            Some(connection) => connection.closed().cancelled().await,
            None => std::future::pending().await,
        }
    }
}

/// Whether a master may answer otherwise when it is asked again.
fn is_silent(state: &NodeState) -> bool {
    matches!(state, NodeState::Down(_) | NodeState::Slow | NodeState::Unheard | NodeState::Unasked)
}
