//! The client over real servers: a single one, and a quorum.

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

/// A builder with a node timeout that only dead servers reach.
fn builder(servers: &[Server]) -> ClientBuilder {
    Client::builder().servers(servers.iter().map(url)).node_timeout(Duration::from_secs(5))
}

async fn client(servers: &[Server]) -> Client {
    builder(servers).build().await.expect("a client")
}

/// Returns the state of a server in a report.
fn state<'a>(report: &'a Report, server: &Server) -> &'a NodeState {
    let node = report.0.iter().find(|node| *node.server == url(server));
    &node.expect("every server is in the report").state
}

/// Returns the master where the clients queue: the living one with the smallest run id.
fn head(servers: &[Server]) -> &Server {
    let run_id = |server: &&Server| server.is_alive().then(|| server.info("run_id"));
    servers.iter().filter(|server| server.is_alive()).min_by_key(run_id).expect("a server")
}

/// Returns the tokens that hold the resource on a server.
#[track_caller]
fn holders(server: &Server, resource: &str) -> Vec<String> {
    queue::holders(&mut server.connect(), resource)
}

/// Returns the number of living servers on which the resource is held.
#[track_caller]
fn held_on(servers: &[Server], resource: &str) -> usize {
    servers.iter().filter(|server| server.is_alive() && !holders(server, resource).is_empty()).count()
}

/// Waits until every living server has the hold; an acquisition needs only a majority.
#[track_caller]
fn until_held_everywhere(servers: &[Server], resource: &str) {
    until("every living server has the hold", || held_on(servers, resource) == servers.len());
}

/// Waits until no living server has a hold or a waiter of the resource.
#[track_caller]
fn until_nothing_is_left(servers: &[Server], resource: &str) {
    for server in servers.iter().filter(|server| server.is_alive()) {
        let mut conn = server.connect();
        until("nothing is held and nobody waits", || {
            conn.ok(&format!("DLOCK.INSPECT {resource}")) == Value::Nil
        });
    }
}
