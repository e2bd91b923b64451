//! Durable grants: a grant counts only when enough replicas have it. If none is required, the append only
//! file of the master must have the grant.

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use redis::{Cmd, Value};
use std::mem;
use std::time::Duration;
use tokio::time::timeout;

use crate::error::{AcquireError, NodeState};
use crate::hold::Hold;
use crate::hold::guard::{Guard, Unused};
use crate::reading::{self, printable};
use crate::request;
use crate::topology::{Channel, Voters};
use crate::transport::Reply;
use dlock_quorum::Vote;

/// The longest timeout of WAIT in ms. Servers reject a timeout that ends beyond the range of their clock.
const LONGEST_MS: u128 = 1 << 40;

/// The number of replicas that must have a grant, and how long to wait for them. 0 replicas means that the
/// append only file of the master must have the grant.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Durable {
    pub(crate) replicas: u32,
    pub(crate) timeout: Duration,
}

impl Durable {
    /// Waits until the grant is as durable as requested on a majority of the masters. Releases the hold if
    /// that has become impossible.
    pub(crate) async fn check(self, guard: Guard) -> Result<Guard, AcquireError> {
        let unused = Unused(vec![guard]);
        let hold = unused.0[0].hold();
        let (service, quorum) = (&hold.service, hold.service.quorum);
        let (channels, voters) = (hold.channels.iter().enumerate(), &Voters::default());
        let mut calls: FuturesUnordered<_> = channels
            .map(|(index, channel)| async move { (index, self.ask(hold, channel, voters).await) })
            .collect();
        let mut states = vec![NodeState::Unheard; hold.channels.len()];
        let count = |states: &[NodeState], state| states.iter().filter(|known| **known == state).count();
        let mut durable = 0;
        while durable < quorum.majority()
            && durable + count(&states, NodeState::Unheard) >= quorum.majority()
            && let Some((index, state)) = calls.next().await
        {
            states[index] = state;
            durable = count(&states, NodeState::Agreed);
        }
        drop(calls);
        let resource = printable(&hold.request.resource);
        match hold.state().loss {
            Some(why) => Err(AcquireError::LostMeanwhile { resource, why }),
            None if durable >= quorum.majority() => Ok(unused.into_guards().remove(0)),
            None => {
                let report = service.report_of(&hold.channels, states);
                // An unconfirmed release continues in the background.
                let _ = hold.release(None).await;
                Err(AcquireError::NotDurable { resource, report })
            }
        }
    }

    /// Asks one member, on a separate connection, because WAIT blocks its connection. WAIT refers to the last
    /// write of its connection, so an EXTEND is sent first: a replica that has the EXTEND has the grant too.
    async fn ask(self, hold: &Hold, channel: &Channel, voters: &Voters) -> NodeState {
        let (node, request) = (&channel.node(), &hold.request);
        let connection = match timeout(node.limit, node.separate_connection()).await {
            Ok(Ok(connection)) => connection,
            Ok(Err(why)) => return why.into(),
            Err(_) => return node.no_connection_yet().into(),
        };
        let extend = request::extend(&request.resource, &request.token, request.ttl);
        let unanswered = UnansweredExtend { channel, ttl: request.ttl() };
        let Ok(Some(extended)) = timeout(node.limit, connection.ask(&extend)).await else {
            return NodeState::Slow;
        };
        mem::forget(unanswered);
        let vote = Reply::Answer(extended).extended();
        if vote != Vote::Granted(()) {
            return NodeState::from(&vote);
        }
        let Ok(Some(answer)) =
            timeout(self.timeout.saturating_add(node.limit), connection.ask(&self.command())).await
        else {
            return NodeState::Slow;
        };
        match Reply::Answer(answer).read(copies) {
            // Without replicas, the master's own append only file is the one copy.
            Ok(copies) if copies >= u64::from(self.replicas.max(1)) => {
                // A server that has already voted as another member does not count again.
                NodeState::from(&voters.admit(node.member, connection.run_id(), Vote::Granted(())))
            }
            Ok(copies) => NodeState::NotDurable(copies),
            Err(state) => state,
        }
    }

    /// Returns the WAIT, or the WAITAOF for the master's own append only file.
    fn command(self) -> Cmd {
        let ms = self.timeout.as_millis().clamp(1, LONGEST_MS) as u64;
        let mut cmd = Cmd::new();
        match self.replicas {
            0 => cmd.arg("WAITAOF").arg(1).arg(0).arg(ms),
            replicas => cmd.arg("WAIT").arg(replicas).arg(ms),
        };
        cmd
    }
}

/// An EXTEND that was sent over a separate connection, and has no answer. The server may still execute it
/// after a later EXTEND over another connection has set a longer lease, and so shorten that lease. Dropping
/// this value records this possibility in the channel.
struct UnansweredExtend<'a> {
    channel: &'a Channel,
    ttl: Duration,
}

impl Drop for UnansweredExtend<'_> {
    fn drop(&mut self) {
        self.channel.note_orphaned_lease(self.ttl);
    }
}

/// Reads the answer to WAIT: the number of replicas with the grant. For WAITAOF, reads the first number of
/// the answer, which is 1 if the master's own append only file has the grant.
fn copies(answer: Value) -> Option<u64> {
    match answer {
        Value::Array(counts) => reading::number(counts.into_iter().next()?),
        count => reading::number(count),
    }
}
