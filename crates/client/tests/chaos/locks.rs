//! The locks under test: dlock, and Redlock with `SET NX PX`.

use redis::{Client as RedisClient, Cmd, FromRedisValue, RedisResult};
use std::env;
use std::time::Duration;

use dlock_client::{AcquireError, Client, Guard, Retry, Wait, now};
use dlock_quorum::{Instant, Lease};

/// Compares and deletes, as the script in the description of Redlock does.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub enum Locks {
    Dlock { client: Client, ttl: Duration, fenced: bool, wait: Duration },
    Redlock { masters: Vec<RedisClient>, ttl: Duration },
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
        let wait = env::var("DLOCK_WAIT").map_or(3_000, |ms| ms.parse().expect("ms"));
        Locks::Dlock { client: client.expect("a client"), ttl, fenced, wait: Duration::from_millis(wait) }
    }

    pub fn redlock(urls: &[String], ttl: Duration) -> Locks {
        let masters = urls.iter().map(|url| RedisClient::open(url.as_str()).expect("an address"));
        Locks::Redlock { masters: masters.collect(), ttl }
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
                let (sent, lease) = (now(), Lease::new(*ttl).expect("a lease of more than 2 ms"));
                let mut set = redis::cmd("SET");
                set.arg(resource).arg(&token).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
                let votes = masters.iter().filter(|master| matches!(ask(master, &set), Ok(Some(())))).count();
                let held = Held::Redlock { token, valid_until: lease.valid_until(sent) };
                if votes > masters.len() / 2 && held.valid_until() > now() {
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
                let mut release = redis::cmd("EVAL");
                release.arg(RELEASE).arg(1).arg(resource).arg(token);
                masters.iter().for_each(|master| drop(ask::<i64>(master, &release)));
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
