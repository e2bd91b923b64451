//! One client connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::value::Value;
use crate::wait::TIMEOUT;
use crate::wire::{Wire, encode};

/// A RESP connection on which each wait is bounded by [`TIMEOUT`]. Panics when the server does not answer in
/// time or hangs up, since a test that did not expect that has failed.
pub struct Conn {
    wire: Wire,
    /// Pushes that came while a reply was awaited; `read` returns them first.
    pushed: VecDeque<Value>,
}

impl Conn {
    #[track_caller]
    pub fn open(port: u16) -> Conn {
        let wire =
            Wire::connect(port).unwrap_or_else(|error| panic!("no connection to port {port}: {error}"));
        Conn { wire, pushed: VecDeque::new() }
    }

    /// Sends a command and returns its reply.
    #[must_use = "the answer, maybe an error, would go unnoticed"]
    #[track_caller]
    pub fn call<A: AsRef<[u8]>>(&mut self, arguments: &[A]) -> Value {
        self.send(arguments);
        loop {
            match self.receive() {
                push @ Value::Push(_) => self.pushed.push_back(push),
                reply => return reply,
            }
        }
    }

    /// [`Conn::call`] with the arguments in one text, split at blanks: `conn.say("DLOCK.HOLDS key token")`.
    #[must_use = "the answer, maybe an error, would go unnoticed"]
    #[track_caller]
    pub fn say(&mut self, command: &str) -> Value {
        self.call(&words(command))
    }

    /// [`Conn::say`] that panics on an error reply. For the steps that lead up to what a test looks at.
    #[track_caller]
    pub fn ok(&mut self, command: &str) -> Value {
        match self.say(command) {
            Value::Error(line) => panic!("{command}: {line}"),
            reply => reply,
        }
    }

    /// Sends a command without waiting for its reply.
    #[track_caller]
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) {
        self.send_raw(&encode(arguments));
    }

    /// Sends several commands in one write, so that the server finds them in one turn of its event loop.
    #[track_caller]
    pub fn send_batch<A: AsRef<[u8]>>(&mut self, commands: &[&[A]]) {
        let bytes: Vec<u8> = commands.iter().flat_map(|arguments| encode(arguments)).collect();
        self.send_raw(&bytes);
    }

    /// [`Conn::say`] of several commands in one write, and their replies in order.
    #[must_use = "the answers, maybe errors, would go unnoticed"]
    #[track_caller]
    pub fn say_together(&mut self, commands: &[&str]) -> Vec<Value> {
        let commands: Vec<Vec<&str>> = commands.iter().map(|command| words(command)).collect();
        self.send_batch(&commands.iter().map(Vec::as_slice).collect::<Vec<_>>());
        commands.iter().map(|_| self.read()).collect()
    }

    /// Sends bytes as they are, also such as are no RESP.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).unwrap_or_else(|error| panic!("sending failed: {error}"));
    }

    /// The next reply or push.
    #[track_caller]
    pub fn read(&mut self) -> Value {
        match self.pushed.pop_front() {
            Some(push) => push,
            None => self.receive(),
        }
    }

    /// The next reply or push, or None when none is complete within `limit`. A later read goes on where this
    /// stopped.
    #[must_use = "the answer, maybe an error, would go unnoticed"]
    #[track_caller]
    pub fn try_read(&mut self, limit: Duration) -> Option<Value> {
        if let Some(push) = self.pushed.pop_front() {
            return Some(push);
        }
        let read = self.wire.value(Instant::now() + limit);
        read.unwrap_or_else(|error| panic!("reading a reply failed: {error}"))
    }

    /// Speaks RESP3 from here on.
    #[track_caller]
    pub fn hello3(&mut self) {
        assert_eq!(self.ok("HELLO 3").field("proto"), &3);
    }

    #[track_caller]
    pub fn client_id(&mut self) -> i64 {
        self.say("CLIENT ID").int()
    }

    /// Whether the server has hung up. Looks, does not wait: `until("it hangs up", || conn.closed())`.
    #[must_use = "the answer, maybe an error, would go unnoticed"]
    pub fn closed(&mut self) -> bool {
        loop {
            match self.wire.receive(Instant::now()) {
                Ok(true) => continue,
                Ok(false) => return false,
                Err(_) => return true,
            }
        }
    }

    #[track_caller]
    fn receive(&mut self) -> Value {
        match self.wire.value(Instant::now() + TIMEOUT) {
            Ok(Some(value)) => value,
            Ok(None) => panic!("no reply within {TIMEOUT:?}"),
            Err(error) => panic!("reading a reply failed: {error}"),
        }
    }
}

pub(crate) fn words(command: &str) -> Vec<&str> {
    command.split_whitespace().collect()
}
