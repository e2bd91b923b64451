//! The client over real servers: one, and a quorum of independent ones.

mod adopting;
mod blocked_runtime;
mod blocking;
mod cancelled;
mod documented;
mod durable;
mod encrypted;
mod examples;
mod flooding;
mod holding;
mod library_name;
mod lock_kinds;
mod loss_notices;
mod loss_reports;
mod lost_replies;
mod members;
mod members_down;
mod modes;
mod outstanding;
mod partial_holds;
mod positions;
mod queueing;
mod reading;
mod redlock;
mod restored;

use dlock_client::{Client, ClientBuilder, NodeState, Report};
use std::time::Duration;

use dlock_testkit::queue;
use dlock_testkit::{Server, ServerKind, Value, until};

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn masters(kind: &ServerKind, count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start(kind)).collect()
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

/// With so long a timeout that only what is down is not waited for.
fn builder(servers: &[Server]) -> ClientBuilder {
    Client::builder().servers(servers.iter().map(url)).node_timeout(Duration::from_secs(5))
}

async fn client(servers: &[Server]) -> Client {
    builder(servers).build().await.expect("a client")
}

/// What a report says of a server.
fn state<'a>(report: &'a Report, server: &Server) -> &'a NodeState {
    let node = report.0.iter().find(|node| *node.server == url(server));
    &node.expect("every server is in the report").state
}

/// The master at which the clients wait: the first by its run id.
fn head(servers: &[Server]) -> &Server {
    let run_id = |server: &&Server| server.is_alive().then(|| server.info("run_id"));
    servers.iter().filter(|server| server.is_alive()).min_by_key(run_id).expect("a server")
}

/// The tokens that hold the resource on a server.
#[track_caller]
fn holders(server: &Server, resource: &str) -> Vec<String> {
    queue::holders(&mut server.connect(), resource)
}

/// On how many of the servers that live somebody holds the resource.
#[track_caller]
fn held_on(servers: &[Server], resource: &str) -> usize {
    servers.iter().filter(|server| server.is_alive() && !holders(server, resource).is_empty()).count()
}

/// Waits until a hold has arrived everywhere: a majority is enough to be won.
#[track_caller]
fn until_held_everywhere(servers: &[Server], resource: &str) {
    until("it holds everywhere", || held_on(servers, resource) == servers.len());
}

/// Waits until nobody holds the resource or waits for it on any server that lives.
#[track_caller]
fn until_nothing_is_left(servers: &[Server], resource: &str) {
    for server in servers.iter().filter(|server| server.is_alive()) {
        let mut conn = server.connect();
        until("nothing is held and nobody waits", || {
            conn.ok(&format!("DLOCK.INSPECT {resource}")) == Value::Nil
        });
    }
}
