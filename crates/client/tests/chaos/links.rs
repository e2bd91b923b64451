//! Masters, and a link (a proxy) from each client to each master: a test can cut one client's link without
//! affecting the other clients.

use std::time::Duration;

use dlock_client::{Client, now};
use tokio::net::TcpListener;
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::task::JoinSet;

use crate::proxy::{Cut, Proxy};
use dlock_testkit::{Random, Server, ServerKind};

/// The client's default node timeout.
const NODE_TIMEOUT: Duration = Duration::from_millis(250);

/// Length of each hold.
pub const HOLD: Duration = Duration::from_millis(20);

pub struct Links {
    /// Masters, sorted by run id. All clients queue at the first one that they reach.
    pub masters: Vec<Server>,
    /// Links of each client to each master.
    pub links: Vec<Vec<Proxy>>,
    _network: Runtime,
}

impl Links {
    pub fn start(kind: &ServerKind, masters: usize, clients: usize) -> Links {
        Links::with_order(kind, masters, clients, |_| false)
    }

    /// Starts masters and links. `reversed` selects the clients with links that have port numbers in the
    /// reverse order of the masters.
    pub fn with_order(
        kind: &ServerKind,
        masters: usize,
        clients: usize,
        reversed: impl Fn(usize) -> bool,
    ) -> Links {
        let network = Builder::new_multi_thread().worker_threads(1).enable_all().build().expect("a runtime");
        let mut masters: Vec<Server> = (0..masters).map(|_| Server::start(kind)).collect();
        masters.sort_by_cached_key(|master| master.info("run_id"));
        let mut random = Random::fresh();
        let links = (0..clients)
            .map(|number| links(&masters, reversed(number), network.handle(), &mut random))
            .collect();
        Links { masters, links, _network: network }
    }

    pub async fn client(&self, number: usize) -> Client {
        // Each client lists the masters in another order: the choice of the queue must not depend on it.
        let mut urls: Vec<String> = self.links[number].iter().map(Proxy::url).collect();
        urls.rotate_left(number % self.masters.len());
        Client::builder().servers(urls).node_timeout(NODE_TIMEOUT).build().await.expect("a client")
    }

    pub async fn clients(&self) -> Vec<Client> {
        let mut clients = Vec::new();
        for number in 0..self.links.len() {
            clients.push(self.client(number).await);
        }
        clients
    }

    /// Cuts one client's link to the master where all clients queue.
    pub fn cut_from_queue_master(&self, client: usize, cut: Cut) {
        self.links[client][0].set_cut(cut);
    }
}

/// Opens the links of one client. Their port numbers rise in the order of the masters, or fall if `reversed`.
/// So clients would choose different queues if they sorted the masters by address.
fn links(masters: &[Server], reversed: bool, network: &Handle, random: &mut Random) -> Vec<Proxy> {
    let mut bound: Vec<TcpListener> = (masters.iter())
        .map(|_| network.block_on(TcpListener::bind(("127.0.0.1", 0))).expect("a free port"))
        .collect();
    bound.sort_by_key(|listener| listener.local_addr().expect("its own address").port());
    if reversed {
        bound.reverse();
    }
    let pairs = masters.iter().zip(bound);
    pairs.map(|(master, listener)| Proxy::at(listener, master.port(), network, random.branch())).collect()
}

/// Runs all clients for `length`. Returns the number of acquisitions of each.
pub async fn compete(clients: &[Client], length: Duration) -> Vec<usize> {
    let end = now() + length;
    let mut working = JoinSet::new();
    for (number, client) in clients.iter().cloned().enumerate() {
        working.spawn(async move {
            let mut count = 0;
            while now() < end {
                let acquired =
                    tokio::time::timeout(end.saturating_since(now()), client.lock("r").fenced().acquire());
                if let Ok(Ok(guard)) = acquired.await {
                    count += 1;
                    tokio::time::sleep(HOLD).await;
                    let _ = guard.release().await;
                }
            }
            (number, count)
        });
    }
    let mut counts = vec![0; clients.len()];
    while let Some(done) = working.join_next().await {
        let (number, count) = done.expect("no panic");
        counts[number] = count;
    }
    counts
}

/// Returns Jain's index: 1 for equal counts, 1/n if one client has all.
pub fn jain(counts: &[usize]) -> f64 {
    let sum: f64 = counts.iter().map(|count| *count as f64).sum();
    let squares: f64 = counts.iter().map(|count| (*count as f64).powi(2)).sum();
    if squares == 0.0 { 0.0 } else { sum * sum / (counts.len() as f64 * squares) }
}

/// Returns whether each count is at least half of the mean, and Jain's index at least 0.9.
pub fn is_fair(counts: &[usize]) -> bool {
    let smallest = counts.iter().min().copied().unwrap_or(0);
    2 * smallest * counts.len() >= counts.iter().sum() && jain(counts) >= 0.9
}
