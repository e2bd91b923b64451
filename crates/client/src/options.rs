//! How a client is built.

use std::fmt;
use std::time::Duration;

use crate::client::Client;
use crate::error::BuildError;

/// How often, and after which backoff, a round is tried again that failed for lack of masters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How often masters that are down or silent are asked again before
    /// [`QuorumImpossible`](crate::AcquireError::QuorumImpossible), where [`Wait`](crate::Wait) does not allow more. 0: never.
    pub times: u8,
    /// The longest of the first backoff. Each pause is drawn anew, from half of it to all of it, and the bound doubles
    /// from pause to pause.
    pub pause: Duration,
}

impl Default for Retry {
    /// 4 times, 100 ms: up to 1.5 s in all, which a server that is restarted with little data needs to be back.
    /// Random, as the Redlock algorithm asks, so that clients that got in each other's way do not do so again.
    fn default() -> Self {
        Retry { times: 4, pause: Duration::from_millis(100) }
    }
}

/// Builds a [`Client`]: see [`Client::builder`].
#[derive(Clone)]
#[must_use]
pub struct ClientBuilder {
    pub(crate) servers: Vec<String>,
    pub(crate) node_timeout: Duration,
    pub(crate) drift: Option<Duration>,
    pub(crate) retry: Retry,
    pub(crate) root_certificate: Option<Vec<u8>>,
    pub(crate) client_certificate: Option<(Vec<u8>, Vec<u8>)>,
}

impl Default for ClientBuilder {
    fn default() -> Self {
        ClientBuilder {
            servers: Vec::new(),
            node_timeout: Duration::from_millis(250),
            drift: None,
            retry: Retry::default(),
            root_certificate: None,
            client_certificate: None,
        }
    }
}

/// Without the addresses, which may hold passwords, and the key.
impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientBuilder { node_timeout, drift, retry, .. } = self;
        let mut shown = f.debug_struct("ClientBuilder");
        shown.field("servers", &self.servers.len()).field("node_timeout", node_timeout);
        shown.field("drift", drift).field("retry", retry).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// One more server. Given once: that server is the lock service. Given several times: independent masters of which a
    /// majority decides; take 3 or 5.
    ///
    /// `redis://user:password@host:port/db`, `rediss://…` for TLS,
    /// `unix:///path/to/socket?db=1&user=…&pass=…`; /, ?, # and @ in a user name or a password are written
    /// %2F, %3F, %23 and %40. No error shows more of it than where it leads. All clients of a lock must name
    /// the same masters and the same database.
    pub fn server(mut self, url: impl Into<String>) -> Self {
        self.servers.push(url.into());
        self
    }

    /// Several more servers: see [`server`](Self::server).
    pub fn servers<I>(mut self, urls: I) -> Self
    where
        I: IntoIterator<Item: Into<String>>,
    {
        self.servers.extend(urls.into_iter().map(Into::into));
        self
    }

    /// How long one master may take for one answer, 1 ms to a day; default 250 ms. A connection to it is given four times as long.
    ///
    /// It is what a silent master can cost: a round that still needs its vote waits so long for it. 250 ms is ten times
    /// the way between the data centres of a continent, and longer than a fork or a slow command holds a healthy
    /// server up. A request is never waited for longer than its ttl.
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = limit;
        self
    }

    /// By how much less than the ttl a hold is trusted; default: a hundredth of the ttl and 2 ms, as the Redlock
    /// algorithm advises, which is room for clocks whose rates differ by 1 % (quartz differs by 0.01 %).
    pub fn drift(mut self, drift: Duration) -> Self {
        self.drift = Some(drift);
        self
    }

    /// How rounds are tried again that failed for lack of masters: see [`Retry`]. How long somebody else's hold is
    /// waited for is not said here but by [`Acquire::wait`](crate::Acquire::wait).
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// For `rediss://`: trust servers whose certificates are signed by this one (PEM), instead of those that the system trusts.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// For `rediss://`: the certificate and the key (both PEM) by which the servers know this client.
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }

    /// The client. Connects to all servers at once, and waits until a majority is there, but for all of them at least as long
    /// as one answer may take, and for none longer than a connection may take.
    ///
    /// A server that cannot be reached is no error: it is tried again whenever it is needed. Nor is one that is reached and
    /// cannot take part (no module, no permission), as long as there is a majority without it: see
    /// [`Client::unusable`]. Two addresses of one server are an error. Must be called in a tokio runtime, which is
    /// the one that the client's background work (renewals, clean-up) runs on.
    pub async fn build(self) -> Result<Client, BuildError> {
        Client::connect(self).await
    }
}
