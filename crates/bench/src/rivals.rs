//! Clients that want a lock which somebody else has: each way of waiting as client libraries do it.

use std::io::Result;
use std::thread::sleep;
use std::time::Duration;

use crate::contend::Fighter;
use crate::contenders::{self, TTL, channel};
use crate::resp::{Command, Conn, Expect, KEY, Value, strange};
use crate::server::Server;

/// A way to wait.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// In the server's line.
    Dlock,
    /// Tries again after 50 to 250 ms, as redsync does unless told otherwise.
    Poll,
    /// Subscribes and tries again at each message, as Redisson does.
    Subscribe,
}

pub const ALL: [Way; 3] = [Way::Subscribe, Way::Dlock, Way::Poll];

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
pub struct Rival {
    way: Way,
    conn: Conn,
    /// Only for messages.
    listener: Conn,
    acquire: Vec<u8>,
    release: Vec<u8>,
    subscribe: Vec<u8>,
    unsubscribe: Vec<u8>,
    acquired: Expect,
}

impl Rival {
    pub fn new(way: Way, server: &Server, number: usize) -> Result<Rival> {
        let (mut conn, listener) = (server.connect()?, server.connect()?);
        let token = format!("5f0a7c19d2e84b36{number:04}");
        let like = match way {
            Way::Dlock => contenders::Way::Dlock,
            Way::Poll => contenders::Way::SetScript,
            Way::Subscribe => contenders::Way::Redisson,
        };
        let mut contender =
            like.prepare(&mut conn, &token)?.ok_or_else(|| strange("a contender is not on this server"))?;
        if way == Way::Dlock {
            contender.acquire = Command::new(&["DLOCK.ACQUIRE", KEY, &token, TTL, "BLOCK", "0"]);
        }
        Ok(Rival {
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

    /// As Redisson's `lock()`: it subscribes only when the first try was in vain, tries once more, and then at each
    /// message, or when the holder's lease is over.
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
        let end = Value::Text("unsubscribe".into());
        while !matches!(self.listener.value()?, Value::Array(parts) if parts.first() == Some(&end)) {}
        Ok(())
    }

    /// One try. In vain, it answers how long the holder's lease lasts, where the server says it.
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

impl Fighter for Rival {
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
