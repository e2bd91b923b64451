//! The client over real servers: a single one, and a quorum.

mod adopting;
mod at_least;
mod blocked_runtime;
mod blocking;
mod cancelled;
mod cluster;
mod cluster_changes;
mod durable;
mod elections;
mod encrypted;
mod examples;
mod failover;
mod flooding;
mod handoff;
mod holding;
mod library_name;
mod lock_kinds;
mod loss_notices;
mod loss_reports;
mod lost_replies;
mod many_requests;
mod members;
mod members_down;
mod modes;
mod outstanding;
mod owners;
mod partial_holds;
mod positions;
mod proxies;
mod queueing;
mod reading;
mod restored;
mod sentinel;
mod wrong_addresses;

use dlock_client::{
    Acquire, AcquireError, Answer, Client, ClientBuilder, ExtendError, ForgottenHold, Guard, Instant, Lost,
    NodeState, ReleaseError, Report, Retry, Token, Wait, now,
};
use dlock_testkit::{Conn, Server, ServerKind, TIMEOUT, Value, each_server, queue, until};
use std::time::Duration;

/// Longer than any test.
const LONG: Duration = Duration::from_secs(600);

fn masters(kind: &ServerKind, count: usize) -> Vec<Server> {
    (0..count).map(|_| Server::start(kind)).collect()
}

fn url(server: &Server) -> String {
    format!("redis://127.0.0.1:{}", server.port())
}

/// Returns a builder. Its node timeout, the time limit of one reply, is long enough for a busy machine.
fn builder(servers: &[Server]) -> ClientBuilder {
    Client::builder().servers(servers.iter().map(url)).node_timeout(Duration::from_secs(5))
}

async fn client(servers: &[Server]) -> Client {
    builder(servers).build().await.expect("a client")
}

/// Starts the masters and a client.
async fn quorum(kind: &ServerKind, count: usize) -> (Vec<Server>, Client) {
    let servers = masters(kind, count);
    let client = client(&servers).await;
    (servers, client)
}

/// Starts the masters and two clients.
async fn two_clients(kind: &ServerKind, count: usize) -> (Vec<Server>, Client, Client) {
    let (servers, ann) = quorum(kind, count).await;
    let bob = client(&servers).await;
    (servers, ann, bob)
}

/// Returns the state of a server in a report.
fn state<'a>(report: &'a Report, server: &Server) -> &'a NodeState {
    let node = report.0.iter().find(|node| *node.server == url(server));
    &node.expect("every server is in the report").state
}

/// Returns the master where the clients queue: the living one with the smallest run id.
fn queue_master(servers: &[Server]) -> &Server {
    let run_id = |server: &&Server| server.is_alive().then(|| server.info("run_id"));
    servers.iter().filter(|server| server.is_alive()).min_by_key(run_id).expect("a server")
}

fn all_but<'a>(servers: &'a [Server], one: &Server) -> impl Iterator<Item = &'a Server> {
    let port = one.port();
    servers.iter().filter(move |server| server.port() != port)
}

/// Acquires `r` on these servers with this token.
#[track_caller]
fn hold_as<'a>(token: &str, servers: impl IntoIterator<Item = &'a Server>) {
    for server in servers {
        assert!(server.connect().ok(&format!("DLOCK.ACQUIRE r {token} 600000")).int() > 0);
    }
}

/// Releases `r` on these servers with this token.
#[track_caller]
fn release_as<'a>(token: &str, servers: impl IntoIterator<Item = &'a Server>) {
    for server in servers {
        assert_eq!(server.connect().ok(&format!("DLOCK.RELEASE r {token}")), 1);
    }
}

/// Returns the tokens that hold the resource on a server.
#[track_caller]
fn holders(server: &Server, resource: &str) -> Vec<String> {
    queue::holders(&mut server.connect(), resource)
}

/// Returns the tokens that wait for `r` on a server, the head of the queue first.
#[track_caller]
fn waiters(server: &Server) -> Vec<String> {
    queue::tokens(&mut server.connect(), "r")
}

/// Waits until this many clients wait for `r`, on all living servers together.
#[track_caller]
fn until_waiting(servers: &[Server], count: usize) {
    until(&format!("{count} clients wait"), || {
        let living = servers.iter().filter(|server| server.is_alive());
        living.map(|server| waiters(server).len()).sum::<usize>() == count
    });
}

/// Blocks this thread until one `ttl` after the end of the guard's present validity. The test fails if the
/// hold is not renewed meanwhile.
#[track_caller]
fn outlast_lease(guard: &Guard, ttl: Duration) {
    outlast(guard, guard.valid_until() + ttl);
}

#[track_caller]
fn outlast(guard: &Guard, end: Instant) {
    until("the lease would have ended", || now() > end);
    assert_eq!(guard.loss(), None);
}

/// Runs a future until a client waits for `r` on the server.
async fn run_until_waiting<T>(server: &Server, future: impl Future<Output = T> + Unpin) {
    let mut conn = server.connect();
    let waits = move || until("a client waits", || !queue::tokens(&mut conn, "r").is_empty());
    tokio::select! {
        _ = future => panic!("the future ended without a wait"),
        waits = tokio::task::spawn_blocking(waits) => waits.expect("no panic"),
    }
}

/// Returns the number of living servers on which the resource is held.
#[track_caller]
fn held_on(servers: &[Server], resource: &str) -> usize {
    servers.iter().filter(|server| server.is_alive() && !holders(server, resource).is_empty()).count()
}

/// Waits until every server has the hold; all must be alive. An acquisition needs only a majority.
#[track_caller]
fn until_held_everywhere(servers: &[Server], resource: &str) {
    until("every server has the hold", || held_on(servers, resource) == servers.len());
}

/// Acquires `r`, and drops the guard once every server has the hold. Dropped earlier, it could cancel a
/// request that is not sent yet, and nothing would renew the hold.
async fn forgotten(servers: &[Server], lock: Acquire) -> ForgottenHold {
    let guard = lock.await.expect("the lock is free");
    until_held_everywhere(servers, "r");
    guard.forget().expect("not lost")
}

/// Waits until no living server has a hold or a waiter of the resource.
#[track_caller]
fn until_nothing_is_left(servers: &[Server], resource: &str) {
    for server in servers.iter().filter(|server| server.is_alive()) {
        let mut conn = server.connect();
        until("the server has neither a hold nor a waiter", || {
            conn.ok(&format!("DLOCK.INSPECT {resource}")) == Value::Nil
        });
    }
}
