//! The longest wait now, of all servers: for which lock, and who holds it. A holder that hangs and renews its
//! lease appears here and nowhere else, as nothing expires.

use dlock_client::{Client, Inspected};

use crate::lock_state::{self, Holding, display_name};
use crate::operators::Info;
use crate::output::{cell, name_text, time};

pub struct LongestWait {
    pub ms: u64,
    /// Name of the lock. `None` if it is too long for INFO.
    pub name: Option<Vec<u8>>,
    holding: Option<Holding>,
    /// How long the lock stays closed, in ms, although no client holds it. 0 if it does not.
    closed_ms: u64,
}

/// Returns the longest wait that these servers report. `None` if no client waits.
pub async fn find(client: &Client, servers: &[Inspected<Info>]) -> Option<LongestWait> {
    let infos = servers.iter().filter_map(|seen| seen.answer.found());
    let longest = infos.max_by_key(|info| info.number("dlock_longest_wait_ms"))?;
    let ms = Some(longest.number("dlock_longest_wait_ms")).filter(|ms| *ms > 0)?;
    let name = longest.text("dlock_longest_wait_lock").split_once(' ').map(|(_, key)| decoded(key));
    let inspected = match &name {
        Some(name) => client.inspect(name).await,
        None => Vec::new(),
    };
    let closed_ms = lock_state::closed_ms(&inspected);
    let holding = lock_state::holder(&inspected).filter(|_| closed_ms == 0);
    Some(LongestWait { ms, name, holding, closed_ms })
}

impl LongestWait {
    /// The name of the lock, for people.
    pub fn lock(&self) -> String {
        self.name.as_ref().map_or_else(|| "a lock with a long name".into(), |name| cell(name_text(name)))
    }

    /// The holder: its label, or the beginning of its token. Empty if there is none.
    pub fn holder(&self) -> String {
        let holder = self.holding.as_ref().map(|holding| &holding.holder);
        holder.map(|holder| display_name(&holder.label, &holder.token)).unwrap_or_default()
    }

    /// Returns true if the lock has no holder, and is closed by a DELAY: the wait ends with the delay.
    pub fn is_for_closed_lock(&self) -> bool {
        self.closed_ms > 0
    }

    /// Such as `3m 20s for jobs:1, held by worker-7 from 10.0.0.4:5120 for 1h`, or `3m 20s for jobs:1, closed
    /// for another 1h`.
    pub fn text(&self) -> String {
        let waits = format!("{} for {}", time(self.ms), self.lock());
        if self.is_for_closed_lock() {
            return format!("{waits}, closed for another {}", time(self.closed_ms));
        }
        let Some(Holding { holder, .. }) = &self.holding else { return waits };
        let from = if holder.address.is_empty() { "" } else { " from " };
        let address = cell(&holder.address);
        format!("{waits}, held by {}{from}{address} for {}", self.holder(), time(holder.held_ms))
    }
}

/// Decodes a key of INFO: `%` and two hexadecimal digits stand for a byte.
fn decoded(key: &str) -> Vec<u8> {
    let mut parts = key.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let (digits, rest) = part.split_at_checked(2).unwrap_or((part, ""));
        bytes.extend(u8::from_str_radix(digits, 16).ok());
        bytes.extend(rest.as_bytes());
    }
    bytes
}
