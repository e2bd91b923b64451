//! The locks under test: dlock, and Redlock with `SET NX PX`.

use redis::{Client as Stock, Cmd, FromRedisValue, RedisResult};
use std::time::Duration;

use dlock_client::{AcquireError, Client, Guard, Retry, Wait, now};
use dlock_quorum::{Instant, Lease};

/// Compare and delete, as on the Redlock page.
const RELEASE: &str =
    "if redis.call('get', KEYS[1]) == ARGV[1] then return redis.call('del', KEYS[1]) else return 0 end";

pub enum Locks {
    Ours { client: Client, ttl: Duration, fenced: bool },
    Plain { masters: Vec<Stock>, ttl: Duration },
}

pub enum Held {
    Ours(Guard),
    Plain { token: String, valid_until: Instant },
}

impl Locks {
    pub async fn ours(urls: &[String], ttl: Duration, fenced: bool) -> Locks {
        let retry = Retry::new(3, Duration::from_millis(50));
        let client = Client::builder().servers(urls).retry(retry).build().await;
        Locks::Ours { client: client.expect("a client"), ttl, fenced }
    }

    pub fn plain(urls: &[String], ttl: Duration) -> Locks {
        let masters = urls.iter().map(|url| Stock::open(url.as_str()).expect("an address"));
        Locks::Plain { masters: masters.collect(), ttl }
    }

    /// Returns `None` if the lock is taken or there is no quorum. A client that will pause does not renew,
    /// because the client's own thread would.
    pub async fn acquire(&self, resource: &str, renew: bool) -> Option<Held> {
        match self {
            Locks::Ours { client, ttl, fenced } => {
                let lock = client.lock(resource).ttl(*ttl).wait(Wait::For(Duration::from_secs(3)));
                let lock = if *fenced { lock.fenced() } else { lock };
                match lock.renew(renew).acquire().await {
                    Ok(guard) => Some(Held::Ours(guard)),
                    Err(why @ (AcquireError::Option(_) | AcquireError::Deadlock { .. })) => panic!("{why}"),
                    Err(_) => None,
                }
            }
            Locks::Plain { masters, ttl } => {
                let token = fresh_token();
                let (sent, lease) = (now(), Lease::new(*ttl).expect("longer than its drift"));
                let mut set = redis::cmd("SET");
                set.arg(resource).arg(&token).arg("NX").arg("PX").arg(ttl.as_millis() as u64);
                let votes = masters.iter().filter(|master| matches!(ask(master, &set), Ok(Some(())))).count();
                let held = Held::Plain { token, valid_until: lease.valid_until(sent) };
                if votes > masters.len() / 2 && held.valid_until() > now() {
                    return Some(held);
                }
                self.release(resource, held).await;
                tokio::time::sleep(Duration::from_millis(20)).await;
                None
            }
        }
    }

    /// Releases, also after an uncertain acquisition.
    pub async fn release(&self, resource: &str, held: Held) {
        match (self, held) {
            (_, Held::Ours(guard)) => drop(guard.release().await),
            (Locks::Plain { masters, .. }, Held::Plain { token, .. }) => {
                let mut release = redis::cmd("EVAL");
                release.arg(RELEASE).arg(1).arg(resource).arg(token);
                masters.iter().for_each(|master| drop(ask::<i64>(master, &release)));
            }
            (Locks::Ours { .. }, Held::Plain { .. }) => unreachable!("it was acquired by the other kind"),
        }
    }

    /// Waits for background releases.
    pub async fn flush(&self) {
        if let Locks::Ours { client, .. } = self {
            client.flush().await;
        }
    }
}

impl Held {
    /// Returns the fence. A lock without a fence returns the same number for all holds.
    pub fn fence(&self) -> i64 {
        match self {
            Held::Ours(guard) => guard.fence().map_or(1, |fence| fence.get() as i64),
            Held::Plain { .. } => 1,
        }
    }

    pub fn valid_until(&self) -> Instant {
        match self {
            Held::Ours(guard) => guard.valid_until(),
            Held::Plain { valid_until, .. } => *valid_until,
        }
    }

    /// Returns whether the client knows of the loss.
    pub fn is_lost(&self) -> bool {
        let noticed = matches!(self, Held::Ours(guard) if guard.loss().is_some());
        noticed || now() >= self.valid_until()
    }
}

/// Node timeout.
const NODE: Duration = Duration::from_millis(250);

fn ask<T: FromRedisValue>(master: &Stock, command: &Cmd) -> RedisResult<T> {
    let mut conn = master.get_connection_with_timeout(NODE)?;
    conn.set_read_timeout(Some(NODE))?;
    command.query(&mut conn)
}

fn fresh_token() -> String {
    let mut bytes = [0; 20];
    let mut source = std::fs::File::open("/dev/urandom").expect("randomness");
    std::io::Read::read_exact(&mut source, &mut bytes).expect("randomness");
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
