//! The options of an acquisition, and their checks.

use std::num::NonZeroU32;
use std::time::Duration;

use dlock_protocol::{Delay, Label, LockRequest, Mode, Token};

use crate::acquire::attempt::{Attempt, OnOutage};
use crate::acquire::deadline::Deadline;
use crate::acquire::durable::Durable;
use crate::acquire::queue::OnPosition;
use crate::acquire::{Acquire, Wait, owner};
use crate::guard::renewal::{OnLost, Renewal};

#[derive(Clone)]
pub(super) struct Options {
    pub(super) ttl: Duration,
    pub(super) wait: Wait,
    pub(super) mode: UncheckedMode,
    pub(super) fenced: bool,
    pub(super) reentrant: bool,
    pub(super) ephemeral: bool,
    pub(super) delay: Duration,
    pub(super) durable: Option<Durable>,
    pub(super) label: String,
    pub(super) owner: Option<Vec<u8>>,
    pub(super) renew: bool,
    pub(super) max_hold: Option<Duration>,
    pub(super) notice: Option<Duration>,
    pub(super) token: Option<Token>,
    pub(super) on_lost: Option<OnLost>,
    pub(super) on_position: Option<OnPosition>,
    pub(super) on_outage: Option<OnOutage>,
}

#[derive(Clone, Copy)]
pub(super) enum UncheckedMode {
    Exclusive,
    Shared,
    Permits(u32),
}

impl Default for Options {
    fn default() -> Self {
        Options {
            ttl: Duration::from_secs(30),
            wait: Wait::Forever,
            mode: UncheckedMode::Exclusive,
            fenced: false,
            reentrant: false,
            ephemeral: false,
            delay: Duration::ZERO,
            durable: None,
            label: String::new(),
            owner: None,
            renew: true,
            max_hold: None,
            notice: None,
            token: None,
            on_lost: None,
            on_position: None,
            on_outage: None,
        }
    }
}

impl Acquire {
    /// Checks every option; the error says which is out of range.
    pub(super) fn checked(&self) -> Result<(Attempt, Renewal), String> {
        let options = &self.options;
        let service = self.client.service.clone();
        let (lease, ttl) = service.lease_for(options.ttl)?;
        let mode = match options.mode {
            UncheckedMode::Exclusive => Mode::Exclusive,
            UncheckedMode::Shared => Mode::Shared,
            UncheckedMode::Permits(n) => {
                let n = NonZeroU32::new(n).filter(|n| n.get() <= i32::MAX as u32);
                Mode::Permits(n.ok_or("permits must be 1 to 2147483647")?)
            }
        };
        let single = service.nodes.len() == 1;
        if !single && matches!(mode, Mode::Permits(_)) {
            return Err("permits require a single server: majorities cannot count them".into());
        }
        if !single && options.ephemeral {
            return Err("an ephemeral hold requires a single server: it ends with one connection".into());
        }
        let label = Label::new(options.label.as_bytes())
            .ok_or_else(|| format!("a label must have at most {} bytes", Label::MAX_LEN))?;
        if options.notice.is_some_and(|notice| notice > lease.ttl() / 2) {
            return Err("the notice must be at most half of the ttl: renewals need time to be retried".into());
        }
        let delay = options.delay.as_millis().try_into().ok().and_then(Delay::from_millis);
        let delay = delay.ok_or("a delay must be at most 49 days")?;
        let renewal = Renewal {
            limit: options.renew.then_some(options.max_hold.unwrap_or(Duration::MAX)),
            notice: options.notice,
            on_lost: options.on_lost.clone(),
        };
        let (token, ephemeral) = (options.token.clone(), options.ephemeral);
        let owner = owner::checked(options.owner.as_ref())?;
        let asked = LockRequest { mode, ephemeral, delay, label, owner, ..LockRequest::new(token, ttl) };
        let attempt = Attempt {
            service,
            resource: self.resource.clone(),
            asked,
            lease,
            fenced: options.fenced,
            durable: options.durable,
            deadline: Deadline::of(options.wait),
            on_position: options.on_position.clone(),
            on_outage: options.on_outage.clone(),
        };
        Ok((attempt, renewal))
    }
}
