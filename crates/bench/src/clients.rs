//! Clients that wait for a held lock, each in the way that a kind of client library does it.

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use crate::contend::LockClient;
use crate::contenders::{self, TTL, channel};
use crate::resp::{Command, Conn, Expect, KEY, strange};
use crate::server::Server;

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the server's wait queue.
    Dlock,
    /// Retries after 50 to 250 ms, redsync's default.
    Poll,
    /// Subscribes and retries at each message, as Redisson does.
    Subscribe,
}

const JITTER_MS: std::ops::RangeInclusive<u64> = 50..=250;

impl Way {
    pub fn name(self) -> &'static str {
        match self {
            Way::Dlock => "dlock BLOCK",
            Way::Poll => "polling SET NX PX, 50..250 ms (redsync)",
            Way::Subscribe => "publish and retry (Redisson)",
        }
    }
}

/// One client.
pub struct Client {
    way: Way,
    conn: Conn,
    /// For messages only.
    listener: Conn,
    acquire: Vec<u8>,
    release: Vec<u8>,
    subscribe: Vec<u8>,
    unsubscribe: Vec<u8>,
    acquired: Expect,
}

impl Client {
    pub fn new(way: Way, server: &Server, number: usize) -> Result<Client> {
        let (mut conn, listener) = (server.connect()?, server.connect()?);
        let token = format!("5f0a7c19d2e84b36{number:04}");
        let like = match way {
            Way::Dlock => contenders::Way::Dlock,
            Way::Poll => contenders::Way::SetScript,
            Way::Subscribe => contenders::Way::Redisson,
        };
        let mut contender = like
            .prepare(&mut conn, &token)?
            .ok_or_else(|| strange("this server lacks a contender's command"))?;
        if way == Way::Dlock {
            contender.acquire = Command::new(&["DLOCK.ACQUIRE", KEY, &token, TTL, "BLOCK", "0"]);
        }
        Ok(Client {
            way,
            conn,
            listener,
            acquire: contender.acquire.on_key(0),
            release: contender.release.on_key(0),
            subscribe: Command::new(&["SUBSCRIBE", &channel()]).on_key(0),
            unsubscribe: Command::new(&["UNSUBSCRIBE"]).on_key(0),
            acquired: contender.acquired,
        })
    }

    /// As Redisson's `lock()`: it subscribes only after the first try has failed, then tries again at once,
    /// at each message, and when the holder's lease expires.
    fn acquire_by_messages(&mut self) -> Result<()> {
        if self.acquire_or_left()?.is_none() {
            return Ok(());
        }
        self.listener.send(&self.subscribe)?;
        self.listener.value()?;
        while let Some(left) = self.acquire_or_left()? {
            if self.listener.comes_within(left)? {
                self.listener.value()?;
            }
        }
        self.listener.send(&self.unsubscribe)?;
        while self.listener.value()?.items().first().is_none_or(|kind| *kind != "unsubscribe") {}
        Ok(())
    }

    /// One try. If it fails, returns the rest of the holder's lease, zero where the server does not tell.
    fn acquire_or_left(&mut self) -> Result<Option<Duration>> {
        self.conn.send(&self.acquire)?;
        let line = self.conn.line()?;
        if self.acquired.check(line).is_ok() {
            return Ok(None);
        }
        match line {
            b"$-1" => Ok(Some(Duration::ZERO)),
            [b':', digits @ ..] => {
                let ms = std::str::from_utf8(digits).ok().and_then(|digits| digits.parse::<i64>().ok());
                Ok(Some(Duration::from_millis(ms.unwrap_or_default().max(0) as u64)))
            }
            other => Err(strange(&String::from_utf8_lossy(other))),
        }
    }
}

impl LockClient for Client {
    fn acquire(&mut self) -> Result<()> {
        match self.way {
            Way::Dlock => {
                self.conn.send(&self.acquire)?;
                self.acquired.check(self.conn.line()?)
            }
            Way::Poll => {
                while self.acquire_or_left()?.is_some() {
                    sleep(Duration::from_millis(rand::random_range(JITTER_MS)));
                }
                Ok(())
            }
            Way::Subscribe => self.acquire_by_messages(),
        }
    }

    fn release(&mut self) -> Result<()> {
        self.conn.send(&self.release)?;
        Expect::Line(":1").check(self.conn.line()?)
    }
}
