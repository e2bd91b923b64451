//! A planned failover behind one address: the old master lives on as a replica, and its connections stay
//! open.

use super::proxies::Address;
use super::*;

/// Short, so that the hold is renewed soon.
const TTL: Duration = Duration::from_secs(6);

/// A master with a replica, and the address that leads to the master.
struct Pair {
    old: Server,
    new: Server,
    address: Address,
}

impl Pair {
    async fn start(kind: &ServerKind) -> (Pair, Client) {
        let (old, new) = Server::with_replica(kind);
        let address = Address::of(&old);
        let builder = Client::builder().server(address.url()).node_timeout(Duration::from_secs(5));
        (Pair { old, new, address }, builder.build().await.expect("a client"))
    }

    /// Makes the replica the master, and the master its replica.
    fn swap(&self) {
        self.new.wait_in_sync(&self.old);
        self.new.promote();
        self.old.replicate(&self.new);
    }

    fn lead_to_the_new_master(&self) {
        self.address.lead_new_connections_to(&self.new);
    }
}

#[each_server]
async fn holds_and_waits_follow_the_address_to_the_new_master(kind: &ServerKind) {
    let (pair, client) = Pair::start(kind).await;
    let guard = client.lock("r").ttl(TTL).acquire().await.expect("the lock is free");
    let waits = tokio::spawn(client.lock("r").ttl(LONG).acquire());
    until("the waiter is queued", || waiters(&pair.old).len() == 1);
    pair.swap();
    pair.lead_to_the_new_master();
    outlast_lease(&guard, TTL);
    until("the waiter is queued at the new master", || waiters(&pair.new).len() == 1);
    guard.release().await.expect("the new master has the hold");
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    until_nothing_is_left(&[pair.new], "r");
}

/// No request has failed yet when the release is sent.
#[each_server]
async fn a_release_follows_the_address_to_the_new_master(kind: &ServerKind) {
    let (pair, client) = Pair::start(kind).await;
    let guard = client.lock("r").ttl(LONG).acquire().await.expect("the lock is free");
    pair.swap();
    pair.lead_to_the_new_master();
    guard.release().await.expect("the new master has the hold");
    assert!(holders(&pair.new, "r").is_empty());
}

/// Returns the number of ACQUIREs that the server has refused before the module saw them.
pub fn refused_acquires(server: &Server) -> u64 {
    let stats = server.connect().ok("INFO commandstats").text().to_lowercase();
    let line = stats.lines().find(|line| line.starts_with("cmdstat_dlock.acquire:")).expect("was called");
    let refused = line.split("rejected_calls=").nth(1).and_then(|rest| rest.split(',').next());
    refused.and_then(|count| count.parse().ok()).expect("a number")
}

/// For some time, the address leads to a server that refuses every request.
#[each_server]
async fn a_wait_outlasts_an_address_that_leads_to_a_replica(kind: &ServerKind) {
    let (pair, client) = Pair::start(kind).await;
    hold_as("other", [&pair.old]);
    let waits = tokio::spawn(client.lock("r").ttl(LONG).acquire());
    until("the waiter is queued", || waiters(&pair.old).len() == 1);
    pair.swap();
    until("the replica has refused requests", || refused_acquires(&pair.old) > 2);
    pair.lead_to_the_new_master();
    until("the waiter is queued at the new master", || waiters(&pair.new).len() == 1);
    release_as("other", [&pair.new]);
    waits.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
}
