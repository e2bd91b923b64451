//! Clients of a lock over several masters: ours, and those of Redlock libraries, each as its own README uses it.

use std::io::{Error, Result};
use std::time::Duration;

use dlock_client::{Client, Guard};
use rslock::{Lock, LockManager};

/// A lock over several masters.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// So many masters; with a fence over all of them or without.
    Dlock { masters: usize, fenced: bool },
    /// The crate rslock, whose retries come after 200 ms.
    Rslock,
}

const TTL: Duration = Duration::from_secs(30);

/// One client.
pub enum Holder {
    Dlock { client: Client, fenced: bool, guard: Option<Guard> },
    Rslock { manager: LockManager, lock: Option<Lock> },
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
        }
    }
}

impl Holder {
    /// Comes back with the lock.
    pub async fn acquire(&mut self, resource: &str) -> Result<()> {
        match self {
            Holder::Dlock { client, fenced, guard } => {
                let lock = client.lock(resource).ttl(TTL);
                let lock = if *fenced { lock.fenced() } else { lock };
                *guard = Some(lock.acquire().await.map_err(failed)?);
            }
            Holder::Rslock { manager, lock } => {
                // It gives up after a few tries; a client that wants the lock goes on.
                *lock = loop {
                    if let Ok(lock) = manager.lock(resource.as_bytes(), TTL).await {
                        break Some(lock);
                    }
                };
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
        }
    }
}
