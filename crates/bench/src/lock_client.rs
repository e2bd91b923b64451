//! Clients that compete for one lock, each with a connection for commands and another one for messages. They
//! wait for the lock by BLOCK, by polling or by messages: the three ways of lock libraries.

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use crate::contenders::{TTL_MS, Way, channel};
use crate::resp::{Command, Conn, Expect, KEY, unexpected};
use crate::server::Server;

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Waiting {
    /// In the server's wait queue, by BLOCK.
    Block,
    /// Retries after 50 to 250 ms, the default of redsync.
    Poll,
    /// Subscribes and retries at each message, like Redisson.
    Subscribe,
}

const PAUSES_MS: std::ops::RangeInclusive<u64> = 50..=250;

impl Waiting {
    pub fn name(self) -> &'static str {
        match self {
            Waiting::Block => "dlock BLOCK",
            Waiting::Poll => "polling SET NX PX, 50..250 ms (like redsync)",
            Waiting::Subscribe => "publish and retry (like Redisson)",
        }
    }
}

/// A client that competes for the lock.
pub struct Client {
    waiting: Waiting,
    conn: Conn,
    /// Receives messages only.
    listener: Conn,
    acquire: Vec<u8>,
    release: Vec<u8>,
    subscribe: Vec<u8>,
    unsubscribe: Vec<u8>,
    acquired: Expect,
}

impl Client {
    pub fn new(waiting: Waiting, server: &Server, number: usize) -> Result<Client> {
        let (mut conn, listener) = (server.connect()?, server.connect()?);
        let token = format!("5f0a7c19d2e84b36{number:04}");
        let way = match waiting {
            Waiting::Block => Way::Dlock,
            Waiting::Poll => Way::SetScript,
            Waiting::Subscribe => Way::Redisson,
        };
        let mut commands = way
            .prepare(&mut conn, &token)?
            .ok_or_else(|| unexpected("this server lacks a contender's command"))?;
        if waiting == Waiting::Block {
            commands.acquire = Command::new(&["DLOCK.ACQUIRE", KEY, &token, TTL_MS, "BLOCK", "0"]);
        }
        Ok(Client {
            waiting,
            conn,
            listener,
            acquire: commands.acquire.on_key(0),
            release: commands.release.on_key(0),
            subscribe: Command::new(&["SUBSCRIBE", &channel()]).on_key(0),
            unsubscribe: Command::new(&["UNSUBSCRIBE"]).on_key(0),
            acquired: commands.acquired,
        })
    }

    /// Returns once the client holds the lock.
    pub fn acquire(&mut self) -> Result<()> {
        match self.waiting {
            Waiting::Block => {
                self.conn.send(&self.acquire)?;
                self.acquired.check(self.conn.line()?)
            }
            Waiting::Poll => {
                while self.try_acquire()?.is_some() {
                    sleep(Duration::from_millis(rand::random_range(PAUSES_MS)));
                }
                Ok(())
            }
            Waiting::Subscribe => self.acquire_by_messages(),
        }
    }

    pub fn release(&mut self) -> Result<()> {
        self.conn.send(&self.release)?;
        Expect::Line(":1").check(self.conn.line()?)
    }

    /// Like `lock()` of Redisson: subscribes after the first failed try, then tries again at once, at each
    /// message, and when the holder's lease expires.
    fn acquire_by_messages(&mut self) -> Result<()> {
        if self.try_acquire()?.is_none() {
            return Ok(());
        }
        self.listener.send(&self.subscribe)?;
        // Reads the confirmation of the subscription.
        self.listener.value()?;
        while let Some(left) = self.try_acquire()? {
            if self.listener.receives_within(left)? {
                self.listener.value()?;
            }
        }
        self.listener.send(&self.unsubscribe)?;
        // Skips the messages that arrived before the confirmation of UNSUBSCRIBE.
        while self.listener.value()?.items().first().is_none_or(|kind| *kind != "unsubscribe") {}
        Ok(())
    }

    /// Tries once. Returns `None` if the client got the lock. Otherwise returns the time left of the holder's
    /// lease, or zero if the server does not report that time.
    fn try_acquire(&mut self) -> Result<Option<Duration>> {
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
            other => Err(unexpected(&String::from_utf8_lossy(other))),
        }
    }
}
