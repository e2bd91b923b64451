//! What a cluster and a Sentinel deployment have in common for the tests in `failovers.rs`.

use std::fmt::Debug;
use std::thread::sleep;
use std::time::Duration;

use tokio::runtime::Handle;

use crate::contender::Stage;
use dlock_client::now;
use dlock_testkit::{Random, ServerKind, TIMEOUT};

pub trait Topology: Sized {
    type Fault: Copy + Debug + Ord + 'static;

    const FAULTS: &[Self::Fault];

    /// Starts the servers. `grace` is in ms.
    fn start(kind: &ServerKind, grace: u64, network: &Handle) -> Self;

    fn url(&self) -> String;

    /// Injects a fault and heals it.
    fn suffer(&mut self, fault: Self::Fault, random: &mut Random, stage: &Stage);

    /// Waits until nothing is left of a fault, and no grace period is running.
    fn until_whole(&self);
}

/// Waits until `missing` returns `None`. Panics with what it has returned last.
#[track_caller]
pub fn until_nothing_is_missing(missing: impl Fn() -> Option<String>) {
    let end = now() + TIMEOUT;
    while let Some(missing) = missing() {
        assert!(now() < end, "still missing after {TIMEOUT:?}: {missing}");
        sleep(Duration::from_millis(20));
    }
}
