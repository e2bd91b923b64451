//! The bytes of a connection, and RESP: encodes commands and parses replies.

use std::io::{self, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::time::{Duration, Instant};

use crate::value::Value;
use crate::wait::TIMEOUT;

/// A connection, with the received bytes that are not used yet. A read that times out loses no bytes.
pub struct Wire {
    stream: TcpStream,
    received: Vec<u8>,
    used: usize,
    /// Read timeout of the socket.
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

    /// Sends all bytes in one write.
    pub fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes)
    }

    /// Returns the received bytes that are not yet used.
    pub fn rest(&self) -> &[u8] {
        &self.received[self.used..]
    }

    /// Marks the next `count` bytes as used.
    pub fn advance(&mut self, count: usize) {
        self.used += count;
    }

    /// Waits for more bytes until `deadline`. Returns false if none arrived. The end of the stream is an
    /// error.
    pub fn receive(&mut self, deadline: Instant) -> io::Result<bool> {
        self.receive_within(deadline.saturating_duration_since(Instant::now()))
    }

    /// Like [`Wire::receive`]. A limit other than that of the last call costs a second system call.
    pub fn receive_within(&mut self, limit: Duration) -> io::Result<bool> {
        // For a socket, zero means no limit.
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

    /// Returns the next line without its end. `None` if no more bytes arrive within `limit`.
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

    /// Returns the next value. `None` if it is not complete at the deadline.
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
    /// Shuts the connection down, so that the peer sees the end at once. A child that another thread starts
    /// at this moment may have a copy of the socket, which would keep the connection open.
    fn drop(&mut self) {
        // Fails if the peer has closed the connection before.
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// Encodes a command in RESP.
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

/// Returns the first line without its CR LF, and its length with them.
pub fn parse_line(bytes: &[u8]) -> Option<(&[u8], usize)> {
    let end = bytes.windows(2).position(|pair| pair == b"\r\n")?;
    Some((&bytes[..end], end + 2))
}

/// Returns the value at the start of `bytes` and its length. `None` if it is incomplete. Panics on bytes that
/// are not RESP.
pub fn parse(bytes: &[u8]) -> Option<(Value, usize)> {
    let (head, mut used) = parse_line(bytes)?;
    let kind = *head.first().unwrap_or_else(|| panic!("an empty line is not a reply"));
    let text = String::from_utf8_lossy(&head[1..]).into_owned();
    let number = || text.parse::<i64>().unwrap_or_else(|_| panic!("{:?} is not a number", text));
    let value = match kind {
        b'+' | b'(' => Value::Simple(text),
        b'-' => Value::Error(text),
        b':' => Value::Int(number()),
        b',' => Value::Double(text.parse().unwrap_or_else(|_| panic!("{text:?} is not a double"))),
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
                // The text follows "txt:".
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
        _ => panic!("no reply begins with {:?}", head.escape_ascii().to_string()),
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
