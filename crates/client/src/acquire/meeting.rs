//! In which queue the clients meet. Each client finds it for itself: the first one it can reach, or a later
//! one where it has met others. Safety does not depend on it: a wrong queue costs time.

use std::sync::Arc;
use tokio::time::sleep;

use crate::clock::now;
use crate::quorum::Member;
use crate::reading::shown;
use crate::request::LockRequest;
use crate::service::Service;

impl Service {
    /// The order in which the queues of the masters are tried.
    pub(crate) fn queue_order(&self, resource: &[u8]) -> Vec<Member> {
        let mut order = self.common_order();
        let noted = self.contended.queue(resource).filter(|member| !self.node(*member).is_missing());
        let first = order.iter().position(|member| Some(*member) == noted).unwrap_or(0);
        order.split_off(first)
    }

    /// Notes that others queue there, and takes along those who wait for it elsewhere: one by one they would
    /// take long to leave a queue, and the heads of two queues keep each other from a majority. From a later
    /// queue nobody goes back to an earlier one while both are in use.
    pub(crate) fn note_queue(&self, resource: &[u8], queue: Member) {
        let order = self.common_order();
        let place = |queue: Member| order.iter().position(|member| *member == queue);
        let noted = self.contended.queue(resource).filter(|member| !self.node(*member).is_missing());
        if noted.is_some_and(|noted| place(noted) > place(queue)) {
            return;
        }
        self.contended.note_queue(resource, queue);
        for node in self.nodes.iter().filter(|node| node.member != queue) {
            node.waits.leave(resource);
        }
    }

    /// Notes that others queue at this master, which refused one who has the lock, if they do: what its
    /// predecessor releases may have been on the way there. Who queues there keeps what it has for longer.
    pub(crate) fn look_for_others(self: &Arc<Self>, request: Arc<LockRequest>, queue: Member) {
        let service = self.clone();
        self.spawn(async move {
            let begun = now();
            let before = service.strangers(&request, queue).await;
            sleep(now().saturating_since(begun)).await;
            let after = service.strangers(&request, queue).await;
            if before.iter().any(|stranger| after.contains(stranger)) {
                service.note_queue(&request.resource, queue);
            }
        });
    }

    /// The tokens of others that hold it there.
    async fn strangers(&self, request: &LockRequest, at: Member) -> Vec<String> {
        let own = shown(request.token.as_bytes());
        let mut holders = self.holders_at(at, &request.resource).await.unwrap_or_default();
        holders.retain(|token| *token != own);
        holders
    }

    /// The same for all clients, however they spell the addresses, so that they meet in one queue. A master
    /// that is known to be missing comes last.
    fn common_order(&self) -> Vec<Member> {
        let mut order: Vec<Member> = self.quorum.members().collect();
        order.sort_by_cached_key(|member| {
            let node = self.node(*member);
            let run_id = node.run_id();
            (node.is_missing(), run_id.is_none(), run_id, node.name.clone())
        });
        order
    }
}
