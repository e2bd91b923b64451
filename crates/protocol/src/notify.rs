//! How those are told of the end of a wait whose positions belong to their tokens: NOTIFY.

use crate::bytes::Bytes;

/// A channel, and how a message on it begins: 1 to 255 bytes each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    channel: Bytes,
    message: Bytes,
}

/// The same, borrowed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyRef<'a> {
    channel: &'a [u8],
    message: &'a [u8],
}

/// What has become of a wait: the word behind the message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    Granted,
    TimedOut,
    /// By CANCEL, or with the connection that an EPHEMERAL position was bound to.
    Cancelled,
    /// It can no longer be granted here as it was asked for.
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

    /// Takes a published message apart: what NOTIFY was given, and the word.
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

    /// What is published when the wait has ended so.
    pub fn published(&self, ended: Ended) -> Vec<u8> {
        [&*self.message, b" ", ended.word().as_bytes()].concat()
    }
}

impl<'a> NotifyRef<'a> {
    /// None where one of them is empty or too long.
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
    fn what_is_published_can_be_read() {
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
