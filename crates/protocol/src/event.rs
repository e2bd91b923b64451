//! The events that a server publishes: on the keyspace channels, and on the channel of NOTIFY, where a
//! message says how the wait of a QUEUE position ended.

use std::ffi::CStr;

use crate::units::Fence;

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

/// The channel of NOTIFY or SNOTIFY, and the beginning of the message that is published there: 1 to 255 bytes
/// each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Notify {
    /// 1 for a sharded channel, else 0; the length of the channel; the channel; the message. One allocation,
    /// as there can be 100,000 positions.
    packed: Box<[u8]>,
}

/// A borrowed [`Notify`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NotifyRef<'a> {
    channel: &'a [u8],
    message: &'a [u8],
    is_sharded: bool,
}

/// How a wait ended. The published message ends with the words of [`Notify::published`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ended {
    /// The token holds the lock with this fence.
    Granted(Fence),
    TimedOut,
    /// By CANCEL, or because the connection of an EPHEMERAL position closed.
    Cancelled,
    /// The request can no longer be granted by this server.
    Refused,
}

impl Ended {
    /// Splits a published message at its first space into the message given to NOTIFY, which must contain no
    /// space, and the end of the wait. The end is `None` for unknown words, and for a grant without a valid
    /// fence: the waiter then asks again. Returns `None` if there is no space.
    ///
    /// `docs/writing-a-client.md` has the grammar, and `conformance/vectors/messages.json` the cases that
    /// every client must read the same way.
    pub fn read(published: &[u8]) -> Option<(&[u8], Option<Ended>)> {
        let blank = published.iter().position(|byte| *byte == b' ')?;
        let mut words = published[blank + 1..].split(|byte| *byte == b' ');
        let ended = match words.next() {
            Some(b"granted") => words.next().and_then(fence).map(Ended::Granted),
            Some(b"timeout") => Some(Ended::TimedOut),
            Some(b"cancelled") => Some(Ended::Cancelled),
            Some(b"refused") => Some(Ended::Refused),
            _ => None,
        };
        Some((&published[..blank], ended))
    }
}

/// Reads a fence: decimal digits without a sign or leading zeros.
fn fence(word: &[u8]) -> Option<Fence> {
    let is_decimal = matches!(word, [b'1'..=b'9', rest @ ..] if rest.iter().all(u8::is_ascii_digit));
    let text = std::str::from_utf8(word).ok().filter(|_| is_decimal)?;
    Fence::from_outside(text.parse().ok()?)
}

impl Notify {
    pub const MAX_LEN: usize = 255;

    pub fn channel(&self) -> &[u8] {
        self.parts().0
    }

    fn parts(&self) -> (&[u8], &[u8]) {
        self.packed[2..].split_at(self.packed[1].into())
    }

    /// Whether the channel is a sharded one (SNOTIFY).
    pub fn is_sharded(&self) -> bool {
        self.packed[0] == 1
    }

    /// The message to publish when the wait has ended: the message given to NOTIFY, a space, and `granted`
    /// with the fence, `timeout`, `cancelled` or `refused`.
    pub fn published(&self, ended: Ended) -> Vec<u8> {
        let words = match ended {
            Ended::Granted(fence) => &*format!("granted {}", fence.get()),
            Ended::TimedOut => "timeout",
            Ended::Cancelled => "cancelled",
            Ended::Refused => "refused",
        };
        [self.parts().1, b" ", words.as_bytes()].concat()
    }
}

impl<'a> NotifyRef<'a> {
    /// NOTIFY: a plain channel. `None` if one of them is empty or longer than 255 bytes.
    pub fn new(channel: &'a [u8], message: &'a [u8]) -> Option<NotifyRef<'a>> {
        let fits = |bytes: &[u8]| (1..=Notify::MAX_LEN).contains(&bytes.len());
        (fits(channel) && fits(message)).then_some(NotifyRef { channel, message, is_sharded: false })
    }

    /// SNOTIFY: the same with a sharded channel.
    pub fn sharded(self) -> NotifyRef<'a> {
        NotifyRef { is_sharded: true, ..self }
    }

    pub fn is_sharded(self) -> bool {
        self.is_sharded
    }

    pub fn channel(self) -> &'a [u8] {
        self.channel
    }

    pub fn message(self) -> &'a [u8] {
        self.message
    }

    pub fn to_owned(self) -> Notify {
        let NotifyRef { channel, message, is_sharded } = self;
        // A channel has at most 255 bytes.
        let head = [u8::from(is_sharded), channel.len() as u8];
        Notify { packed: [&head, channel, message].concat().into() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn published_messages_are_read_back() {
        let granted = |fence| Ended::Granted(Fence::from_outside(fence).unwrap());
        let ends = [Ended::TimedOut, Ended::Cancelled, Ended::Refused, granted(1), granted(Fence::MAX)];
        for message in [&b"m"[..], b"granted", &[0xff; 255]] {
            let notify = NotifyRef::new(b"channel", message).unwrap().to_owned();
            for ended in ends {
                assert_eq!(Ended::read(&notify.published(ended)), Some((message, Some(ended))));
            }
        }
    }

    #[test]
    fn channel_and_message_have_1_to_255_bytes() {
        for (channel, message) in [(0, 1), (1, 0), (256, 1), (1, 256)] {
            assert!(NotifyRef::new(&vec![b'x'; channel], &vec![b'x'; message]).is_none());
        }
    }
}
