//! Beside the line: who is the next tries now and then whether a majority is to be had without the line's master.
//!
//! The line only orders, the majority decides. What that one master alone has (a hold that no RELEASE has reached, the vote of a
//! client that died while it was trying) must not keep everybody out for a whole lease. Each try is an acquisition by itself,
//! with a token of its own, so that nothing of it can be taken for a part of the wait: whichever is won first, the
//! other is given up and cleaned up after. Only the first in line tries, so nobody is overtaken by it.

use std::sync::Arc;
use std::time::Duration;
use tokio::time::sleep;

use crate::acquire::patience::Patience;
use crate::acquire::round::{Acquired, Round, Start};
use crate::backoff::Backoff;
use crate::node::Channel;
use crate::quorum::{Member, Plan};
use crate::reading;
use crate::request::{self, LockRequest};
use crate::service::Service;

/// The longest pause between two looks at the line.
const LOOK: Duration = Duration::from_secs(1);

/// Tries until it is won.
pub(crate) async fn beside(
    service: Arc<Service>,
    plan: Plan,
    request: Arc<LockRequest>,
    line: Member,
) -> Acquired {
    let plan = Plan { retries: 0, ..plan };
    let mut backoff = Backoff::new(LOOK, LOOK);
    let mut looks_as_first = 0;
    loop {
        sleep(backoff.next()).await;
        looks_as_first = if is_first(&service, &request, line).await { looks_as_first + 1 } else { 0 };
        // At two looks in a row: where the lock is passed on meanwhile, all is well. A try in the moment of a release
        // could win beside the grant of the line, and the one after it would be let through in vain.
        if looks_as_first < 2 {
            continue;
        }
        looks_as_first = 0;
        let request = request.with_fresh_token();
        let channels = service.channels();
        let round = Round::begin(&service, plan, request, channels, Start::Beside(line), Patience::Endless);
        if let Ok(acquired) = round.run().await {
            return acquired;
        }
    }
}

/// Whether nobody waits before it. Whose user has no right to look never knows.
async fn is_first(service: &Service, request: &LockRequest, line: Member) -> bool {
    let node = service.node(line);
    let question = request::waiters(&request.resource, 1);
    let answer = Channel::new(node.clone()).ask(&question, None, node.limit).await;
    let me = reading::shown(request.token.as_bytes());
    answer.found(reading::queue).is_ok_and(|line| line.first().is_some_and(|first| first.token == me))
}
