//! RELEASE everywhere.

use futures_util::StreamExt;
use futures_util::future::BoxFuture;
use futures_util::stream::FuturesUnordered;
use redis::Cmd;
use std::sync::Arc;
use tokio::time::timeout;

use crate::error::ReleaseError;
use crate::quorum::{Member, Refusal, Vote};
use crate::service::{Channels, Service};

/// The releases of one hold under way. When it is dropped they go on in the background.
pub(crate) struct Releases {
    service: Arc<Service>,
    channels: Channels,
    calls: FuturesUnordered<BoxFuture<'static, (Member, Vote<()>)>>,
    /// What each master said; None where it was not asked, since it was never asked to hold anything.
    votes: Vec<Option<Vote<()>>>,
}

impl Releases {
    /// To every master that may hold something, or come to hold it.
    pub(crate) fn new(service: &Arc<Service>, channels: &Channels, command: Cmd) -> Releases {
        let command = Arc::new(command);
        let calls = FuturesUnordered::new();
        let mut votes = Vec::with_capacity(channels.len());
        for (channel, member) in channels.iter().zip(service.quorum.members()) {
            votes.push(channel.may_hold().then_some(Vote::Unknown));
            if channel.may_hold() {
                let (channel, command) = (channel.clone(), command.clone());
                let call = async move { (member, channel.release(&command).await.released()) };
                calls.push(Box::pin(call) as BoxFuture<'static, _>);
            }
        }
        Releases { service: service.clone(), channels: channels.clone(), calls, votes }
    }

    /// Returns when a majority has confirmed it, or cannot any more, or does not within the time of one answer.
    pub(crate) async fn majority(mut self) -> Result<(), ReleaseError> {
        let limit = self.service.nodes[0].limit;
        // A release is tried for longer than this waits: what is not done goes on behind it.
        let decided = timeout(limit, async {
            while self.is_open() {
                let Some((member, vote)) = self.calls.next().await else { return };
                self.votes[usize::from(member.0)] = Some(vote);
            }
        })
        .await;
        let majority = self.service.quorum.majority();
        if self.count(is_yes) >= majority {
            return Ok(());
        }
        // Who has said nothing until it was decided was not silent.
        let heard = |vote: &&Vote<()>| decided.is_err() || **vote != Vote::Unknown;
        let report =
            self.service.report(&self.channels, self.votes.iter().map(|vote| vote.as_ref().filter(heard)));
        if self.votes.len() - self.count(is_no) < majority {
            return Err(ReleaseError::NotHeld(report));
        }
        Err(ReleaseError::Unconfirmed(report))
    }

    fn is_open(&self) -> bool {
        let majority = self.service.quorum.majority();
        self.count(is_yes) < majority && self.votes.len() - self.count(is_no) >= majority
    }

    fn count(&self, which: impl Fn(&Option<Vote<()>>) -> bool) -> usize {
        self.votes.iter().filter(|vote| which(vote)).count()
    }
}

impl Drop for Releases {
    fn drop(&mut self) {
        let mut calls = std::mem::take(&mut self.calls);
        if !calls.is_empty() {
            self.service.begin(async move { while calls.next().await.is_some() {} });
        }
    }
}

fn is_yes(vote: &Option<Vote<()>>) -> bool {
    matches!(vote, Some(Vote::Granted(())))
}

/// A master that was never asked to hold anything held nothing.
fn is_no(vote: &Option<Vote<()>>) -> bool {
    matches!(vote, None | Some(Vote::Refused(Refusal::NotHeld)))
}
