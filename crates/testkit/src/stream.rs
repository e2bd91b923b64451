//! A fake replica: yields the replication stream of a master, command by command.

use std::time::{Duration, Instant};

use crate::aof::arguments;
use crate::conn::Conn;
use crate::server::Server;
use crate::value::Value;
use crate::wait::TIMEOUT;
use crate::wire::{Wire, encode, parse, parse_line};

/// Interval of the acknowledgements. A real replica acknowledges once a second.
const ACKNOWLEDGE_INTERVAL: Duration = Duration::from_millis(10);

/// A fake replica. Skips the snapshot, and yields and acknowledges the commands that follow.
pub struct Stream {
    wire: Wire,
    master: Conn,
    /// Replication offset up to which this replica has read.
    offset: i64,
}

impl Stream {
    /// Joins `master`. The stream contains every command that the master replicates from now on.
    #[track_caller]
    pub fn of(master: &Server) -> Stream {
        let wire = Wire::connect(master.port()).unwrap_or_else(|error| panic!("no connection: {error}"));
        let mut stream = Stream { wire, master: master.connect(), offset: 0 };
        stream.send(&["REPLCONF", "capa", "eof", "capa", "psync2"]);
        assert_eq!(stream.value(), "OK", "the reply to REPLCONF capa");
        stream.send(&["PSYNC", "?", "-1"]);
        let reply = stream.value().text();
        let offset = reply.strip_prefix("FULLRESYNC ").and_then(|rest| rest.split(' ').nth(1)?.parse().ok());
        stream.offset = offset.unwrap_or_else(|| panic!("the reply to PSYNC is {reply:?}"));
        stream.skip_snapshot();
        stream
    }

    /// Returns the next command, SELECT, MULTI and EXEC included, but not PING and REPLCONF, which
    /// maintain the link.
    #[track_caller]
    pub fn read(&mut self) -> Vec<Vec<u8>> {
        loop {
            if let Some(command) = self.step() {
                self.acknowledge();
                return command;
            }
        }
    }

    /// Returns all commands that the master has sent up to now.
    #[track_caller]
    pub fn drain(&mut self) -> Vec<Vec<Vec<u8>>> {
        let info = self.master.ok("INFO replication").text();
        let line = info.lines().find_map(|line| line.strip_prefix("master_repl_offset:"));
        let end: i64 = line.and_then(|number| number.trim().parse().ok()).expect("the master's offset");
        let mut commands = Vec::new();
        while self.offset < end {
            commands.extend(self.step());
        }
        self.acknowledge();
        commands
    }

    /// Reads one command. `None` if it was PING or REPLCONF.
    #[track_caller]
    fn step(&mut self) -> Option<Vec<Vec<u8>>> {
        let (command, length) = self.wait_for("a command", parse);
        self.wire.advance(length);
        self.offset += length as i64;
        let command = arguments(&command);
        if command[0].eq_ignore_ascii_case(b"PING") {
            return None;
        }
        if command[0].eq_ignore_ascii_case(b"REPLCONF") {
            self.acknowledge();
            return None;
        }
        Some(command)
    }

    #[track_caller]
    fn skip_snapshot(&mut self) {
        // While the master makes the snapshot, it sends empty lines to keep the link alive.
        let (head, length) = self.wait_for("the snapshot's head", |bytes| {
            let blank = bytes.iter().take_while(|byte| **byte == b'\n').count();
            let (line, length) = parse_line(&bytes[blank..])?;
            Some((line.to_vec(), blank + length))
        });
        self.wire.advance(length);
        let head = String::from_utf8_lossy(&head).into_owned();
        let Some(size) = head.strip_prefix('$') else { panic!("expected a snapshot, got {head:?}") };
        if let Some(eof_mark) = size.strip_prefix("EOF:") {
            let (_, end) = self.wait_for("the snapshot's end", |bytes| {
                let start = bytes.windows(eof_mark.len()).position(|window| window == eof_mark.as_bytes())?;
                Some(((), start + eof_mark.len()))
            });
            self.wire.advance(end);
        } else {
            let size: usize = size.parse().unwrap_or_else(|_| panic!("the snapshot has the size {size:?}"));
            let (_, end) = self.wait_for("the snapshot", |bytes| (bytes.len() >= size).then_some(((), size)));
            self.wire.advance(end);
        }
    }

    fn acknowledge(&mut self) {
        let offset = self.offset.to_string();
        self.send(&["REPLCONF", "ACK", &offset]);
    }

    fn send(&mut self, arguments: &[&str]) {
        self.wire
            .send(&encode(arguments))
            .unwrap_or_else(|error| panic!("the master closed the link: {error}"));
    }

    #[track_caller]
    fn value(&mut self) -> Value {
        let (value, length) = self.wait_for("a reply", parse);
        self.wire.advance(length);
        value
    }

    /// Receives until `find` returns a value for the received bytes that are not yet consumed. Returns the
    /// value and its length in bytes.
    #[track_caller]
    fn wait_for<T>(&mut self, what: &str, find: impl Fn(&[u8]) -> Option<(T, usize)>) -> (T, usize) {
        let deadline = Instant::now() + TIMEOUT;
        loop {
            if let Some(found) = find(self.wire.rest()) {
                return found;
            }
            match self.wire.receive(Instant::now() + ACKNOWLEDGE_INTERVAL) {
                Ok(true) => {}
                Ok(false) if Instant::now() > deadline => {
                    panic!("waited {TIMEOUT:?} for {what} from the master")
                }
                // After a diskless snapshot, the master sends nothing until it has received an
                // acknowledgement. It ignores acknowledgements until it has reaped the child that made the
                // snapshot. So repeat them.
                Ok(false) => self.acknowledge(),
                Err(error) => panic!("the master closed the link before {what}: {error}"),
            }
        }
    }
}
