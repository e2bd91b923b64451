//! Clients of a lock over several masters: ours and those of Redlock libraries, each as its README uses it.

use std::io::{Error, Result};
use std::sync::Arc;
use std::time::Duration;

use dlock_client::{Client, Guard};
use redlock::RedLock;
use rslock::{Lock, LockManager};
use tokio::task::spawn_blocking;

/// A lock over several masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// With a fence over all masters or without.
    Dlock { masters: usize, fenced: bool },
    /// The crate rslock, which retries after 200 ms.
    Rslock,
    /// The crate redlock: one master after the other, each time on a new connection. It retries after up to
    /// 200 ms.
    Redlock,
}

const TTL: Duration = Duration::from_secs(30);

/// One client.
pub enum Holder {
    Dlock { client: Client, fenced: bool, guard: Option<Guard> },
    Rslock { manager: LockManager, lock: Option<Lock> },
    Redlock { manager: Arc<RedLock>, lock: Option<Held> },
}

/// A resource that the crate redlock has locked, and the value it set.
pub struct Held {
    resource: Vec<u8>,
    value: Vec<u8>,
}

fn failed(why: impl std::fmt::Display) -> Error {
    Error::other(why.to_string())
}

impl Way {
    pub fn name(self) -> String {
        match self {
            Way::Dlock { masters: 1, .. } => "dlock, one master".into(),
            Way::Dlock { masters, fenced: false } => format!("dlock, {masters} masters"),
            Way::Dlock { masters, fenced: true } => format!("dlock, {masters} masters, fenced"),
            Way::Rslock => "rslock, 5 masters".into(),
            Way::Redlock => "redlock-rs, 5 masters".into(),
        }
    }

    pub async fn client(self, ports: &[u16]) -> Result<Holder> {
        let url = |port: &u16| format!("redis://127.0.0.1:{port}");
        match self {
            Way::Dlock { masters, fenced } => {
                let client = Client::builder().servers(ports[..masters].iter().map(url)).build().await;
                Ok(Holder::Dlock { client: client.map_err(failed)?, fenced, guard: None })
            }
            Way::Rslock => {
                let manager = LockManager::new(ports.iter().map(url).collect::<Vec<_>>());
                Ok(Holder::Rslock { manager, lock: None })
            }
            Way::Redlock => {
                let manager = Arc::new(RedLock::new(ports.iter().map(url).collect()));
                Ok(Holder::Redlock { manager, lock: None })
            }
        }
    }
}

impl Holder {
    /// Returns once it holds the lock.
    pub async fn acquire(&mut self, resource: &str) -> Result<()> {
        match self {
            Holder::Dlock { client, fenced, guard } => {
                let lock = client.lock(resource).ttl(TTL);
                let lock = if *fenced { lock.fenced() } else { lock };
                *guard = Some(lock.acquire().await.map_err(failed)?);
            }
            Holder::Rslock { manager, lock } => {
                // It gives up after a few tries; a client that wants the lock keeps trying.
                *lock = loop {
                    if let Ok(lock) = manager.lock(resource.as_bytes(), TTL).await {
                        break Some(lock);
                    }
                };
            }
            Holder::Redlock { manager, lock } => {
                let (manager, resource) = (manager.clone(), resource.as_bytes().to_vec());
                let ttl = TTL.as_millis() as usize;
                *lock = spawn_blocking(move || {
                    loop {
                        match manager.lock(&resource, ttl) {
                            Ok(Some(lock)) => {
                                let value = lock.val;
                                break Ok(Some(Held { resource, value }));
                            }
                            Ok(None) => {}
                            Err(why) => break Err(failed(why)),
                        }
                    }
                })
                .await??;
            }
        }
        Ok(())
    }

    pub async fn release(&mut self) -> Result<()> {
        match self {
            Holder::Dlock { guard, .. } => match guard.take() {
                Some(guard) => guard.release().await.map_err(failed),
                None => Ok(()),
            },
            Holder::Rslock { manager, lock } => {
                if let Some(lock) = lock.take() {
                    manager.unlock(&lock).await;
                }
                Ok(())
            }
            Holder::Redlock { manager, lock } => {
                let Some(Held { resource, value }) = lock.take() else { return Ok(()) };
                let manager = manager.clone();
                let unlocked = spawn_blocking(move || {
                    manager.unlock(&redlock::Lock {
                        resource,
                        val: value,
                        validity_time: 0,
                        lock_manager: &manager,
                    });
                });
                Ok(unlocked.await?)
            }
        }
    }
}
