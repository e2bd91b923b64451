//! The bytes that a connection receives. One thread serves all members, and a member may send anything. So
//! three numbers have limits: the bytes read from one member before the others are served, the bytes of a
//! reply, and the unsolicited messages.

use std::io;
use std::pin::Pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures_util::future::select_ok;
use redis::ConnectionAddr;
use redis::io::tcp::socket2::{SockRef, TcpKeepalive};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{TcpStream, lookup_host};
use tokio::task::yield_now;

use super::address::Address;

/// TCP keepalive: after this long without traffic the kernel probes the other end.
const KEEPALIVE_TIME: Duration = Duration::from_secs(15);

/// Number of bytes to read from one member before the others are served.
const READ_BUDGET: usize = 64 << 10;

/// Smallest buffer for a read, in bytes. The parser may search a reply from its beginning after each read. So
/// the buffer grows with the part of the reply that has arrived, and a long reply takes fewer reads.
const MIN_READ: usize = 4096;

/// Longest reply in bytes. LOG with 10,000 entries, or LIST with 250 locks of 30 KB names, is shorter.
const LONGEST_REPLY: usize = 8 << 20;

/// Longest first line to keep, in bytes.
const MAX_LINE: usize = 4096;

/// Largest number by which push messages may exceed answers, both counted since the connection was opened.
/// For each request, the server sends at most one message: a wait has ended, or a key that the request read
/// has changed. All other messages are about FLUSHALL, or were published by other clients.
const MAX_UNSOLICITED: u64 = 100_000;

/// Counts of the data received over a connection.
#[derive(Debug, Default)]
pub(super) struct Intake {
    /// Number of bytes since the last message or answer.
    bytes: AtomicUsize,
    answers: AtomicU64,
    messages: AtomicU64,
    /// The first exceeded limit.
    fault: OnceLock<&'static str>,
    /// The first line, if it is an error reply, without the `-` of the wire.
    refusal: OnceLock<String>,
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
            self.fault.get_or_init(|| "it flooded the connection with messages: the connection was closed");
        }
    }

    fn received(&self, bytes: usize) {
        if self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes > LONGEST_REPLY {
            self.fault.get_or_init(|| "its reply is longer than 8 MiB: the connection was closed");
        }
    }

    /// Returns the error reply with which the server began, if there is one. A server that accepts no more
    /// clients sends one before it closes the connection, whatever the client has sent.
    pub(super) fn refusal(&self) -> Option<&str> {
        self.refusal.get().map(String::as_str)
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
    /// Number of bytes read since the other members were served.
    read: usize,
    /// Lets the thread serve the others once the [`READ_BUDGET`] is used up.
    yielding: Option<Pin<Box<dyn Future<Output = ()> + Send>>>,
    /// The beginning of the first line. `None` once the line has ended.
    first_line: Option<Vec<u8>>,
    /// The first error of a write. Reads return it after the data that the server has sent: a server that
    /// refuses a connection sends the reason, and then closes the connection.
    write_error: Option<io::Error>,
}

trait Socket: AsyncRead + AsyncWrite + Send {}
impl<S: AsyncRead + AsyncWrite + Send> Socket for S {}

impl Stream {
    /// Opens the stream. If the caller stops waiting, `missing` says what the server has not done yet.
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
        Ok(Stream {
            socket,
            intake,
            read: 0,
            yielding: None,
            first_line: Some(Vec::new()),
            write_error: None,
        })
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
    let keepalive = TcpKeepalive::new().with_time(KEEPALIVE_TIME).with_interval(KEEPALIVE_TIME / 3);
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
        if let Some(yielding) = &mut self.yielding {
            ready!(yielding.as_mut().poll(cx));
            (self.yielding, self.read) = (None, 0);
        }
        let limit = (self.intake.bytes.load(Ordering::Relaxed) / 8).clamp(MIN_READ, READ_BUDGET);
        let limit = limit.min(buf.remaining());
        let mut part = ReadBuf::new(buf.initialize_unfilled_to(limit));
        ready!(self.socket.as_mut().poll_read(cx, &mut part))?;
        let read = part.filled().len();
        if read == 0
            && let Some(why) = self.write_error.take()
        {
            return Poll::Ready(Err(why));
        }
        if let Some(mut line) = self.first_line.take() {
            line.extend(part.filled());
            let end = line.iter().position(|byte| *byte == b'\r');
            if let (Some(text), Some(end)) = (line.strip_prefix(b"-"), end) {
                let text = String::from_utf8_lossy(&text[..end - 1]).into_owned();
                self.intake.refusal.get_or_init(|| text);
            } else if end.is_none() && line.starts_with(b"-") && line.len() < MAX_LINE {
                self.first_line = Some(line);
            }
        }
        buf.advance(read);
        self.intake.received(read);
        self.read += read;
        if self.read >= READ_BUDGET {
            self.yielding = Some(Box::pin(yield_now()));
        }
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for Stream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = match self.write_error {
            None => ready!(self.socket.as_mut().poll_write(cx, bytes)),
            Some(_) => Ok(bytes.len()),
        };
        Poll::Ready(written.or_else(|why| {
            self.write_error = Some(why);
            Ok(bytes.len())
        }))
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

    /// The messages count as unsolicited only as far as they exceed the answers.
    #[test]
    fn more_unsolicited_messages_than_the_limit_are_a_flood() {
        let intake = Intake::default();
        (0..50_000).for_each(|_| intake.pushed());
        assert_eq!(intake.fault(), None);
        (0..50_000).for_each(|_| intake.answered());
        (0..MAX_UNSOLICITED).for_each(|_| intake.pushed());
        assert_eq!(intake.fault(), None);
        intake.pushed();
        assert!(intake.fault().is_some_and(|why| why.contains("flooded")));
    }
}
