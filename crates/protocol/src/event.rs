//! The events that a server publishes: on the keyspace channels, and on the channel of NOTIFY, where a
//! message says how the wait of a QUEUE position ended.

use std::ffi::CStr;

use crate::bytes::Bytes;

/// A hold began.
pub const ACQUIRE: &CStr = c"dlock.acquire";
/// A lease was changed.
pub const EXTEND: &CStr = c"dlock.extend";
/// The holder ended its hold.
pub const RELEASE: &CStr = c"dlock.release";
/// A lease ended.
pub const EXPIRED: &CStr = c"dlock.expired";
/// The connection of an EPHEMERAL hold closed.
pub const DISCONNECT: &CStr = c"dlock.disconnect";
/// An operator ended a hold.
pub const BREAK: &CStr = c"dlock.break";
/// An exclusive hold became a shared one.
pub const DOWNGRADE: &CStr = c"dlock.downgrade";
/// The lock has no holder and no lock-delay any more.
pub const FREE: &CStr = c"dlock.free";

/// All events, in the order of `docs/commands.md`.
pub const TABLE: [&CStr; 8] = [ACQUIRE, EXTEND, RELEASE, EXPIRED, DISCONNECT, BREAK, DOWNGRADE, FREE];

/// A channel, and the beginning of the message that is published there: 1 to 255 bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    channel: Bytes,
    message: Bytes,
}

/// A borrowed [`Notify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyRef<'a> {
    channel: &'a [u8],
    message: &'a [u8],
}

/// How a wait ended. The published message ends with [`Ended::word`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Granted,
    TimedOut,
    /// By CANCEL, or because the connection of an EPHEMERAL position closed.
    Cancelled,
    /// The request can no longer be granted by this server.
    Refused,
}

impl Ended {
    const ALL: [Ended; 4] = [Ended::Granted, Ended::TimedOut, Ended::Cancelled, Ended::Refused];

    pub const fn word(self) -> &'static str {
        match self {
            Ended::Granted => "granted",
            Ended::TimedOut => "timeout",
            Ended::Cancelled => "cancelled",
            Ended::Refused => "refused",
        }
    }

    /// Splits a published message into the message given to NOTIFY and the end of the wait.
    pub fn read(published: &[u8]) -> Option<(&[u8], Ended)> {
        let blank = published.iter().rposition(|byte| *byte == b' ')?;
        let word = &published[blank + 1..];
        let ended = Ended::ALL.into_iter().find(|ended| ended.word().as_bytes() == word)?;
        Some((&published[..blank], ended))
    }
}

impl Notify {
    pub const MAX_LEN: usize = 255;

    pub fn channel(&self) -> &[u8] {
        &self.channel
    }

    /// The message to publish when the wait has ended.
    pub fn published(&self, ended: Ended) -> Vec<u8> {
        [&*self.message, b" ", ended.word().as_bytes()].concat()
    }
}

impl<'a> NotifyRef<'a> {
    /// `None` if one of them is empty or longer than 255 bytes.
    pub fn new(channel: &'a [u8], message: &'a [u8]) -> Option<NotifyRef<'a>> {
        let fits = |bytes: &[u8]| (1..=Notify::MAX_LEN).contains(&bytes.len());
        (fits(channel) && fits(message)).then_some(NotifyRef { channel, message })
    }

    pub fn channel(self) -> &'a [u8] {
        self.channel
    }

    pub fn message(self) -> &'a [u8] {
        self.message
    }

    pub fn to_owned(self) -> Notify {
        Notify { channel: self.channel.into(), message: self.message.into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_messages_are_read_back() {
        for message in [&b"m"[..], b" ", b"a b granted", &[0xff; 255]] {
            let notify = NotifyRef::new(b"channel", message).unwrap().to_owned();
            for ended in Ended::ALL {
                assert_eq!(Ended::read(&notify.published(ended)), Some((message, ended)));
            }
        }
        for other in [&b""[..], b"granted", b"m won", b"m granted "] {
            assert_eq!(Ended::read(other), None);
        }
    }

    #[test]
    fn channel_and_message_have_1_to_255_bytes() {
        for (channel, message) in [(0, 1), (1, 0), (256, 1), (1, 256)] {
            assert!(NotifyRef::new(&vec![b'x'; channel], &vec![b'x'; message]).is_none());
        }
    }
}
