//! Bytes from a server, and RESP out of bytes. Knows no command.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::value::Value;
use crate::wait::TIMEOUT;

/// A connection with what was received and not yet used. A read that runs out of time loses nothing.
pub struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
    used: usize,
    /// How long the socket lets a read wait.
    limit: Duration,
}

impl Wire {
    pub fn connect(port: u16) -> io::Result<Wire> {
        let stream = TcpStream::connect_timeout(&SocketAddr::from(([127, 0, 0, 1], port)), TIMEOUT)?;
        stream.set_nodelay(true)?;
        stream.set_write_timeout(Some(TIMEOUT))?;
        stream.set_read_timeout(Some(TIMEOUT))?;
        Ok(Wire { stream, received: Vec::new(), used: 0, limit: TIMEOUT })
    }

    /// Everything in one write.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// What is here and not yet used.
    pub fn rest(&self) -> &[u8] {
        &self.received[self.used..]
    }

    /// Marks the next `count` bytes as used.
    pub fn advance(&mut self, count: usize) {
        self.used += count;
    }

    /// Waits for more bytes until `deadline`: false when none came. An end of the stream is an error.
    pub fn receive(&mut self, deadline: Instant) -> io::Result<bool> {
        self.receive_within(deadline.saturating_duration_since(Instant::now()))
    }

    /// [`Wire::receive`] that costs one system call as long as the limit stays the same: what a bench wants.
    pub fn receive_within(&mut self, limit: Duration) -> io::Result<bool> {
        // Zero would mean "no limit" to the socket.
        let limit = limit.max(Duration::from_millis(1));
        if limit != self.limit {
            self.stream.set_read_timeout(Some(limit))?;
            self.limit = limit;
        }
        self.received.drain(..self.used);
        self.used = 0;
        let mut chunk = [0; 16 * 1024];
        match self.stream.read(&mut chunk) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(count) => {
                self.received.extend_from_slice(&chunk[..count]);
                Ok(true)
            }
            Err(error) if matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(error) if error.kind() == ErrorKind::Interrupted => Ok(true),
            Err(error) => Err(error),
        }
    }

    /// The next line, without its end, or None when nothing more comes within `limit`.
    #[inline]
    pub fn line(&mut self, limit: Duration) -> io::Result<Option<&[u8]>> {
        let mut searched = 0;
        loop {
            if let Some(at) = self.rest()[searched..].iter().position(|byte| *byte == b'\n') {
                let (start, end) = (self.used, self.used + searched + at);
                self.advance(searched + at + 1);
                return Ok(Some(&self.received[start..end.saturating_sub(1).max(start)]));
            }
            searched = self.rest().len();
            if !self.receive_within(limit)? {
                return Ok(None);
            }
        }
    }

    /// The next value, or None when it is not complete at the deadline.
    pub fn value(&mut self, deadline: Instant) -> io::Result<Option<Value>> {
        loop {
            if let Some((value, length)) = parse(self.rest()) {
                self.advance(length);
                return Ok(Some(value));
            }
            if !self.receive(deadline)? {
                return Ok(None);
            }
        }
    }
}

impl Drop for Wire {
    /// The peer learns of it now. To close the socket alone says nothing while a process that another thread
    /// starts at this moment still has a copy of it.
    fn drop(&mut self) {
        // Where the peer has closed it before there is nothing to say.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// A command as RESP.
pub fn encode<A: AsRef<[u8]>>(arguments: &[A]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", arguments.len()).into_bytes();
    for argument in arguments {
        let argument = argument.as_ref();
        bytes.extend_from_slice(format!("${}\r\n", argument.len()).as_bytes());
        bytes.extend_from_slice(argument);
        bytes.extend_from_slice(b"\r\n");
    }
    bytes
}

/// A line up to its CR LF, and how many bytes it takes with them.
pub fn parse_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

/// The value at the start of `bytes` and its length, or None while it is incomplete. Panics on what is not
/// RESP.
pub fn parse(bytes: &[u8]) -> Option<(Value, usize)> {
    let (head, mut used) = parse_line(bytes)?;
    let kind = *head.first().unwrap_or_else(|| panic!("an empty line is no reply"));
    let text = String::from_utf8_lossy(&head[1..]).into_owned();
    let number = || text.parse::<i64>().unwrap_or_else(|_| panic!("{:?} is no number", text));
    let value = match kind {
        b'+' | b'(' => Value::Simple(text),
        b'-' => Value::Error(text),
        b':' => Value::Int(number()),
        b',' => Value::Double(text.parse().unwrap_or_else(|_| panic!("{text:?} is no double"))),
        b'#' => Value::Bool(text == "t"),
        b'_' => Value::Nil,
        b'$' | b'=' | b'!' if number() < 0 => Value::Nil,
        b'$' | b'=' | b'!' => {
            let end = used + number() as usize;
            let body = bytes.get(used..end + 2)?;
            used = end + 2;
            let body = &body[..body.len() - 2];
            match kind {
                b'$' => Value::Bulk(body.to_vec()),
                b'!' => Value::Error(String::from_utf8_lossy(body).into_owned()),
                // "txt:" stands before the text
                _ => Value::Verbatim(String::from_utf8_lossy(&body[4..]).into_owned()),
            }
        }
        b'*' if number() < 0 => Value::Nil,
        b'*' | b'~' => Value::Array(parse_many(bytes, &mut used, number())?),
        b'>' => Value::Push(parse_many(bytes, &mut used, number())?),
        b'%' => {
            let mut flat = parse_many(bytes, &mut used, number() * 2)?.into_iter();
            let mut pairs = Vec::new();
            while let (Some(key), Some(value)) = (flat.next(), flat.next()) {
                pairs.push((key, value));
            }
            Value::Map(pairs)
        }
        _ => panic!("no reply begins like this: {:?}", head.escape_ascii().to_string()),
    };
    Some((value, used))
}

fn parse_many(bytes: &[u8], used: &mut usize, count: i64) -> Option<Vec<Value>> {
    let mut values = Vec::new();
    for _ in 0..count {
        let (value, length) = parse(&bytes[*used..])?;
        *used += length;
        values.push(value);
    }
    Some(values)
}
