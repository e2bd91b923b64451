//! The locks under test: dlock, Redlock with `SET NX PX`, and `SET NX PX` in a cluster.

use redis::{Client as RedisClient, Cmd, FromRedisValue, RedisResult};
use std::cell::RefCell;
use std::collections::HashMap;
use std::env;
use std::time::Duration;

use dlock_client::{AcquireError, Client, Guard, Retry, Wait, now};
use dlock_quorum::{Instant, Lease};

/// Compares and deletes, as the script in the description of Redlock does.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

/// Limit of each wait, unless a test sets another one.
pub const LONGEST_WAIT: Duration = Duration::from_secs(3);

pub enum Locks {
    Dlock { client: Client, ttl: Duration, fenced: bool, wait: Duration },
    Redlock { masters: Vec<RedisClient>, ttl: Duration },
    SetNx { cluster: PlainCluster, ttl: Duration },
}

pub enum Held {
    Dlock(Guard),
    Redlock { token: String, valid_until: Instant },
}

impl Locks {
    pub async fn dlock(urls: &[String], ttl: Duration, fenced: bool) -> Locks {
        let retry = Retry::new(3, Duration::from_millis(50));
        let client = Client::builder().servers(urls).retry(retry).build().await;
        // `DLOCK_WAIT`, in ms, as for the clients in other languages.
        let wait = env::var("DLOCK_WAIT").map(|ms| Duration::from_millis(ms.parse().expect("ms")));
        Locks::Dlock { client: client.expect("a client"), ttl, fenced, wait: wait.unwrap_or(LONGEST_WAIT) }
    }

    pub fn redlock(urls: &[String], ttl: Duration) -> Locks {
        let masters = urls.iter().map(|url| RedisClient::open(url.as_str()).expect("an address"));
        Locks::Redlock { masters: masters.collect(), ttl }
    }

    /// `url` names every node of a cluster.
    pub fn set_nx(url: &str, ttl: Duration) -> Locks {
        Locks::SetNx { cluster: PlainCluster::of(url), ttl }
    }

    /// Returns `None` if the lock is taken or there is no quorum. The caller sets `renew` to false if it will
    /// pause, because the renewals run in a thread that the pause does not stop.
    pub async fn acquire(&self, resource: &str, renew: bool) -> Option<Held> {
        match self {
            Locks::Dlock { client, ttl, fenced, wait } => {
                let lock = client.lock(resource).ttl(*ttl).wait(Wait::For(*wait));
                let lock = if *fenced { lock.fenced() } else { lock };
                match lock.renew(renew).acquire().await {
                    Ok(guard) => Some(Held::Dlock(guard)),
                    Err(why @ (AcquireError::Option(_) | AcquireError::Deadlock { .. })) => panic!("{why}"),
                    Err(_) => None,
                }
            }
            Locks::Redlock { masters, ttl } => {
                let token = fresh_token();
                let (sent, lease) = (now(), lease(*ttl));
                let set = set_nx(resource, &token, *ttl);
                let votes = masters.iter().filter(|master| matches!(ask(master, &set), Ok(Some(())))).count();
                let held = Held::Redlock { token, valid_until: lease.valid_until(sent) };
                if votes > masters.len() / 2 && held.valid_until() > now() {
                    return Some(held);
                }
                self.release(resource, held).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
            Locks::SetNx { cluster, ttl } => {
                let (token, sent) = (fresh_token(), now());
                let held = Held::Redlock { token: token.clone(), valid_until: lease(*ttl).valid_until(sent) };
                let set = cluster.ask::<Option<()>>(resource, &set_nx(resource, &token, *ttl));
                if matches!(set, Ok(Some(()))) && held.valid_until() > now() {
                    return Some(held);
                }
                self.release(resource, held).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
        }
    }

    /// Releases a hold, or what a failed acquisition may have left.
    pub async fn release(&self, resource: &str, held: Held) {
        match (self, held) {
            (_, Held::Dlock(guard)) => drop(guard.release().await),
            (Locks::Redlock { masters, .. }, Held::Redlock { token, .. }) => {
                let release = delete(resource, &token);
                masters.iter().for_each(|master| drop(ask::<i64>(master, &release)));
            }
            (Locks::SetNx { cluster, .. }, Held::Redlock { token, .. }) => {
                drop(cluster.ask::<i64>(resource, &delete(resource, &token)));
            }
            (Locks::Dlock { .. }, Held::Redlock { .. }) => unreachable!("a hold of the other kind of lock"),
        }
    }

    /// Waits for background releases.
    pub async fn flush(&self) {
        if let Locks::Dlock { client, .. } = self {
            client.flush().await;
        }
    }
}

impl Held {
    /// Returns the fence. A lock without a fence returns the same number for all holds.
    pub fn fence(&self) -> i64 {
        match self {
            Held::Dlock(guard) => guard.fence().map_or(1, |fence| fence.get() as i64),
            Held::Redlock { .. } => 1,
        }
    }

    pub fn valid_until(&self) -> Instant {
        match self {
            Held::Dlock(guard) => guard.valid_until(),
            Held::Redlock { valid_until, .. } => *valid_until,
        }
    }

    /// Returns whether the client has noticed the loss.
    pub fn is_lost(&self) -> bool {
        let noticed = matches!(self, Held::Dlock(guard) if guard.loss().is_some());
        noticed || now() >= self.valid_until()
    }
}

const NODE_TIMEOUT: Duration = Duration::from_millis(250);

fn lease(ttl: Duration) -> Lease {
    Lease::new(ttl).expect("a lease of more than 2 ms")
}

fn set_nx(resource: &str, token: &str, ttl: Duration) -> Cmd {
    let mut set = redis::cmd("SET");
    set.arg(resource).arg(token).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
    set
}

/// The request that releases what [`set_nx`] has set.
fn delete(resource: &str, token: &str) -> Cmd {
    let mut release = redis::cmd("EVAL");
    release.arg(RELEASE).arg(1).arg(resource).arg(token);
    release
}

/// The nodes of a cluster, and requests that follow redirects.
pub struct PlainCluster {
    nodes: Vec<String>,
    /// The node that answered last for each resource.
    owners: RefCell<HashMap<String, String>>,
}

impl PlainCluster {
    fn of(url: &str) -> PlainCluster {
        let (_, nodes) = url.split_once("://").expect("an address");
        let nodes =
            nodes.split(['?', '&']).map(|node| node.trim_start_matches("node=").to_string()).collect();
        PlainCluster { nodes, owners: RefCell::default() }
    }

    fn ask<T: FromRedisValue>(&self, resource: &str, command: &Cmd) -> RedisResult<T> {
        let mut node = self.owners.borrow().get(resource).unwrap_or(&self.nodes[0]).clone();
        for other in &self.nodes {
            let asked = ask(&RedisClient::open(format!("redis://{node}")).expect("an address"), command);
            match asked {
                Ok(answer) => {
                    self.owners.borrow_mut().insert(resource.to_string(), node);
                    return Ok(answer);
                }
                Err(why) => node = why.redirect_node().map_or(other.as_str(), |(node, _)| node).to_string(),
            }
        }
        ask(&RedisClient::open(format!("redis://{node}")).expect("an address"), command)
    }
}

fn ask<T: FromRedisValue>(master: &RedisClient, command: &Cmd) -> RedisResult<T> {
    let mut conn = master.get_connection_with_timeout(NODE_TIMEOUT)?;
    conn.set_read_timeout(Some(NODE_TIMEOUT))?;
    command.query(&mut conn)
}

fn fresh_token() -> String {
    let mut bytes = [0; 20];
    let mut source = std::fs::File::open("/dev/urandom").expect("randomness");
    std::io::Read::read_exact(&mut source, &mut bytes).expect("randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
