//! Addresses as people write them.

use redis::io::tcp::socket2::TcpKeepalive;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BuildError;
use crate::options::ClientBuilder;

/// After so long without a word the kernel asks whether the other end is there.
const SILENCE: Duration = Duration::from_secs(15);

const FORM: &str = "not of the form redis://host:port, rediss://host:port or unix:///path";

const STRANGE: &str = "something behind the host, or behind the path of a socket, does not belong there; in a \
                       user name, a password or a path write / as %2F, ? as %3F, # as %23, @ as %40, = as %3D";

const NO_HOST: &str = "what stands in the place of the host is no name of one: user and password stand before an @, and \
                       only one server is named";

/// Where a master is.
pub(crate) struct Address {
    /// For people: where it is, put together anew. Of the address as it was given nothing else is ever shown,
    /// for what is none, or not quite, can hold a password anywhere.
    pub(crate) name: Arc<str>,
    pub(crate) redis: redis::Client,
}

impl Address {
    /// The address that stands at this position of the list, which begins with 1.
    pub(crate) fn parse(position: usize, text: &str, options: &ClientBuilder) -> Result<Address, BuildError> {
        let wrong = |why: &str| BuildError::Address { position, why: why.into() };
        let url = redis::parse_redis_url(text).ok_or_else(|| wrong(FORM))?;
        let known: &[&str] = match url.scheme() {
            "redis" | "rediss" | "valkey" | "valkeys" => &["protocol"],
            _ => &["db", "user", "pass", "protocol"],
        };
        // Shown as the host, it could be a password whose @ was written as %40, or a list of addresses.
        if url.host_str().is_some_and(|host| !is_host(host)) {
            return Err(wrong(NO_HOST));
        }
        // `&pass=` behind a path that no ? has ended.
        let is_strange = url.path().contains(['@', '='])
            || url.query_pairs().any(|(name, _)| !known.contains(&&*name))
            || url.fragment().is_some_and(|fragment| fragment != "insecure");
        if is_strange {
            return Err(wrong(STRANGE));
        }
        let info = redis::IntoConnectionInfo::into_connection_info(url);
        // A detail would be a piece of the address.
        let info = info.map_err(|why| match why.detail() {
            None => wrong(why.to_string().split(" - ").next().unwrap_or(FORM)),
            Some(_) => wrong(STRANGE),
        })?;
        // RESP3 tells when the connection closes, and INSPECT's answer as a map.
        let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
        let settings = settings.set_lib_name("dlock-client", env!("CARGO_PKG_VERSION"));
        // A wait can be long and silent: only so is it noticed that nobody is at the other end any more.
        let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 3);
        let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
        let info = info.set_redis_settings(settings).set_tcp_settings(tcp);
        let name = name(&info).into();
        let redis = connector(info, options).map_err(|why| wrong(&why.to_string()))?;
        Ok(Address { name, redis })
    }
}

/// Of the characters of names, IPv4 and IPv6 addresses.
fn is_host(text: &str) -> bool {
    text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-_.:[]".contains(&byte))
}

/// Where it is, the same for all spellings.
fn name(info: &redis::ConnectionInfo) -> String {
    let host = |host: &str| if host.contains(':') { format!("[{host}]") } else { host.to_string() };
    let (place, separator) = match info.addr() {
        redis::ConnectionAddr::Tcp(name, port) => (format!("redis://{}:{port}", host(name)), "/"),
        redis::ConnectionAddr::TcpTls { host: name, port, .. } => {
            (format!("rediss://{}:{port}", host(name)), "/")
        }
        redis::ConnectionAddr::Unix(path) => (format!("unix://{}", path.display()), "?db="),
        _ => ("a server".to_string(), "/"),
    };
    match info.redis_settings().db() {
        0 => place,
        db => format!("{place}{separator}{db}"),
    }
}

#[cfg(feature = "tls")]
fn connector(info: redis::ConnectionInfo, options: &ClientBuilder) -> redis::RedisResult<redis::Client> {
    if !matches!(info.addr(), redis::ConnectionAddr::TcpTls { .. }) {
        return redis::Client::open(info);
    }
    // Rustls wants one for the process; where the program has chosen, its choice stands.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let client_tls = options.client_certificate.clone();
    let client_tls =
        client_tls.map(|(client_cert, client_key)| redis::ClientTlsConfig { client_cert, client_key });
    let root_cert = options.root_certificate.clone();
    let certificates = redis::TlsCertificates { client_tls, root_cert };
    redis::Client::build_with_tls(info, certificates)
}

#[cfg(not(feature = "tls"))]
fn connector(info: redis::ConnectionInfo, _options: &ClientBuilder) -> redis::RedisResult<redis::Client> {
    redis::Client::open(info)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> Result<Address, BuildError> {
        Address::parse(2, text, &ClientBuilder::default())
    }

    #[test]
    fn a_name_is_where_the_master_is_and_nothing_else_of_its_address() {
        for (text, name) in [
            ("redis://host:7000", "redis://host:7000"),
            ("redis://host", "redis://host:6379"),
            ("valkey://host/0", "redis://host:6379"),
            ("redis://[::1]:7000/2", "redis://[::1]:7000/2"),
            ("redis://host?protocol=resp3", "redis://host:6379"),
            ("redis://zoe:secret@host:7000/3", "redis://host:7000/3"),
            ("redis://secret@host:7000", "redis://host:7000"),
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

    /// What may be a user's name, a password or the first line of some file is not repeated, however it is
    /// spelled.
    #[test]
    fn what_is_no_address_is_refused_without_repeating_any_of_it() {
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
            "redis://secret%40host",
            "redis://secret%40host:7000",
            "redis://secret;host",
            "redis://host,secret",
            "redis://host;redis:7000,secret:7000",
            "root:*:19000:0:99999:7:::secret",
        ] {
            let Err(why) = parse(text) else { panic!("{text} is taken") };
            assert!(matches!(why, BuildError::Address { position: 2, .. }), "{text}: {why:?}");
            for told in [why.to_string(), format!("{why:?}")] {
                for word in ["secret", "s%", "zoe", "123", "root"] {
                    assert!(!told.contains(word), "{text}: {told}");
                }
            }
        }
    }
}
