//! The wire: commands as bytes, replies as lines or values. A command is encoded once, and each use fills in
//! its key.

use std::io::{Error, ErrorKind, Result};
use std::time::{Duration, Instant};

use dlock_testkit::{Value, Wire, encode};

/// Placeholder in a command's arguments for the key that each use fills in.
pub const KEY: &str = "lock:............";
const DIGITS: usize = 12;
const BEFORE_DIGITS: usize = KEY.len() - DIGITS;

/// An encoded command with holes for the key.
#[derive(Clone)]
pub struct Command {
    bytes: Vec<u8>,
    /// Positions of the digits of the key.
    holes: Vec<usize>,
}

impl Command {
    pub fn new(args: &[&str]) -> Command {
        let bytes = encode(args);
        // The key may be a part of an argument, for example of a channel's name.
        let keys = bytes.windows(KEY.len()).enumerate().filter(|(_, window)| *window == KEY.as_bytes());
        let holes = keys.map(|(at, _)| at + BEFORE_DIGITS).collect();
        Command { bytes, holes }
    }

    /// Returns the command for the key of this number.
    pub fn on_key(&self, number: u64) -> Vec<u8> {
        let mut bytes = Vec::new();
        self.push(&mut bytes, number);
        bytes
    }

    /// Appends the command for the key of this number.
    pub fn push(&self, batch: &mut Vec<u8>, mut number: u64) {
        let start = batch.len();
        batch.extend_from_slice(&self.bytes);
        let mut digits = [b'0'; DIGITS];
        for digit in digits.iter_mut().rev() {
            *digit += (number % 10) as u8;
            number /= 10;
        }
        for hole in &self.holes {
            batch[start + hole..start + hole + DIGITS].copy_from_slice(&digits);
        }
    }
}

/// Read timeout. Generous, because it only ends a hang.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection that returns each failure as an error, a missing reply included.
pub struct Conn(Wire);

impl Conn {
    pub fn open(port: u16) -> Result<Conn> {
        Wire::connect(port).map(Conn)
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.0.send(bytes)
    }

    /// Returns the next line without its end. Most replies are one line.
    pub fn line(&mut self) -> Result<&[u8]> {
        self.0.line(TIMEOUT)?.ok_or_else(no_reply)
    }

    /// Skips a reply of this many lines, for example a message. Returns `Err` for an error reply.
    pub fn skip(&mut self, lines: usize) -> Result<()> {
        for _ in 0..lines {
            if let [b'-', ..] = self.line()? {
                return Err(unexpected("an error where lines are skipped"));
            }
        }
        Ok(())
    }

    /// Returns true if data arrives within this time.
    pub fn receives_within(&mut self, time: Duration) -> Result<bool> {
        Ok(self.has_received() || self.0.receive_within(time)?)
    }

    /// Returns true if unread data has arrived.
    pub fn has_received(&self) -> bool {
        !self.0.rest().is_empty()
    }

    pub fn value(&mut self) -> Result<Value> {
        self.0.value(Instant::now() + TIMEOUT)?.ok_or_else(no_reply)
    }

    /// Sends one command and waits for its reply. Returns `Err` for an error reply.
    pub fn call(&mut self, args: &[&str]) -> Result<Value> {
        self.send(&encode(args))?;
        match self.value()? {
            Value::Error(text) => Err(Error::other(format!("{}: {text}", args[0]))),
            value => Ok(value),
        }
    }
}

fn no_reply() -> Error {
    Error::new(ErrorKind::TimedOut, format!("no reply within {TIMEOUT:?}"))
}

/// Returns the error for an unexpected reply.
pub fn unexpected(reply: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("unexpected reply: {reply}"))
}

/// The expected reply of one line.
#[derive(Clone, Copy)]
pub enum Expect {
    /// Exactly this line.
    Line(&'static str),
    /// A number above 0.
    Number,
}

impl Expect {
    pub fn check(self, line: &[u8]) -> Result<()> {
        let fits = match self {
            Expect::Line(expected) => line == expected.as_bytes(),
            Expect::Number => {
                matches!(line, [b':', b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit))
            }
        };
        if fits { Ok(()) } else { Err(unexpected(&String::from_utf8_lossy(line))) }
    }
}
