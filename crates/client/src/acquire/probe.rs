//! Probing: the waiter at the head of the queue tries now and then to get a majority without the queue's
//! master.
//!
//! The queue only orders, the majority decides. What the queue's master alone has (a hold that no RELEASE has
//! reached, the vote of a client that died during its attempt) must not keep everybody out for a whole lease.
//! Each probe is an acquisition of its own, with its own token, so nothing of it can be mistaken for a part
//! of the wait: whichever succeeds first, the other is given up and cleaned up. Only the head of the queue
//! probes, so it overtakes nobody.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

use crate::acquire::deadline::Deadline;
use crate::acquire::round::{NewHold, Round, Start};
use crate::backoff::Backoff;
use crate::node::Channel;
use crate::quorum::{Member, Plan};
use crate::reading;
use crate::request::{self, LockRequest};
use crate::service::Service;

/// The longest pause between two looks at the queue.
const LONGEST_PAUSE: Duration = Duration::from_secs(1);

/// Probes until one succeeds.
pub(crate) async fn probe(
    service: Arc<Service>,
    plan: Plan,
    request: Arc<LockRequest>,
    queue: Member,
) -> NewHold {
    let plan = Plan { retries: 0, ..plan };
    let mut backoff = Backoff::new(LONGEST_PAUSE, LONGEST_PAUSE);
    let mut seen_as_head = 0;
    loop {
        sleep(backoff.next()).await;
        seen_as_head = if is_head(&service, &request, queue).await { seen_as_head + 1 } else { 0 };
        // Twice in a row: if the lock moved on in between, all is well. A probe at the moment of a release
        // could succeed together with the grant of the queue, and the next waiter would be granted in vain.
        if seen_as_head < 2 {
            continue;
        }
        seen_as_head = 0;
        let request = request.with_fresh_token();
        let channels = service.channels();
        let round = Round::begin(&service, plan, request, channels, Start::Probe(queue), Deadline::Never);
        if let Ok(hold) = round.run().await {
            return hold;
        }
    }
}

/// Whether nobody is ahead of it in the queue. Without the permission to look, the answer is always no.
async fn is_head(service: &Service, request: &LockRequest, queue: Member) -> bool {
    let node = service.node(queue);
    let question = request::waiters(&request.resource, 1);
    let answer = Channel::new(node.clone()).ask(&question, None, node.limit).await;
    let me = reading::shown(request.token.as_bytes());
    answer.found(reading::queue).is_ok_and(|queue| queue.first().is_some_and(|head| head.token == me))
}
