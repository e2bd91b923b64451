//! The bytes that a connection receives. One thread serves all members, and a member may send anything. So
//! there are limits: for the bytes read from one member before the others' turn, for the length of a reply,
//! and for the number of unsolicited messages.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};

use futures_util::future::select_ok;
use redis::ConnectionAddr;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::yield_now;

use super::address::{Address, SILENCE};

/// Number of bytes to read from one member before the others' turn.
const TURN: usize = 64 << 10;

/// Smallest number of bytes to read at once. More of a long reply is read at once, because the parser may
/// search the reply from its beginning after each read.
const MIN_READ: usize = 4096;

/// Longest reply in bytes. LOG with 10,000 entries, or LIST with 250 locks of 30 KB names, is shorter.
const LONGEST_REPLY: usize = 8 << 20;

/// Largest number of messages beyond the number of answers. Each request brings one message at most, perhaps
/// much later, and many can come at once: ten thousand waits are granted, or an operator ends as many holds.
/// All other messages are about FLUSHALL, or published by other clients.
const MAX_UNSOLICITED: u64 = 100_000;

/// Counts of the data received over a connection.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Number of bytes since the last message or answer.
    bytes: AtomicUsize,
    /// Numbers of answers and of messages.
    answers: AtomicU64,
    messages: AtomicU64,
    /// The first exceeded limit.
    fault: OnceLock<&'static str>,
}

impl Intake {
    pub(super) fn answered(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        self.answers.fetch_add(1, Ordering::Relaxed);
    }

    /// Returns the number of answers.
    pub(super) fn answer_count(&self) -> u64 {
        self.answers.load(Ordering::Relaxed)
    }

    pub(super) fn pushed(&self) {
        self.bytes.store(0, Ordering::Relaxed);
        let messages = self.messages.fetch_add(1, Ordering::Relaxed);
        if messages >= self.answer_count() + MAX_UNSOLICITED {
            self.fault.get_or_init(|| "it floods the connection with messages: closed");
        }
    }

    fn read(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > LONGEST_REPLY {
            self.fault.get_or_init(|| "its reply is longer than 8 MiB: the connection was closed");
        }
    }

    /// Returns the exceeded limit for which the connection is closed.
    pub(super) fn fault(&self) -> Option<&'static str> {
        self.fault.get().copied()
    }
}

/// A stream that ends with an error when a limit is exceeded.
pub(super) struct Stream {
    socket: Pin<Box<dyn Socket>>,
    intake: Arc<Intake>,
    /// Number of bytes read in this turn.
    turn: usize,
    /// The others' turn, while it lasts.
    others: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
}

trait Socket: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Socket for S {}

impl Stream {
    /// Opens the stream. `missing` is set to what the server has not yet given, for the error of a timeout.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables))]
    pub(super) async fn open(
        address: &Address,
        intake: Arc<Intake>,
        missing: &mut &'static str,
    ) -> io::Result<Stream> {
        let socket: Pin<Box<dyn Socket>> = match address.info.addr() {
            ConnectionAddr::Tcp(host, port) => Box::pin(tcp(host, *port).await?),
            #[cfg(feature = "tls")]
            ConnectionAddr::TcpTls { host, port, .. } => {
                let name = rustls::pki_types::ServerName::try_from(host.clone()).map_err(io::Error::other)?;
                let tls = address.tls.clone().ok_or_else(|| io::Error::other("no TLS"))?;
                let tcp = tcp(host, *port).await?;
                *missing = "no answer to the TLS handshake (rediss:// requires a port that speaks TLS)";
                Box::pin(tokio_rustls::TlsConnector::from(tls).connect(name, tcp).await?)
            }
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Box::pin(tokio::net::UnixStream::connect(path).await?),
            _ => return Err(io::Error::other("an address of this kind cannot be used")),
        };
        Ok(Stream { socket, intake, turn: 0, others: None })
    }
}

/// Connects to the first address of the host that accepts it.
async fn tcp(host: &str, port: u16) -> io::Result<TcpStream> {
    let connecting: Vec<_> =
        lookup_host((host, port)).await?.map(|addr| Box::pin(TcpStream::connect(addr))).collect();
    if connecting.is_empty() {
        return Err(io::Error::other("the host has no address"));
    }
    let (socket, _) = select_ok(connecting).await?;
    socket.set_nodelay(true)?;
    // A wait can be long and silent. Only keepalive shows that the other end is gone.
    let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 3);
    SockRef::from(&socket).set_tcp_keepalive(&keepalive)?;
    Ok(socket)
}

impl AsyncRead for Stream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if let Some(why) = self.intake.fault() {
            return Poll::Ready(Err(io::Error::other(why)));
        }
        if let Some(others) = &mut self.others {
            ready!(others.as_mut().poll(cx));
            (self.others, self.turn) = (None, 0);
        }
        let part = (self.intake.bytes.load(Ordering::Relaxed) / 8).clamp(MIN_READ, TURN);
        let most = part.min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(most));
        ready!(self.socket.as_mut().poll_read(cx, &mut part))?;
        let read = part.filled().len();
        buf.advance(read);
        self.intake.read(read);
        self.turn += read;
        if self.turn >= TURN {
            self.others = Some(Box::pin(yield_now()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.socket.as_mut().poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.socket.as_mut().poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// 100,000 messages are allowed: a client may have that number of holds, and an operator end them all.
    #[test]
    fn more_unsolicited_messages_than_the_limit_are_a_flood() {
        let intake = Intake::default();
        (0..50_000).for_each(|_| intake.pushed());
        assert_eq!(intake.fault(), None);
        (0..50_000).for_each(|_| intake.answered());
        (0..MAX_UNSOLICITED).for_each(|_| intake.pushed());
        assert_eq!(intake.fault(), None);
        intake.pushed();
        assert!(intake.fault().is_some_and(|why| why.contains("floods")));
    }
}
