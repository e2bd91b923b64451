//! The options of a client.

use std::fmt;
use std::time::Duration;

/// Number and backoff of the retries of a round that failed because masters are down or silent.
#[non_exhaustive]
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Retry {
    /// How many times masters that are down or silent are asked again before the error
    /// [`QuorumImpossible`](crate::AcquireError::QuorumImpossible). 0 means no retry. With
    /// [`Wait::For`](crate::Wait::For), the client continues to ask them after these retries until the wait
    /// ends; with [`Wait::Forever`](crate::Wait::Forever), only if a majority has answered before.
    pub times: u8,
    /// Bound of the first pause. Each pause is random, from half of the bound to all of it, and the bound
    /// doubles with each pause.
    pub pause: Duration,
}

impl Retry {
    /// Retries this number of times, with this bound of the first pause. `Retry::new(0, Duration::ZERO)`
    /// never retries.
    pub const fn new(times: u8, pause: Duration) -> Self {
        Retry { times, pause }
    }
}

impl Default for Retry {
    /// 4 times, 100 ms: up to 1.5 s in all, enough to restart a server with little data. The pauses are
    /// random, as the Redlock algorithm requires, so that clients that collided do not collide again.
    fn default() -> Self {
        Retry::new(4, Duration::from_millis(100))
    }
}

/// Builds a [`Client`](crate::Client): see [`Client::builder`](crate::Client::builder).
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

/// Shows neither the addresses, which may contain passwords, nor the private key of the client certificate.
impl fmt::Debug for ClientBuilder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ClientBuilder { node_timeout, drift, retry, .. } = self;
        let mut debug = f.debug_struct("ClientBuilder");
        debug.field("servers", &self.servers.len()).field("node_timeout", node_timeout);
        debug.field("drift", drift).field("retry", retry).finish_non_exhaustive()
    }
}

impl ClientBuilder {
    /// Adds a server. A single server grants locks alone. Of several servers, a majority decides: use 3 or 5
    /// independent masters.
    ///
    /// `redis://user:password@host:port/db`, `rediss://…` for TLS, or
    /// `unix:///path/to/socket?db=1&user=…&pass=…`. In a user name or a password, write /, ?, # and @ as %2F,
    /// %3F, %23 and %40. Errors show the location, but never the user or the password. All clients of a lock
    /// must name the same masters and the same database.
    ///
    /// * `redis-sentinel://user:password@host:port/db?sentinelServiceName=name&node=host2:port2`: the master
    ///   of this name, found by these sentinels, and again after a failover. User, password and database are
    ///   those of the master; `sentinelUsername` and `sentinelPassword` those of the sentinels.
    /// * `redis-cluster://user:password@host:port?node=host2:port2`: a cluster, whose nodes name each other.
    ///   A hold and a wait follow their slot to another node. The user needs `+cluster|slots` and `+asking`.
    ///
    /// `rediss-sentinel` and `rediss-cluster` use TLS, and `valkey..` means the same as `redis..`. Such an
    /// address is the only one of a client: a cluster or a Sentinel deployment is no member of a quorum. With
    /// asynchronous replicas, a failover can lose a grant: see `dlock.restart-grace`.
    ///
    /// `dlock doctor` compares the masters that the connected clients name
    /// ([`Client::library_name`](crate::Client::library_name)), but not the databases.
    pub fn server(mut self, url: impl Into<String>) -> Self {
        self.servers.push(url.into());
        self
    }

    /// Adds several servers: see [`server`](Self::server).
    pub fn servers<I>(mut self, urls: I) -> Self
    where
        I: IntoIterator<Item: Into<String>>,
    {
        self.servers.extend(urls.into_iter().map(Into::into));
        self
    }

    /// Sets the time limit for one answer of one master, from 1 ms to a day. Default: 250 ms. The limit
    /// for opening a connection is four times as long.
    ///
    /// The limit counts from the last answer of the master over the same connection: a request that is behind
    /// many others gets its turn.
    ///
    /// A silent master costs this time: a round that needs its vote waits for this long. 250 ms is ten times
    /// the latency between the data centres of a continent. A fork or a slow command blocks a healthy server
    /// for less than 250 ms. If the ttl of a request is shorter than the limit, the ttl is the limit.
    pub fn node_timeout(mut self, limit: Duration) -> Self {
        self.node_timeout = limit;
        self
    }

    /// Sets the part of the ttl that does not count as validity, because clocks run at different rates.
    /// Default: a hundredth of the ttl plus 2 ms, as in the Redlock algorithm. That allows for rates that
    /// differ by 1 % (quartz clocks differ by 0.01 %).
    pub fn drift(mut self, drift: Duration) -> Self {
        self.drift = Some(drift);
        self
    }

    /// Sets the retries of rounds that failed because masters are down or silent: see [`Retry`].
    /// [`Acquire::wait`](crate::Acquire::wait) sets the time to wait for another client's hold.
    pub fn retry(mut self, retry: Retry) -> Self {
        self.retry = retry;
        self
    }

    /// For `rediss://`: trusts servers with certificates that are signed with this root certificate (PEM),
    /// instead of servers that the system trusts.
    pub fn root_certificate(mut self, pem: impl Into<Vec<u8>>) -> Self {
        self.root_certificate = Some(pem.into());
        self
    }

    /// For `rediss://`: sets the client certificate and its key (both PEM).
    pub fn client_certificate(mut self, certificate: impl Into<Vec<u8>>, key: impl Into<Vec<u8>>) -> Self {
        self.client_certificate = Some((certificate.into(), key.into()));
        self
    }
}
