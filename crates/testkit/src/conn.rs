//! One client connection.

use std::collections::VecDeque;
use std::time::{Duration, Instant};

use crate::value::Value;
use crate::wait::{TIMEOUT, until};
use crate::wire::{Wire, encode};

/// A RESP connection. Panics if the server does not answer within [`TIMEOUT`] or closes the connection,
/// because a test that does not expect this has failed.
pub struct Conn {
    wire: Wire,
    /// Pushes that arrived before an awaited reply. `read` returns them first.
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
    #[must_use = "the reply may be an error"]
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

    /// Like [`Conn::call`], with the arguments in one text, split at blanks: `conn.say("DLOCK.HOLDS key
    /// token")`.
    #[must_use = "the reply may be an error"]
    #[track_caller]
    pub fn say(&mut self, command: &str) -> Value {
        self.call(&words(command))
    }

    /// Like [`Conn::say`], but panics on an error reply.
    #[track_caller]
    pub fn ok(&mut self, command: &str) -> Value {
        match self.say(command) {
            Value::Error(line) => panic!("{command}: {line}"),
            reply => reply,
        }
    }

    /// Repeats a command until its reply is an error with this first word.
    #[track_caller]
    pub fn until_error(&mut self, command: &str, word: &str) {
        until(&format!("the reply to {command} is {word}"), || match self.say(command) {
            Value::Error(line) => line.split(' ').next() == Some(word),
            _ => false,
        });
    }

    /// Sends a command without waiting for its reply.
    #[track_caller]
    pub fn send<A: AsRef<[u8]>>(&mut self, arguments: &[A]) {
        self.send_raw(&encode(arguments));
    }

    /// Sends several commands in one write, so that the server reads them in one turn of its event loop.
    #[track_caller]
    pub fn send_batch<A: AsRef<[u8]>>(&mut self, commands: &[&[A]]) {
        let bytes: Vec<u8> = commands.iter().flat_map(|arguments| encode(arguments)).collect();
        self.send_raw(&bytes);
    }

    /// Sends several commands in one write and returns their replies in order.
    #[must_use = "a reply may be an error"]
    #[track_caller]
    pub fn say_together<C: AsRef<str>>(&mut self, commands: &[C]) -> Vec<Value> {
        let commands: Vec<Vec<&str>> = commands.iter().map(|command| words(command.as_ref())).collect();
        self.send_batch(&commands.iter().map(Vec::as_slice).collect::<Vec<_>>());
        commands.iter().map(|_| self.read()).collect()
    }

    /// Sends bytes unchanged, RESP or not.
    #[track_caller]
    pub fn send_raw(&mut self, bytes: &[u8]) {
        self.wire.send(bytes).unwrap_or_else(|error| panic!("sending failed: {error}"));
    }

    /// Returns the next reply or push.
    #[track_caller]
    pub fn read(&mut self) -> Value {
        match self.pushed.pop_front() {
            Some(push) => push,
            None => self.receive(),
        }
    }

    /// Returns the text of the next message on a channel.
    #[track_caller]
    pub fn message(&mut self) -> String {
        let push = self.read();
        let [_, _, text] = push.items() else { panic!("expected a message, got {push:?}") };
        text.text()
    }

    /// Returns the next reply or push. `None` if none is complete within `limit`. The bytes received so far
    /// stay for the next read.
    #[must_use = "the reply may be an error"]
    #[track_caller]
    pub fn try_read(&mut self, limit: Duration) -> Option<Value> {
        if let Some(push) = self.pushed.pop_front() {
            return Some(push);
        }
        let read = self.wire.value(Instant::now() + limit);
        read.unwrap_or_else(|error| panic!("reading a reply failed: {error}"))
    }

    /// Switches to RESP3.
    #[track_caller]
    pub fn hello3(&mut self) {
        assert_eq!(self.ok("HELLO 3").field("proto"), &3);
    }

    #[track_caller]
    pub fn client_id(&mut self) -> i64 {
        self.say("CLIENT ID").int()
    }

    /// Returns at once whether the server has closed the connection. Tests wait for that with
    /// `until("the connection closes", || conn.closed())`.
    #[must_use]
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
