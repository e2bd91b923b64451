//! Three sentinels that watch a master.

use std::time::Duration;

use crate::kinds::ServerKind;
use crate::server::Server;
use crate::wait::until_within;

/// The sentinels check once a second, and agree with each other before they act.
pub const SENTINEL_TIMEOUT: Duration = Duration::from_secs(60);

/// Starts three sentinels that watch `master`, which has its replicas already, under the name `locks`. They
/// take it for dead after `down_after` ms.
pub fn sentinels(kind: &ServerKind, master: &Server, down_after: u32) -> Vec<Server> {
    let monitor = format!("sentinel monitor locks 127.0.0.1 {} 2", master.port());
    let down_after = format!("sentinel down-after-milliseconds locks {down_after}");
    let timing = [&*down_after, "sentinel failover-timeout locks 5000"];
    let start = |_| Server::options(kind).sentinel().conf(&monitor).confs(&timing).start();
    let replicas = master.info("connected_slaves");
    let sentinels: Vec<Server> = (0..3).map(start).collect();
    for sentinel in &sentinels {
        until_within(SENTINEL_TIMEOUT, "the sentinels know each other and the replicas", || {
            let master = sentinel.connect().ok("SENTINEL MASTER locks");
            *master.field("num-other-sentinels") == "2" && *master.field("num-slaves") == *replicas
        });
    }
    sentinels
}
