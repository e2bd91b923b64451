//! The wire: commands as bytes, replies as lines or values. A command is encoded once; only its key changes
//! from one use to the next.

use std::io::{Error, ErrorKind, Read, Result, Write};
use std::net::TcpStream;
use std::time::Duration;

/// A placeholder in a command's arguments for the key that each use fills in.
pub const KEY: &str = "lock:............";
const DIGITS: usize = 12;
const BEFORE_DIGITS: usize = KEY.len() - DIGITS;

/// A command with holes for the key.
#[derive(Clone)]
pub struct Command {
    bytes: Vec<u8>,
    /// Where the digits of the key begin.
    holes: Vec<usize>,
}

impl Command {
    pub fn new(args: &[&str]) -> Command {
        let mut bytes = format!("*{}\r\n", args.len()).into_bytes();
        let mut holes = Vec::new();
        for arg in args {
            bytes.extend(format!("${}\r\n", arg.len()).bytes());
            // A key may be a part of an argument, as in the name of a channel.
            holes.extend(arg.match_indices(KEY).map(|(at, _)| bytes.len() + at + BEFORE_DIGITS));
            bytes.extend(arg.bytes());
            bytes.extend(b"\r\n");
        }
        Command { bytes, holes }
    }

    /// The command for the key of this number.
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

/// Any reply.
#[derive(Debug, PartialEq)]
pub enum Value {
    Nil,
    Int(i64),
    Text(String),
    Error(String),
    Array(Vec<Value>),
}

/// Longer than any measurement waits for one reply.
const TIMEOUT: Duration = Duration::from_secs(60);

/// A connection, with what it has received and not yet used.
pub struct Conn {
    stream: TcpStream,
    received: Vec<u8>,
    used: usize,
}

impl Conn {
    pub fn open(port: u16) -> Result<Conn> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        Ok(Conn { stream, received: Vec::new(), used: 0 })
    }

    pub fn send(&mut self, bytes: &[u8]) -> Result<()> {
        self.stream.write_all(bytes)
    }

    /// The next line, without its end. Many replies are one line each.
    pub fn line(&mut self) -> Result<&[u8]> {
        let mut seen = self.used;
        loop {
            if let Some(at) = self.received[seen..].iter().position(|byte| *byte == b'\n') {
                let (start, end) = (self.used, seen + at);
                self.used = end + 1;
                return Ok(&self.received[start..end.saturating_sub(1).max(start)]);
            }
            seen = self.received.len();
            seen -= self.receive()?;
        }
    }

    /// Skips a reply of this many lines whose content does not matter, such as a message.
    pub fn skip(&mut self, lines: usize) -> Result<()> {
        for _ in 0..lines {
            if let [b'-', ..] = self.line()? {
                return Err(strange("an error where lines are skipped"));
            }
        }
        Ok(())
    }

    /// Whether something comes within this time.
    pub fn comes_within(&mut self, time: Duration) -> Result<bool> {
        if self.used < self.received.len() {
            return Ok(true);
        }
        self.stream.set_read_timeout(Some(time.max(Duration::from_millis(1))))?;
        let seen = self.stream.peek(&mut [0]);
        self.stream.set_read_timeout(Some(TIMEOUT))?;
        match seen {
            Ok(_) => Ok(true),
            Err(why) if matches!(why.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(why) => Err(why),
        }
    }

    /// Reads what is there, at least a byte. Answers how many used bytes it has let go.
    fn receive(&mut self) -> Result<usize> {
        let gone = std::mem::take(&mut self.used);
        self.received.drain(..gone);
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk)? {
            0 => Err(Error::new(ErrorKind::UnexpectedEof, "the server closed the connection")),
            n => {
                self.received.extend_from_slice(&chunk[..n]);
                Ok(gone)
            }
        }
    }

    pub fn value(&mut self) -> Result<Value> {
        let line = String::from_utf8_lossy(self.line()?).into_owned();
        let (kind, rest) = line.split_at_checked(1).unwrap_or_default();
        let number = || rest.parse::<i64>().map_err(|_| strange(&line));
        Ok(match kind {
            "+" => Value::Text(rest.into()),
            "-" => Value::Error(rest.into()),
            ":" => Value::Int(number()?),
            "$" | "*" if number()? < 0 => Value::Nil,
            "$" => Value::Text(self.bulk(number()? as usize)?),
            "*" => Value::Array((0..number()?).map(|_| self.value()).collect::<Result<_>>()?),
            _ => return Err(strange(&line)),
        })
    }

    fn bulk(&mut self, len: usize) -> Result<String> {
        while self.received.len() - self.used < len + 2 {
            self.receive()?;
        }
        let text = String::from_utf8_lossy(&self.received[self.used..self.used + len]).into_owned();
        self.used += len + 2;
        Ok(text)
    }

    /// Sends one command and waits for its reply; an error reply is an error.
    pub fn call(&mut self, args: &[&str]) -> Result<Value> {
        self.send(&Command::new(args).bytes)?;
        match self.value()? {
            Value::Error(text) => Err(Error::other(format!("{}: {text}", args[0]))),
            value => Ok(value),
        }
    }
}

/// The error for a reply that is not what it should be.
pub fn strange(reply: &str) -> Error {
    Error::new(ErrorKind::InvalidData, format!("strange reply: {reply}"))
}

/// What a reply of one line must be.
#[derive(Clone, Copy)]
pub enum Expect {
    /// This line.
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
        if fits { Ok(()) } else { Err(strange(&String::from_utf8_lossy(line))) }
    }
}
