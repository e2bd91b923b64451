//! What a cluster and a Sentinel deployment have in common for the tests in `failovers.rs`.

use std::fmt::Debug;
use std::thread::sleep;
use std::time::{Duration, Instant};

use tokio::runtime::Handle;

use crate::contender::Stage;
use dlock_client::now;
use dlock_testkit::{Random, Server, ServerKind, TIMEOUT, Value, Wire, encode};

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

/// Returns whether a field of INFO has this value. A server that changes its role may close the connection
/// instead of answering.
pub fn shows(server: &Server, field: &str, value: &str) -> bool {
    let info = || {
        let mut wire = Wire::connect(server.port()).ok()?;
        wire.send(&encode(&["INFO", "everything"])).ok()?;
        #[allow(clippy::disallowed_methods, reason = "the testkit's clock")]
        wire.value(Instant::now() + TIMEOUT).ok()?
    };
    let line = format!("{field}:{value}");
    match info() {
        None | Some(Value::Error(_)) => false,
        Some(info) => info.text().lines().any(|other| other.trim_end() == line),
    }
}

pub fn is_master(server: &Server) -> bool {
    server.is_alive() && shows(server, "role", "master")
}
