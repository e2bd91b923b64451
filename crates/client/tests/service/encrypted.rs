//! Connections over TLS.

use super::*;
use dlock_client::BuildError;
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use std::fs;

use dlock_testkit::cluster::{EQUAL_SLOTS, join_at};
use dlock_testkit::{Folder, Options, Port};

/// A certificate and its key.
struct Identity {
    certificate: String,
    key: String,
}

/// The authority that signs all certificates.
struct Authority(CertifiedIssuer<'static, KeyPair>);

impl Authority {
    fn new() -> Authority {
        let mut params = CertificateParams::new([]).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, "authority");
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        let key = KeyPair::generate().expect("a key");
        Authority(CertifiedIssuer::self_signed(params, key).expect("a certificate"))
    }

    fn issue(&self, name: &str) -> Identity {
        let key = KeyPair::generate().expect("a key");
        // Nodes and sentinels name servers by their IP addresses.
        let names = [name.to_string(), "127.0.0.1".to_string()];
        let mut params = CertificateParams::new(names).expect("parameters");
        params.distinguished_name.push(DnType::CommonName, name);
        let certificate = params.signed_by(&key, &self.0).expect("a certificate");
        Identity { certificate: certificate.pem(), key: key.serialize_pem() }
    }
}

/// Starts a server with TLS on a second port, for clients with a certificate that the authority has signed.
fn start(kind: &ServerKind, authority: &Authority, folder: &Folder, port: &Port) -> Server {
    options(kind, authority, folder, port).start()
}

fn options(kind: &ServerKind, authority: &Authority, folder: &Folder, port: &Port) -> Options {
    let identity = authority.issue("localhost");
    let path = |name: &str| folder.path().join(format!("{}-{name}", port.number()));
    fs::write(path("ca"), authority.0.pem()).expect("a file");
    fs::write(path("certificate"), identity.certificate).expect("a file");
    fs::write(path("key"), identity.key).expect("a file");
    Server::options(kind)
        .conf(&format!("tls-port {}", port.number()))
        .conf(&format!("tls-ca-cert-file {}", path("ca").display()))
        .conf(&format!("tls-cert-file {}", path("certificate").display()))
        .conf(&format!("tls-key-file {}", path("key").display()))
}

/// Acquires, waits and releases over this address, with the certificate of the authority.
async fn check(address: &str, authority: &Authority, names: &[&str]) -> Client {
    let own = authority.issue("client");
    let builder = Client::builder().server(address).node_timeout(Duration::from_secs(5));
    let builder = builder.root_certificate(authority.0.pem()).client_certificate(own.certificate, own.key);
    let client = builder.build().await.expect("a client");
    for name in names {
        let guard = client.lock(name).ttl(LONG).acquire().await.expect("the lock is free");
        let next = tokio::spawn(client.lock(name).ttl(LONG).acquire());
        guard.release().await.expect("the lock is held");
        next.await.expect("no panic").expect("a handoff").release().await.expect("the lock is held");
    }
    client
}

/// The nodes name each other by their ports with TLS.
#[each_server]
async fn a_cluster_works_over_tls(kind: &ServerKind) {
    let (authority, folder) = (Authority::new(), Folder::fresh());
    let ports: Vec<Port> = (0..3).map(|_| Port::claim()).collect();
    let start = |port| {
        let options = options(kind, &authority, &folder, port).conf("cluster-enabled yes");
        options.conf("tls-cluster yes").conf("tls-replication yes").start()
    };
    let nodes: Vec<Server> = ports.iter().map(start).collect();
    join_at(&nodes, &EQUAL_SLOTS, ports[0].number());
    let address = format!("rediss-cluster://127.0.0.1:{}", ports[0].number());
    let client = check(&address, &authority, &["r0", "r1", "r2", "r3", "r4", "r5"]).await;
    let servers: Vec<_> = client.list(None).await.into_iter().map(|seen| seen.server.to_string()).collect();
    for port in &ports {
        assert!(servers.contains(&format!("rediss://127.0.0.1:{}", port.number())), "{servers:?}");
    }
}

/// The sentinel and the master that it names both use TLS.
#[each_server]
async fn sentinels_work_over_tls(kind: &ServerKind) {
    let (authority, folder) = (Authority::new(), Folder::fresh());
    let [port, of_sentinel] = [(); 2].map(|()| Port::claim());
    let _master = start(kind, &authority, &folder, &port);
    let sentinel = options(kind, &authority, &folder, &of_sentinel).sentinel().conf("tls-replication yes");
    let monitor = format!("sentinel monitor locks 127.0.0.1 {} 1", port.number());
    let _sentinel = sentinel.conf(&monitor).start();
    let address = format!("rediss-sentinel://127.0.0.1:{}?sentinelServiceName=locks", of_sentinel.number());
    let client = check(&address, &authority, &["r"]).await;
    let says = client.sentinels().await;
    let found = says[0].answer.found().expect("the sentinel answers");
    assert_eq!(found.master, format!("127.0.0.1:{}", port.number()));
}

#[each_server]
async fn a_quorum_works_over_tls(kind: &ServerKind) {
    let (authority, folder) = (Authority::new(), Folder::fresh());
    let ports: Vec<Port> = (0..3).map(|_| Port::claim()).collect();
    let servers: Vec<Server> = ports.iter().map(|port| start(kind, &authority, &folder, port)).collect();
    let builder = || {
        let urls = ports.iter().map(|port| format!("rediss://localhost:{}", port.number()));
        Client::builder().servers(urls).node_timeout(Duration::from_secs(5))
    };
    let with_authority = || builder().root_certificate(authority.0.pem());
    let own = authority.issue("client");
    let with_own =
        |builder: ClientBuilder| builder.client_certificate(own.certificate.clone(), own.key.clone());

    let client = with_own(with_authority()).build().await.expect("a client");
    let guard = client.lock("r").ttl(LONG).fenced().acquire().await.expect("the lock is free");
    let next = tokio::spawn(client.lock("r").acquire());
    guard.release().await.expect("the lock is held");
    next.await.expect("no panic").expect("there was a handoff").release().await.expect("the lock is held");
    until_nothing_is_left(&servers, "r");

    // A client that does not trust the authority, or has no certificate of its own, cannot connect.
    for misconfigured in [
        with_own(builder()),
        with_authority(),
        with_own(builder().root_certificate(Authority::new().0.pem())),
    ] {
        match misconfigured.build().await {
            Err(BuildError::Unusable { .. }) => {}
            Err(why) => panic!("{why}"),
            Ok(client) => {
                let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("no connection");
                assert!(why.to_string().contains("the TLS handshake failed: "), "{why}");
            }
        }
    }
    let invalid = builder().root_certificate("no certificate").client_certificate("x", "x").build().await;
    assert!(matches!(invalid, Err(BuildError::Address { .. })), "{invalid:?}");
}

/// A server without TLS reads the handshake as a command, waits for the end of the line, and does not answer.
#[each_server]
async fn a_port_without_tls_is_reported_as_a_failed_handshake(kind: &ServerKind) {
    let server = Server::start(kind);
    let url = format!("rediss://localhost:{}", server.port());
    let builder = Client::builder().server(url).root_certificate(Authority::new().0.pem());
    let client = builder.build().await.expect("build() accepts a failed handshake");
    let why = client.lock("r").wait(Wait::No).acquire().await.expect_err("no connection");
    assert!(why.to_string().contains("the TLS handshake"), "{why}");
}
