//! The addresses of members: one server, the master that sentinels name, or a cluster.

use std::fmt;
use std::sync::Arc;

use crate::error::BuildError;
use crate::options::ClientBuilder;

const FORM: &str = "not of the form redis://host:port, rediss://host:port, unix:///path, \
                    redis-cluster://host:port or redis-sentinel://host:port?sentinelServiceName=name";

const WRONG_PORT: &str = "the port must be a number from 1 to 65535";

const UNEXPECTED: &str = "unexpected text after the host, or after the path of a socket; in a user name, a \
                          password or a path, write / as %2F, ? as %3F, # as %23, @ as %40, = as %3D";

const NO_HOST: &str =
    "not a valid host name: user and password end with an @, and an address names one server";

const NO_PASSWORD: &str = "a user name without a password: write redis://user:password@host or \
                           unix:///path?user=name&pass=password, and redis://:password@host for a password \
                           without a user name; a user that needs no password accepts any";

const DATABASE_OF_CLUSTER: &str = "a cluster has only the database 0: leave the database out";

const CLUSTER_PARAMETER: &str =
    "after the ?, an address of a cluster has only node=host:port, once for each further node";

const NO_NAME: &str = "the name of the master is missing: write ?sentinelServiceName=NAME, with the name of \
                       `sentinel monitor NAME ..`";

const NAME_AS_PATH: &str = "after the /, an address of sentinels has the number of a database: write the name of \
                            the master as ?sentinelServiceName=NAME";

const SENTINEL_PARAMETER: &str = "after the ?, an address of sentinels has only sentinelServiceName=name, \
                                  node=host:port for each further sentinel, sentinelUsername and sentinelPassword";

const LIST_OF_NODES: &str =
    "an address names one node, and further ones as node=host:port after a ?, not after a comma";

const WRONG_NODE: &str =
    "node= must be host:port, without user, password and scheme, which are those of the address itself";

const NO_SENTINEL_PASSWORD: &str = "sentinelUsername without sentinelPassword: write both";

/// The address of a member.
pub(crate) enum SiteAddress {
    Server(Address),
    /// The master that the sentinels name.
    Sentinel(SentinelAddress),
    Cluster(ClusterAddress),
}

/// The master of a name that the sentinels know.
pub(crate) struct SentinelAddress {
    /// As [`Address::name`].
    pub(crate) name: Arc<str>,
    /// Name of the master.
    pub(crate) service: String,
    pub(crate) sentinels: Vec<Address>,
    /// User, password, database and TLS of the master. The location is that of a sentinel.
    pub(crate) master: Address,
}

/// Nodes of a cluster, each of which shows where the other ones are.
pub(crate) struct ClusterAddress {
    /// As [`Address::name`].
    pub(crate) name: Arc<str>,
    pub(crate) seeds: Vec<Address>,
}

impl SiteAddress {
    /// Parses the address at this position of the list, counted from 1.
    pub(crate) fn parse(
        position: usize,
        text: &str,
        options: &ClientBuilder,
    ) -> Result<SiteAddress, BuildError> {
        let wrong = |why: &str| BuildError::Address { position, why: why.into() };
        let (scheme, rest) = text.split_once("://").unwrap_or_default();
        let Some((base, kind)) = scheme.rsplit_once('-').filter(|(base, _)| is_base(base)) else {
            return Address::parse(position, text, options).map(SiteAddress::Server);
        };
        let (location, query) = rest.split_once('?').unwrap_or((rest, ""));
        let place = location.rsplit('@').next().unwrap_or_default();
        if ["cluster", "sentinel"].contains(&kind) && place.contains(',') {
            return Err(wrong(LIST_OF_NODES));
        }
        let path = location.split_once('/').map_or("", |(_, path)| path);
        if kind == "sentinel" && !path.is_empty() && is_host(path) && path.parse::<i64>().is_err() {
            return Err(wrong(NAME_AS_PATH));
        }
        let first = Address::parse(position, &format!("{base}://{location}"), options)?;
        // The host is never used.
        let parameters = redis::parse_redis_url(&format!("redis://h/?{query}"));
        let parameters =
            parameters.filter(|url| url.fragment().is_none()).ok_or_else(|| wrong(UNEXPECTED))?;
        let (mut nodes, mut values) = (vec![first.clone()], Vec::new());
        for (name, value) in parameters.query_pairs() {
            match &*name {
                "node" | "addr" => nodes.push(first.at_node(&value).ok_or_else(|| wrong(WRONG_NODE))?),
                _ => values.push((name.into_owned(), value.into_owned())),
            }
        }
        match kind {
            "cluster" if first.info.redis_settings().db() != 0 => Err(wrong(DATABASE_OF_CLUSTER)),
            "cluster" if !values.is_empty() => Err(wrong(CLUSTER_PARAMETER)),
            "cluster" => {
                Ok(SiteAddress::Cluster(ClusterAddress { name: first.as_kind(kind).into(), seeds: nodes }))
            }
            "sentinel" => SentinelAddress::new(&nodes, values).map(SiteAddress::Sentinel).map_err(wrong),
            _ => Err(wrong(FORM)),
        }
    }

    /// Returns the location of the member: see [`Address::name`].
    pub(crate) fn name(&self) -> &Arc<str> {
        match self {
            SiteAddress::Server(address) => &address.name,
            SiteAddress::Sentinel(address) => &address.name,
            SiteAddress::Cluster(address) => &address.name,
        }
    }

    /// Returns the word for an address that may only stand alone. `None` means that it may be one of several.
    pub(crate) fn stands_alone(&self) -> Option<&'static str> {
        match self {
            SiteAddress::Server(_) => None,
            SiteAddress::Sentinel(_) => Some("a Sentinel deployment"),
            SiteAddress::Cluster(_) => Some("a cluster"),
        }
    }
}

impl SentinelAddress {
    /// Makes the address from the nodes that it names, at least one, and its other parameters. Returns an
    /// error text that repeats none of them.
    fn new(nodes: &[Address], parameters: Vec<(String, String)>) -> Result<SentinelAddress, &'static str> {
        let (mut service, mut username, mut password) = (None, None, None);
        for (name, value) in parameters.into_iter().filter(|(_, value)| !value.is_empty()) {
            let (parameter, twice) = match name.as_str() {
                "sentinelServiceName" | "sentinelMasterId" | "master_name" => {
                    (&mut service, "sentinelServiceName is given twice")
                }
                "sentinelUsername" => (&mut username, "sentinelUsername is given twice"),
                "sentinelPassword" => (&mut password, "sentinelPassword is given twice"),
                _ => return Err(SENTINEL_PARAMETER),
            };
            if parameter.replace(value).is_some() {
                return Err(twice);
            }
        }
        let service = service.ok_or(NO_NAME)?;
        if username.is_some() && password.is_none() {
            return Err(NO_SENTINEL_PASSWORD);
        }
        let master = nodes[0].clone();
        let name = format!("{}?sentinelServiceName={service}", master.as_kind("sentinel")).into();
        let sentinels = nodes.iter().map(|node| node.with_login(&username, &password)).collect();
        Ok(SentinelAddress { name, service, sentinels, master })
    }
}

fn is_base(scheme: &str) -> bool {
    ["redis", "rediss", "valkey", "valkeys"].contains(&scheme)
}

/// The address of a server.
#[derive(Clone)]
pub(crate) struct Address {
    /// Location of the master, built from the parsed address. No error and no debug text shows anything else
    /// of the given address: if it is malformed, a password may be anywhere in it.
    pub(crate) name: Arc<str>,
    pub(crate) info: redis::ConnectionInfo,
    #[cfg(feature = "tls")]
    pub(crate) tls: Option<Arc<rustls::ClientConfig>>,
}

impl Address {
    /// Parses the address at this position of the list, counted from 1.
    #[cfg_attr(not(feature = "tls"), expect(unused_variables))]
    pub(crate) fn parse(position: usize, text: &str, options: &ClientBuilder) -> Result<Address, BuildError> {
        let wrong = |why: &str| BuildError::Address { position, why: why.into() };
        let url = redis::parse_redis_url(text)
            .ok_or_else(|| wrong(if has_wrong_port(text) { WRONG_PORT } else { FORM }))?;
        if url.port() == Some(0) {
            return Err(wrong(WRONG_PORT));
        }
        let known: &[&str] = match url.scheme() {
            "redis" | "rediss" | "valkey" | "valkeys" => &["protocol"],
            _ => &["db", "user", "pass", "protocol"],
        };
        // Text that is no host name could be a password with an @ written as %40, or a list of addresses.
        if url.host_str().is_some_and(|host| !is_host(host)) {
            return Err(wrong(NO_HOST));
        }
        // For example `unix:///run/a.sock&pass=secret`, with `&` in place of `?`.
        let is_unexpected = url.path().contains(['@', '='])
            || url.query_pairs().any(|(name, _)| !known.contains(&&*name))
            || url.fragment().is_some_and(|fragment| fragment != "insecure");
        if is_unexpected {
            return Err(wrong(UNEXPECTED));
        }
        let info = redis::IntoConnectionInfo::into_connection_info(url);
        // The text of the error is `description - kind: detail`. A detail would repeat a part of the address.
        let info = info.map_err(|why| match why.detail() {
            None => wrong(why.to_string().split(" - ").next().unwrap_or(FORM)),
            Some(_) => wrong(UNEXPECTED),
        })?;
        // The connection would not log in, and so have the rights of the user `default`.
        if info.redis_settings().username().is_some() && info.redis_settings().password().is_none() {
            return Err(wrong(NO_PASSWORD));
        }
        // Without RESP3, the connection could not receive push messages (of CLIENT TRACKING and SUBSCRIBE).
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let info = info.set_redis_settings(settings);
        Ok(Address {
            name: name(&info).into(),
            #[cfg(feature = "tls")]
            tls: tls(&info, options).map_err(|why| wrong(&why))?,
            info,
        })
    }

    /// Returns the address of another server, with the same user, password, database and TLS.
    pub(crate) fn at(&self, host: &str, port: u16) -> Address {
        let addr = match self.info.addr() {
            redis::ConnectionAddr::TcpTls { insecure, tls_params, .. } => redis::ConnectionAddr::TcpTls {
                host: host.into(),
                port,
                insecure: *insecure,
                tls_params: tls_params.clone(),
            },
            _ => redis::ConnectionAddr::Tcp(host.into(), port),
        };
        let info = self.info.clone().set_addr(addr);
        Address { name: name(&info).into(), info, ..self.clone() }
    }

    /// Returns the address of the server at `host:port`, as a node or a user writes it. `None` if the text
    /// has another form. An IPv6 address may have brackets or not.
    pub(crate) fn at_node(&self, node: &str) -> Option<Address> {
        let (host, port) = node.rsplit_once(':')?;
        let host = host.strip_prefix('[').and_then(|host| host.strip_suffix(']')).unwrap_or(host);
        let port = port.parse().ok().filter(|port| *port != 0)?;
        // A node that does not know its own host leaves the host out: it is the one that was asked.
        let host = if host.is_empty() { self.host() } else { host };
        is_host(host).then(|| self.at(host, port))
    }

    /// Returns the host, without the brackets of an IPv6 address.
    fn host(&self) -> &str {
        match self.info.addr() {
            redis::ConnectionAddr::Tcp(host, _) | redis::ConnectionAddr::TcpTls { host, .. } => host,
            _ => "",
        }
    }

    /// Returns the address with the login of a sentinel, and its database.
    fn with_login(&self, username: &Option<String>, password: &Option<String>) -> Address {
        let mut settings = redis::RedisConnectionInfo::default();
        if let Some(username) = username {
            settings = settings.set_username(username);
        }
        if let Some(password) = password {
            settings = settings.set_password(password);
        }
        let mut address = self.clone();
        address.info = address.info.set_redis_settings(settings);
        address.name = name(&address.info).into();
        address
    }

    /// Returns the location as that of a `cluster` or a `sentinel`.
    pub(crate) fn as_kind(&self, kind: &str) -> String {
        format!("{}-{kind}://{}", self.scheme(), self.location())
    }

    fn scheme(&self) -> &str {
        self.name.split("://").next().unwrap_or_default()
    }

    /// Returns `host:port`.
    fn location(&self) -> &str {
        let location = self.name.split("://").nth(1).unwrap_or_default();
        location.split('/').next().unwrap_or_default()
    }
}

/// Shows neither the user nor the password.
impl fmt::Debug for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

/// Returns true if the port is empty or above 65535. The address may have other faults, too.
fn has_wrong_port(text: &str) -> bool {
    let Some((_, location)) = text.split_once("://") else { return false };
    let location = location.split(['/', '?', '#']).next().unwrap_or_default();
    let port = location.rsplit_once(':').map(|(_, port)| port);
    port.is_some_and(|port| port.parse::<u16>().is_err() && port.bytes().all(|byte| byte.is_ascii_digit()))
}

/// Returns true if the text has only characters of host names, IPv4 and IPv6 addresses.
fn is_host(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte))
}

/// Returns the location of the master, the same for all spellings of the address.
fn name(info: &redis::ConnectionInfo) -> String {
    let host = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_string() };
    let (location, separator) = match info.addr() {
        redis::ConnectionAddr::Tcp(name, port) => (format!("redis://{}:{port}", host(name)), "/"),
        redis::ConnectionAddr::TcpTls { host: name, port, .. } => {
            (format!("rediss://{}:{port}", host(name)), "/")
        }
        redis::ConnectionAddr::Unix(path) => (format!("unix://{}", path.display()), "?db="),
        _ => ("a server".to_string(), "/"),
    };
    match info.redis_settings().db() {
        0 => location,
        db => format!("{location}{separator}{db}"),
    }
}

/// Returns the TLS settings: the trusted certificates and the client's own one. `None` means no TLS.
#[cfg(feature = "tls")]
fn tls(
    info: &redis::ConnectionInfo,
    options: &ClientBuilder,
) -> Result<Option<Arc<rustls::ClientConfig>>, String> {
    use rustls::pki_types::pem::PemObject;
    use rustls::pki_types::{CertificateDer, PrivateKeyDer};

    let redis::ConnectionAddr::TcpTls { insecure, .. } = info.addr() else { return Ok(None) };
    if *insecure {
        return Err("certificates are always checked: leave out #insecure, and name the one to trust".into());
    }
    // Rustls requires a cryptography provider for the process. If the program has installed one, this call
    // changes nothing.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let read = |pem: &[u8], what: &str| {
        let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
        let read = read.map_err(|why| format!("the {what} cannot be read: {why}"))?;
        if read.is_empty() { Err(format!("the {what} is not in PEM format")) } else { Ok(read) }
    };
    let trusted = match &options.root_certificate {
        Some(pem) => read(pem, "root certificate")?,
        None => rustls_native_certs::load_native_certs().certs,
    };
    let mut roots = rustls::RootCertStore::empty();
    for certificate in trusted {
        roots.add(certificate).map_err(|why| format!("the root certificate is not valid: {why}"))?;
    }
    let config = rustls::ClientConfig::builder().with_root_certificates(roots);
    let config = match &options.client_certificate {
        None => config.with_no_client_auth(),
        Some((certificate, key)) => {
            let key = PrivateKeyDer::from_pem_slice(key);
            let key = key.map_err(|why| format!("the client's key cannot be read: {why}"))?;
            let config = config.with_client_auth_cert(read(certificate, "client certificate")?, key);
            config.map_err(|why| format!("the client certificate and its key do not fit: {why}"))?
        }
    };
    Ok(Some(Arc::new(config)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, BuildError> {
        Address::parse(2, text, &ClientBuilder::default())
    }

    #[test]
    fn the_name_of_a_master_has_no_credentials() {
        for (text, name) in [
            ("redis://host:7000", "redis://host:7000"),
            ("redis://host", "redis://host:6379"),
            ("valkey://host/0", "redis://host:6379"),
            ("redis://[::1]:7000/2", "redis://[::1]:7000/2"),
            ("redis://host?protocol=resp3", "redis://host:6379"),
            ("redis://zoe:secret@host:7000/3", "redis://host:7000/3"),
            ("rediss://:secret@host", "rediss://host:6379"),
            ("rediss://:s%65cret%40@host", "rediss://host:6379"),
            ("unix:///run/a.sock?db=1&user=zoe&pass=secret", "unix:///run/a.sock?db=1"),
            ("unix:///run/a.sock?p%61ss=secret", "unix:///run/a.sock"),
            ("unix:///run/a.sock?pass=secret&pass=other", "unix:///run/a.sock"),
            ("redis+unix:///run/a.sock?pass=s%65cret@", "unix:///run/a.sock"),
            ("unix:///run/a%3Db&c;d.sock", "unix:///run/a=b&c;d.sock"),
            ("redis://my_host-1.example.", "redis://my_host-1.example.:6379"),
        ] {
            let parsed = parse(text).unwrap_or_else(|why| panic!("{text}: {why}"));
            assert_eq!(&*parsed.name, name, "{text}");
        }
    }

    #[test]
    fn a_cluster_has_seeds_and_sentinels_have_a_login_of_their_own() {
        let site = |text: &str| SiteAddress::parse(1, text, &ClientBuilder::default());
        let names = |addresses: &[Address]| -> Vec<String> {
            addresses.iter().map(|address| address.name.to_string()).collect()
        };
        let Ok(SiteAddress::Cluster(cluster)) =
            site("valkeys-cluster://zoe:secret@a:7000?node=b:7001&node=[::1]:1")
        else {
            panic!("no cluster")
        };
        assert_eq!(&*cluster.name, "rediss-cluster://a:7000");
        assert_eq!(names(&cluster.seeds), ["rediss://a:7000", "rediss://b:7001", "rediss://[::1]:1"]);
        assert_eq!(cluster.seeds[2].info.redis_settings().password(), Some("secret"));
        for name in ["sentinelServiceName", "sentinelMasterId", "master_name"] {
            let text = format!("redis-sentinel://:secret@a:1/3?{name}=m%20n&node=b:2&sentinelPassword=other");
            let Ok(SiteAddress::Sentinel(sentinel)) = site(&text) else { panic!("no sentinel") };
            assert_eq!(&*sentinel.name, "redis-sentinel://a:1?sentinelServiceName=m n");
            assert_eq!(names(&sentinel.sentinels), ["redis://a:1", "redis://b:2"]);
            assert_eq!(sentinel.sentinels[1].info.redis_settings().password(), Some("other"));
            assert_eq!(sentinel.master.at("c", 4).info.redis_settings().password(), Some("secret"));
            assert_eq!(&*sentinel.master.at("c", 4).name, "redis://c:4/3");
        }
    }

    #[test]
    fn an_invalid_address_of_a_cluster_or_of_sentinels_is_refused_with_its_form() {
        for (text, why) in [
            ("redis-cluster://a:1/3", "database"),
            ("redis-cluster://a:1?db=3", "node=host:port"),
            ("redis-cluster://a:1?node=secret", "host:port"),
            ("redis-cluster://a:1?node=redis://b:1", "host:port"),
            ("redis-cluster://a:1,secret:2", "node=host:port after a ?"),
            ("redis-sentinel://zoe:secret@a,b:2/0?sentinelServiceName=m", "node=host:port after a ?"),
            ("redis-cluster://a:1#secret", "unexpected"),
            ("redis-sentinel://a:1", "sentinelServiceName"),
            ("redis-sentinel://a:1?sentinelServiceName=", "sentinelServiceName"),
            ("redis-sentinel://a:1?sentinelServiceName=m&secret=1", "sentinelUsername"),
            ("redis-sentinel://a:1?sentinelServiceName=m&sentinelUsername=secret", "sentinelPassword"),
            ("redis-proxy://a:1", "of the form"),
            ("unix-cluster:///secret", "of the form"),
        ] {
            let Err(shown) = SiteAddress::parse(1, text, &ClientBuilder::default()) else {
                panic!("{text} is accepted")
            };
            assert!(shown.to_string().contains(why), "{text}: {shown}");
            assert!(!shown.to_string().contains("secret"), "{text}: {shown}");
        }
    }

    #[test]
    fn the_error_for_a_port_out_of_range_names_the_range() {
        for text in
            ["redis://host:99999", "rediss://zoe:secret@host:65536/1", "redis://[::1]:0", "redis://host:0"]
        {
            let Err(why) = parse(text) else { panic!("{text} is accepted") };
            assert!(why.to_string().contains("from 1 to 65535"), "{text}: {why}");
        }
    }

    /// Any part of an address may be a user name or a password. With `dlock --servers-file`, an address may
    /// be a line of a wrong file, such as /etc/shadow.
    #[test]
    fn an_invalid_address_is_refused_without_repeating_any_of_it() {
        for text in [
            "",
            "secret",
            "secret:7000",
            "http://zoe:secret@host",
            "zoe:secret@host",
            "redis:zoe:secret@host",
            "redis:/zoe:secret@host",
            "reddis://zoe:secret@host",
            "redis//zoe:secret@host",
            "redis://zoe:secret@host:port",
            "redis://zoe:secret@host:99999",
            "redis://zoe:secret@host:0",
            "redis://zoe:secret/x@host",
            "redis://zoe:123/secret@host",
            "redis://zoe:123?secret@host",
            "redis://zoe:123#secret@host",
            "redis://zoe:123#secret",
            "redis://zoe:secret@host/database",
            "redis://zoe:secret@0.0.0.0",
            "redis://zoe:secret@",
            "redis://zoe:s%ffecret@host",
            "redis://host?protocol=secret",
            "redis://host?password=secret",
            "rediss://host#secret",
            "unix://zoe:secret@host/run/a.sock",
            "unix:/zoe:secret@host",
            "unix:///run/a.sock?db=secret",
            "unix:///run/a.sock?password=secret",
            "unix:///run/a.sock#secret",
            "unix:///run/a.sock&pass=secret",
            "unix:///run/a.sock;pass=secret",
            "redis://secret@host:7000",
            "redis://secret:@host",
            "unix:///run/a.sock?user=secret",
            "redis://secret%40host",
            "redis://secret%40host:7000",
            "redis://secret;host",
            "redis://host,secret",
            "redis://host;redis:7000,secret:7000",
            "root:*:19000:0:99999:7:::secret",
        ] {
            let Err(why) = parse(text) else { panic!("{text} is accepted") };
            assert!(matches!(why, BuildError::Address { position: 2, .. }), "{text}: {why:?}");
            for shown in [why.to_string(), format!("{why:?}")] {
                for word in ["secret", "s%", "zoe", "123", "root"] {
                    assert!(!shown.contains(word), "{text}: {shown}");
                }
            }
        }
    }
}
