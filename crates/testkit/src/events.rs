//! Keyspace notifications as a client sees them.

use crate::conn::Conn;
use crate::server::Server;

/// Told apart from every event: keyspace channels begin with "__key".
const MARK: &str = "testkit:mark";

/// A subscriber to the channels of one pattern.
pub struct Events {
    subscriber: Conn,
    publisher: Conn,
    marks: u64,
}

impl Events {
    /// Subscribes to `pattern`, such as `__keyevent@0__:*`. A server that notifies of nothing is told to
    /// notify of everything; one that was configured is left as it is.
    #[track_caller]
    pub fn subscribe(server: &Server, pattern: &str) -> Events {
        let mut publisher = server.connect();
        if publisher.ok("CONFIG GET notify-keyspace-events").items()[1] == "" {
            assert_eq!(publisher.ok("CONFIG SET notify-keyspace-events KEAd"), "OK");
        }
        let mut subscriber = server.connect();
        assert_eq!(subscriber.call(&["PSUBSCRIBE", pattern]).items()[0], "psubscribe");
        assert_eq!(subscriber.call(&["SUBSCRIBE", MARK]).items()[0], "subscribe");
        Events { subscriber, publisher, marks: 0 }
    }

    /// The next event: its channel and its message.
    #[track_caller]
    pub fn read(&mut self) -> (String, String) {
        let message = self.subscriber.read();
        let [_, _, channel, text] = message.items() else { panic!("expected an event, got {message:?}") };
        (channel.text(), text.text())
    }

    /// All events that the server has sent up to now: a message of our own, published last, tells where they
    /// end.
    #[track_caller]
    pub fn so_far(&mut self) -> Vec<(String, String)> {
        self.marks += 1;
        let mark = self.marks.to_string();
        assert_eq!(self.publisher.call(&["PUBLISH", MARK, &mark]), 1);
        let mut events = Vec::new();
        loop {
            let message = self.subscriber.read();
            match message.items() {
                [_, channel, text] if *channel == MARK && *text == mark => return events,
                [_, _, channel, text] => events.push((channel.text(), text.text())),
                _ => panic!("expected an event, got {message:?}"),
            }
        }
    }

    /// Panics when the server has sent any event since the last one read.
    #[track_caller]
    pub fn none(&mut self) {
        let events = self.so_far();
        assert!(events.is_empty(), "expected no event, got {events:?}");
    }
}
