//! Keyspace notifications, received by a subscriber.

use crate::conn::Conn;
use crate::server::Server;

/// Channel of the marks: messages that [`Events::so_far`] publishes to find the end of the events. No event
/// has this channel: the channels of events begin with "__key".
const MARK: &str = "testkit:mark";

/// A subscriber to the channels of one pattern.
pub struct Events {
    subscriber: Conn,
    publisher: Conn,
    marks: u64,
}

impl Events {
    /// Subscribes to `pattern`, such as `__keyevent@0__:*`. Switches all notifications on if the server has
    /// none configured.
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

    /// Returns the channel and the message of the next event.
    #[track_caller]
    pub fn read(&mut self) -> (String, String) {
        let message = self.subscriber.read();
        let [_, _, channel, text] = message.items() else { panic!("expected an event, got {message:?}") };
        (channel.text(), text.text())
    }

    /// Returns all events that the server has sent up to now. A mark, published last, shows their end.
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

    /// Returns the messages of all events up to now: the names of the events on a keyspace channel, the keys
    /// on a keyevent channel.
    #[track_caller]
    pub fn messages(&mut self) -> Vec<String> {
        self.so_far().into_iter().map(|(_, message)| message).collect()
    }

    /// Discards all events that the server has sent up to now.
    #[track_caller]
    pub fn discard(&mut self) {
        self.so_far();
    }

    /// Panics if the server has sent an event since the last read.
    #[track_caller]
    pub fn assert_none(&mut self) {
        let events = self.so_far();
        assert!(events.is_empty(), "expected no event, got {events:?}");
    }
}
