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

/// How a wait ended. [`Notify::published`] has the words for it.
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

/// A published message: see [`Published::read`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Published<'a> {
    /// The first word of the message given to NOTIFY.
    pub id: &'a [u8],
    /// `None` for unknown words, and for a grant without a valid fence: the waiter then asks again.
    pub ended: Option<Ended>,
    /// The second word of the message given to NOTIFY, which only a grant shows. Empty if there is none.
    pub secret: &'a [u8],
}

impl<'a> Published<'a> {
    /// Reads a published message. Returns `None` if it contains no space.
    ///
    /// `docs/writing-a-client.md` has the grammar, and `conformance/vectors/messages.json` the cases that
    /// every client must read the same way.
    pub fn read(published: &'a [u8]) -> Option<Published<'a>> {
        let (id, rest) = split(published)?;
        let mut words = rest.split(|byte| *byte == b' ');
        let mut secret: &[u8] = b"";
        let ended = match words.next() {
            Some(b"granted") => {
                let fence = words.next().and_then(fence);
                secret = words.next().unwrap_or_default();
                fence.map(Ended::Granted)
            }
            Some(b"timeout") => Some(Ended::TimedOut),
            Some(b"cancelled") => Some(Ended::Cancelled),
            Some(b"refused") => Some(Ended::Refused),
            _ => None,
        };
        Some(Published { id, ended, secret })
    }
}

/// Splits at the first space.
fn split(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let blank = bytes.iter().position(|byte| *byte == b' ')?;
    Some((&bytes[..blank], &bytes[blank + 1..]))
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

    /// The message to publish when the wait has ended: the first word of the message given to NOTIFY, and
    /// `granted` with the fence, `timeout`, `cancelled` or `refused`. After a grant follows the rest of the
    /// message given to NOTIFY: a secret, by which the client knows that a grant is no copy of another end.
    pub fn published(&self, ended: Ended) -> Vec<u8> {
        let message = self.parts().1;
        let (id, secret) = split(message).map_or((message, None), |(id, secret)| (id, Some(secret)));
        let granted;
        let words: &[&[u8]] = match ended {
            Ended::Granted(fence) => {
                granted = format!("granted {}", fence.get());
                match secret {
                    Some(secret) => &[id, granted.as_bytes(), secret],
                    None => &[id, granted.as_bytes()],
                }
            }
            Ended::TimedOut => &[id, b"timeout"],
            Ended::Cancelled => &[id, b"cancelled"],
            Ended::Refused => &[id, b"refused"],
        };
        words.join(&b' ')
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
        for (message, id, secret) in [
            (&b"m"[..], &b"m"[..], &b""[..]),
            (b"granted", b"granted", b""),
            (&[0xff; 255], &[0xff; 255], b""),
            (b"id secret", b"id", b"secret"),
            (b"id two words", b"id", b"two"),
            (b"id ", b"id", b""),
            (b" secret", b"", b"secret"),
        ] {
            let notify = NotifyRef::new(b"channel", message).unwrap().to_owned();
            for ended in ends {
                let secret = if matches!(ended, Ended::Granted(_)) { secret } else { b"" };
                let published = Published { id, ended: Some(ended), secret };
                assert_eq!(Published::read(&notify.published(ended)), Some(published));
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
