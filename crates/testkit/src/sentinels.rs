//! Three sentinels that watch a master.

use std::time::Duration;

use crate::kinds::ServerKind;
use crate::server::{Options, Server};
use crate::wait::until_within;

/// The sentinels check once a second, and agree with each other before they act.
pub const SENTINEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts three sentinels that watch `master`, which has its replicas already, under the name `locks`. They
/// take it for dead after `down_after` ms.
pub fn sentinels(kind: &ServerKind, master: &Server, down_after: u32) -> Vec<Server> {
    let start = |_| sentinel(kind, master.port(), down_after).start();
    let sentinels: Vec<Server> = (0..3).map(start).collect();
    until_complete(&sentinels, master);
    sentinels
}

/// Returns the settings of one of three sentinels. `port` is that of the master.
pub fn sentinel(kind: &ServerKind, port: u16, down_after: u32) -> Options {
    let monitor = format!("sentinel monitor locks 127.0.0.1 {port} 2");
    let down_after = format!("sentinel down-after-milliseconds locks {down_after}");
    Server::options(kind).sentinel().confs(&[&monitor, &down_after, "sentinel failover-timeout locks 5000"])
}

/// Waits until the three sentinels know each other and the master's replicas.
pub fn until_complete(sentinels: &[Server], master: &Server) {
    let replicas = master.info("connected_slaves");
    for sentinel in sentinels {
        until_within(SENTINEL_TIMEOUT, "the sentinels know each other and the replicas", || {
            let master = sentinel.connect().ok("SENTINEL MASTER locks");
            *master.field("num-other-sentinels") == "2" && *master.field("num-slaves") == *replicas
        });
    }
}
