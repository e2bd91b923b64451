//! From a grant to a hold that is renewed.

use dlock_protocol::Fence;
use std::sync::Arc;
use tracing::{Instrument, info_span};

use crate::acquire::attempt::Attempt;
use crate::acquire::round::NewHold;
use crate::error::AcquireError;
use crate::guard::Share;
use crate::guard::hold::Hold;
use crate::guard::renewal::{Renewal, renew};
use crate::reading::shown;
use crate::service::Service;
use dlock_quorum::Lease;

impl Attempt {
    pub(super) async fn hold(self, renewal: Renewal) -> Result<Arc<Share>, AcquireError> {
        let (service, lease, durable) = (self.service.clone(), self.lease, self.durable);
        let resource = self.resource.clone();
        let acquired = service.background.carry_out(async {
            let mut acquired = self.run().await;
            if let Err(AcquireError::Misuse { report, .. }) = &mut acquired {
                service.name_types(&resource, report).await;
            }
            acquired
        });
        let share = hold(&service, lease, renewal, acquired.await?);
        match durable {
            Some(durable) => durable.check(share).await,
            None => Ok(share),
        }
    }
}

/// Starts the renewal of a new hold.
pub(super) fn hold(service: &Arc<Service>, lease: Lease, renewal: Renewal, new: NewHold) -> Arc<Share> {
    let hold = Hold::new(service.clone(), lease, renewal.limit.is_some(), new);
    let span =
        info_span!("hold", resource = shown(&hold.request.resource), fence = hold.fence.map(Fence::get));
    service.spawn(renew(hold.clone(), renewal).instrument(span));
    Arc::new(Share(hold))
}
