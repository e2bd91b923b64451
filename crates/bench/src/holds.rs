//! A server with very many holds, or with as many strings that have a TTL.

use std::io::{Error, Result};
use std::ops::Range;
use std::time::{Duration, Instant};

use crate::contenders::TOKEN;
use crate::resp::{Command, Conn, Expect, KEY};
use crate::server::{Program, Server};

/// Locks of dlock, or the strings that other lock libraries set.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum HoldKind {
    Dlock,
    Set,
}

/// Lease of the holds that outlast the measurement.
const LONG: Duration = Duration::from_secs(40_000);

/// Commands in one write, all with the same lease.
const BATCH: u64 = 250;

/// A server with its holds. Each lock has a number, which is part of its key.
pub struct Holds {
    pub server: Server,
    pub conn: Conn,
    kind: HoldKind,
}

impl HoldKind {
    pub fn name(self) -> &'static str {
        match self {
            HoldKind::Dlock => "dlock",
            HoldKind::Set => "SET PX",
        }
    }
}

impl Holds {
    /// Starts a server without holds.
    pub fn start(program: &Program, kind: HoldKind) -> Result<Holds> {
        let server = program.start(kind == HoldKind::Dlock, &[])?;
        Ok(Holds { conn: server.connect()?, server, kind })
    }

    /// Acquires the locks of these numbers for longer than any measurement.
    pub fn acquire_long(&mut self, numbers: Range<u64>) -> Result<()> {
        self.acquire(TOKEN, numbers, || Ok(LONG)).map_err(|why| self.explain(&why))
    }

    /// Like [`Holds::acquire_long`], but each hold has a token of its own, which has `token_bytes` bytes.
    pub fn acquire_with_own_tokens(&mut self, numbers: Range<u64>, token_bytes: usize) -> Result<()> {
        // `Command` writes the number of the key into each `KEY` in its arguments. The token begins with
        // `KEY`, so each command has a token of its own.
        let token = format!("{KEY}{}", &TOKEN[..token_bytes - KEY.len()]);
        self.acquire(&token, numbers, || Ok(LONG)).map_err(|why| self.explain(&why))
    }

    /// Acquires the locks of these numbers. All leases end at `due`. The caller adds the server's
    /// log to an error ([`Holds::explain`]).
    pub fn acquire_until(&mut self, numbers: Range<u64>, due: Instant) -> Result<()> {
        self.acquire(TOKEN, numbers, || {
            let left = due.saturating_duration_since(Instant::now());
            let late = || Error::other("acquiring the locks takes longer than their lease");
            if left.as_millis() > 0 { Ok(left) } else { Err(late()) }
        })
    }

    /// Acquires the locks of these numbers. `lease` is called before each write, and returns the lease of its
    /// holds.
    fn acquire(&mut self, token: &str, all: Range<u64>, lease: impl Fn() -> Result<Duration>) -> Result<()> {
        let mut batch = Vec::new();
        for first in all.clone().step_by(BATCH as usize) {
            let ttl = lease()?.as_millis().to_string();
            let (command, expected) = match self.kind {
                HoldKind::Dlock => (Command::new(&["DLOCK.ACQUIRE", KEY, token, &ttl]), Expect::Number),
                HoldKind::Set => (Command::new(&["SET", KEY, token, "NX", "PX", &ttl]), Expect::Line("+OK")),
            };
            let numbers = first..all.end.min(first + BATCH);
            batch.clear();
            numbers.clone().for_each(|number| command.push(&mut batch, number));
            self.conn.send(&batch)?;
            for _ in numbers {
                expected.check(self.conn.line()?)?;
            }
        }
        Ok(())
    }

    /// Returns by how much the number of keys, expired or not, exceeds `number`.
    pub fn keys_beyond(&mut self, number: u64) -> Result<u64> {
        let keys = self.conn.call(&["DBSIZE"])?.int();
        Ok((keys as u64).saturating_sub(number))
    }

    /// Deletes the keys of these numbers, if they exist.
    pub fn remove(&mut self, all: Range<u64>) -> Result<()> {
        let command = Command::new(&["DEL", KEY]);
        for first in all.clone().step_by(BATCH as usize) {
            let numbers = first..all.end.min(first + BATCH);
            let mut batch = Vec::new();
            numbers.clone().for_each(|number| command.push(&mut batch, number));
            self.conn.send(&batch)?;
            self.conn.skip(numbers.count())?;
        }
        Ok(())
    }

    pub fn explain(&self, why: &Error) -> Error {
        self.server.explain(self.kind.name(), why)
    }
}
