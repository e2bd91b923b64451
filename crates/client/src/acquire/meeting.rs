//! In which queue the clients meet. Each client finds it for itself: the first one it can reach, or a later
//! one where it has met others. Safety does not depend on it: a wrong queue costs time.

use std::sync::Arc;
use tokio::time::sleep;

use crate::clock::now;
use crate::inspect::Holder;
use crate::node::Channel;
use crate::reading::{self, shown};
use crate::request::{self, LockRequest};
use crate::service::Service;
use dlock_quorum::Member;

/// Whoever's turn has come at a master keeps its part there for less time, in ms, while others refuse it.
pub(super) const HEAD_KEEPS: u64 = 2_000;

/// Who else has a part of the quorum at a master.
enum Others {
    None,
    /// A hold that nobody releases.
    Leftover,
    Queue,
}

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

    /// Notes that others queue at this master, which refused one who has the lock, if they do.
    pub(crate) fn look_for_others(self: &Arc<Self>, request: Arc<LockRequest>, queue: Member) {
        if !self.contended.may_look(&request.resource) {
            return;
        }
        let service = self.clone();
        self.spawn(async move {
            match service.others(&request, queue).await {
                Others::None => service.contended.saw_nobody(&request.resource),
                Others::Leftover => {}
                Others::Queue => service.note_queue(&request.resource, queue),
            }
        });
    }

    /// Who has a part of the quorum there. What a predecessor releases is gone after a moment; what was left
    /// behind grows old.
    async fn others(&self, request: &LockRequest, queue: Member) -> Others {
        let begun = now();
        let before = self.parts(request, queue).await;
        sleep(now().saturating_since(begun)).await;
        let after = self.parts(request, queue).await;
        let stays = |holder: &&Holder| before.iter().any(|earlier| earlier.token == holder.token);
        match after.iter().find(stays) {
            None => Others::None,
            Some(holder) if holder.held_ms < HEAD_KEEPS => Others::Queue,
            Some(_) if self.somebody_waits(request, queue).await => Others::Queue,
            Some(_) => Others::Leftover,
        }
    }

    /// The holds of others there that are none of a majority, as far as is known.
    async fn parts(&self, request: &LockRequest, at: Member) -> Vec<Holder> {
        let own = shown(request.token.as_bytes());
        let holds = self.holds(&request.resource).await;
        let has = |there: &&Vec<Holder>, token: &str| there.iter().any(|holder| holder.token == token);
        let votes = |token: &str| holds.iter().flatten().filter(|there| has(there, token)).count();
        let is_part = |holder: &&Holder| holder.token != own && votes(&holder.token) < self.quorum.majority();
        holds[usize::from(at.0)].iter().flatten().filter(is_part).cloned().collect()
    }

    async fn somebody_waits(&self, request: &LockRequest, at: Member) -> bool {
        let (node, question) = (self.node(at), request::waiters(&request.resource, 1));
        let queue = Channel::new(node.clone()).find(&question, reading::queue).await;
        queue.is_ok_and(|queue| !queue.is_empty())
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
