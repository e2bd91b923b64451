//! The choice of the member of a quorum at which this client queues. `queue_choice.rs` in `dlock-quorum` has
//! the rule. This module sends the requests that the rule needs, and records where other clients were found.

use std::sync::Arc;
use tokio::time::sleep;

use dlock_quorum::{Holder, Member, OtherHolds, Place, QueueOrder};

use crate::clock::now;
use crate::reading::printable;
use crate::request::LockRequest;
use crate::service::Service;

impl Service {
    /// The order in which the queues of the masters are tried: the same for all clients, however they spell
    /// the addresses.
    pub(crate) fn queue_order(&self) -> QueueOrder {
        QueueOrder::new(self.sites.iter().map(|site| Place {
            member: site.member(),
            is_missing: site.is_missing(),
            run_id: self.member_list.run_id(site.member()),
            address: site.name().clone(),
        }))
    }

    /// Records that other clients wait in the queue of this master.
    pub(crate) fn record_queue(&self, resource: &[u8], queue: Member) {
        let order = self.queue_order();
        if self.contended.update(resource, |contention| contention.move_to(queue, &order, now())) {
            self.leave_other_queues(resource, queue);
        }
    }

    /// Makes the waits of this client for the lock leave every queue but that of this master. They leave
    /// together. Otherwise the heads of two queues could each be granted the lock by some masters, and
    /// neither would have a majority.
    pub(crate) fn leave_other_queues(&self, resource: &[u8], queue: Member) {
        for site in self.sites.iter().filter(|site| site.member() != queue) {
            site.leave_queue(resource);
        }
    }

    /// Finds out in the background whether other clients wait in the queue of this master: see
    /// [`OtherHolds`]. Called when this client has acquired the lock from a majority, and this master has
    /// refused it.
    pub(crate) fn look_for_others(self: &Arc<Self>, request: Arc<LockRequest>, queue: Member) {
        if !self.contended.update(&request.resource, |contention| contention.begin_looking_for_others(now()))
        {
            return;
        }
        let service = self.clone();
        self.spawn(async move {
            match service.others(&request, queue).await {
                OtherHolds::None => {
                    service.contended.update(&request.resource, |contention| contention.allow_looking_again())
                }
                // The clients of the other holds are gone. Their holds block the queue of this master until
                // the leases end, so this client must not join the queue.
                OtherHolds::Stale => {}
                OtherHolds::Young => service.record_queue(&request.resource, queue),
            }
        });
    }

    /// Reads twice, a round trip apart, which other clients have a hold at `queue` without a majority (a
    /// partial hold). A RELEASE that was in flight at the first reading should have arrived by the second.
    async fn others(&self, request: &LockRequest, queue: Member) -> OtherHolds {
        let begun = now();
        let before = self.partial_holders(request, queue).await;
        sleep(now().saturating_since(begun)).await;
        OtherHolds::compare(&before, &self.partial_holders(request, queue).await)
    }

    async fn partial_holders(&self, request: &LockRequest, member: Member) -> Vec<Holder> {
        let holders = self.holders(&request.resource).await;
        holders.partial_holders(self.quorum, member, &printable(request.token.as_bytes()))
    }
}
