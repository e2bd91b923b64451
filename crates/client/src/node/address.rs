//! Addresses as people write them.

use redis::io::tcp::socket2::TcpKeepalive;
use std::sync::Arc;
use std::time::Duration;

use crate::error::BuildError;
use crate::options::ClientBuilder;

/// After so long without a word the kernel asks whether the other end is there.
const SILENCE: Duration = Duration::from_secs(15);

/// Where a master is.
pub(crate) struct Address {
    /// For people: the address without its password.
    pub(crate) name: Arc<str>,
    pub(crate) redis: redis::Client,
}

impl Address {
    pub(crate) fn parse(text: &str, options: &ClientBuilder) -> Result<Address, BuildError> {
        let wrong = |server: String, why: String| BuildError::Address { server: server.into(), why };
        let Some(url) = redis::parse_redis_url(text) else {
            let why = "no address of the form redis://host:port, rediss://host:port or unix:///path";
            return Err(wrong(without_user(text), why.into()));
        };
        let name = {
            let mut shown = url.clone();
            // Fails only where an address cannot have one.
            let _ = shown.set_password(None);
            if let Some(query) = url.query() {
                let open = query.split('&').filter(|pair| !pair.starts_with("pass="));
                let open = open.collect::<Vec<_>>().join("&");
                shown.set_query(Some(open.as_str()).filter(|query| !query.is_empty()));
            }
            shown.to_string()
        };
        let open = || {
            let info = redis::IntoConnectionInfo::into_connection_info(url)?;
            // RESP3 tells when the connection closes, and INSPECT's answer as a map.
            let settings = info.redis_settings().clone().set_protocol(redis::ProtocolVersion::RESP3);
            let settings = settings.set_lib_name("dlock-client", env!("CARGO_PKG_VERSION"));
            // A wait can be long and silent: only so is it noticed that nobody is at the other end any more.
            let keepalive = TcpKeepalive::new().with_time(SILENCE).with_interval(SILENCE / 3);
            let tcp = info.tcp_settings().clone().set_nodelay(true).set_keepalive(keepalive);
            connector(info.set_redis_settings(settings).set_tcp_settings(tcp), options)
        };
        match open() {
            Ok(redis) => Ok(Address { name: name.into(), redis }),
            Err(why) => Err(wrong(name, why.to_string())),
        }
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

/// What is no address may still hold a password.
fn without_user(text: &str) -> String {
    match (text.find("://"), text.rfind('@')) {
        (Some(scheme), Some(at)) if scheme < at => format!("{}://{}", &text[..scheme], &text[at + 1..]),
        (_, Some(at)) => text[at + 1..].to_string(),
        _ => text.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn name(text: &str) -> String {
        let address = Address::parse(text, &ClientBuilder::default());
        address.unwrap_or_else(|why| panic!("{text}: {why}")).name.to_string()
    }

    #[test]
    fn a_name_is_the_address_without_its_password() {
        assert_eq!(name("redis://host:7000"), "redis://host:7000");
        assert_eq!(name("redis://ann:secret@host:7000/3"), "redis://ann@host:7000/3");
        assert_eq!(name("rediss://:secret@host"), "rediss://host");
        assert_eq!(name("unix:///run/a.sock?db=1&user=ann&pass=secret"), "unix:///run/a.sock?db=1&user=ann");
        assert_eq!(name("unix:///run/a.sock?pass=secret"), "unix:///run/a.sock");
    }

    #[test]
    fn what_is_no_address_is_refused_without_telling_a_password() {
        for text in
            ["", "host:7000", "http://ann:secret@host", "ann:secret@host", "redis://ann:secret@host:port"]
        {
            let Err(why) = Address::parse(text, &ClientBuilder::default()) else { panic!("{text} is taken") };
            assert!(!why.to_string().contains("secret"), "{why}");
        }
        for text in [
            "redis://ann:secret@host/database",
            "redis://ann:secret@0.0.0.0",
            "redis://ann:secret@host?protocol=9",
        ] {
            let Err(why) = Address::parse(text, &ClientBuilder::default()) else { panic!("{text} is taken") };
            assert!(!why.to_string().contains("secret"), "{why}");
        }
    }
}
